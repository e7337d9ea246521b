"""Every finding is made to happen, and does not happen in a healthy model."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sic
from sic import fitting
from sic.clinic import Clinic, Edit, Finding, pixels
from sic.clinic import diagnostics as checks
from sic.clinic.advice import Commands
from sic.clinic.clinic import diagnose
from sic.clinic.examined import Examined
from sic.data import read_image, to_tensor
from sic.data.dataset import Box, Sample
from sic.fitting import doubtful_supports

COMMANDS = Commands(Path("a model"), None, "images")


@pytest.fixture
def healthy(model: Path) -> Examined:
    return Clinic(model).examined


def sick(examined: Examined, change: Callable[[torch.Tensor], object]) -> Examined:
    """The same model with other support vectors."""
    vectors = examined.vectors.clone()
    change(vectors)
    return replace(examined, vectors=vectors)


def train_file(examined: Examined, id: str) -> str:
    [path] = [sample.path for sample in examined.splits["train"] if sample.id == id]
    return shlex.quote(str(path))


def titles(findings: list[Finding]) -> list[str]:
    return [finding.title for finding in findings]


def test_a_healthy_model_has_no_findings(healthy: Examined) -> None:
    assert diagnose(healthy, COMMANDS) == []


def test_a_support_of_the_wrong_class_is_found_and_can_be_put_right(model: Path) -> None:
    clinic = Clinic(model)
    before = clinic.preview(Edit.pin(0)).before["accuracy"]
    assert clinic.apply(Edit.replace(6, "red/11.png", force=True)).after["accuracy"] < before
    (finding,) = clinic.diagnose()
    assert (finding.title, finding.severity) == ("A support of the wrong class", "serious")
    assert finding.supports == [6] and finding.images[0] == "red/11.png"
    assert "yellow #1 (red/11.png) is a support of yellow, but the data says red" in finding.sentence
    assert finding.command is not None
    words = finding.command.split()[-3:]
    assert words[:2] == ["replace", "red/11.png"] and words[2].startswith("yellow/")
    assert clinic.preview(Edit.replace(6, words[2])).after["accuracy"] >= before
    assert clinic.apply(Edit.drop(6)).after["accuracy"] == before
    clinic.undo(2)
    assert clinic.preview(Edit.pin(0)).before["accuracy"] == before
    assert clinic.diagnose() == []


def test_a_wrong_label_in_the_data_is_no_excuse(healthy: Examined) -> None:
    """The support lies among another class's images, whatever it is called."""
    yellow = next(sample.id for sample in healthy.splits["train"] if sample.id.startswith("yellow"))
    found = checks.strangers(sick(healthy, lambda v: v[4].copy_(healthy.latents.of([yellow])[0])), COMMANDS)
    assert [(finding.supports, finding.title) for finding in found] == [([4], "A support among another class")]
    assert "the data says" not in found[0].sentence and "are yellow" in found[0].sentence


def test_a_support_that_resembles_another_class_on_average(healthy: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its nearest training images are of several classes; its own image does not speak for it."""
    monkeypatch.setattr(checks, "MAJORITY", 1.1)
    yellow = healthy.latents.of([sample.id for sample in healthy.splits["train"] if sample.id.startswith("yellow")])
    ill = sick(healthy, lambda v: v[4].copy_(yellow.mean(0)))
    ill.latents.replace(ill.supports[4].source, yellow.mean(0))
    [found] = checks.strangers(ill, COMMANDS)
    assert (found.supports, found.title) == ([4], "A support among another class")
    assert "it resembles training images of yellow more than those of its own class (" in found.sentence


def test_training_warns_of_such_a_support(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = sic.load(model)
    held_out = loaded.predictions(Clinic(model).examined.splits["validation"])
    assert not any(said.startswith("red") for said in doubtful_supports(loaded, held_out))
    with torch.no_grad():
        loaded.sic.support_vectors[4] = loaded.sic.support_vectors[6]
    changed = loaded.predictions_of(held_out.samples, held_out.latents)
    [said] = [said for said in doubtful_supports(loaded, changed) if said.startswith("red")]
    assert said.startswith(
        f"red #1 ({loaded.supports[4].source}) resembles images of yellow more than those of its own"
    )
    assert said.endswith("show 'red #1'")
    monkeypatch.setattr(fitting, "NAMED", 1)
    with torch.no_grad():
        loaded.sic.support_vectors[:] = loaded.sic.support_vectors[6]
    *_, last = doubtful_supports(loaded, loaded.predictions_of(held_out.samples, held_out.latents))
    assert last.startswith("So do 5 more: sic supports ") and last.endswith(" check")


def test_supports_of_two_classes_that_coincide(healthy: Examined) -> None:
    found = checks.coinciding(sick(healthy, lambda v: v[2].copy_(3 * v[0])), COMMANDS)
    assert [finding.supports for finding in found] == [[0, 2]]
    assert found[0].numbers["shared_evidence"] == pytest.approx(1)
    assert f"replace {healthy.supports[2].source} green/" in str(found[0].command)  # it is unlike the green ones
    # Shared evidence is what an image that is one of the supports gives to the other.
    classifier = healthy.model.classifier
    evidence = classifier.evidence(healthy.vectors[[0]], healthy.vectors)[0]
    nearly = sick(healthy, lambda v: v[2].copy_(v[0] + 0.2 * v[2] * v[0].norm() / v[2].norm()))
    share = classifier.evidence(nearly.vectors[[0]], nearly.vectors[[2]])[0, 0] / evidence[0]
    found = checks.coinciding(nearly, COMMANDS)
    assert found[0].numbers["shared_evidence"] == pytest.approx(share.item(), rel=1e-4)


def test_supports_of_one_class_that_are_the_same(healthy: Examined) -> None:
    found = checks.identical(sick(healthy, lambda v: v[1].copy_(0.5 * v[0])), COMMANDS)
    assert [finding.supports for finding in found] == [[0, 1]]
    assert found[0].command == "sic supports 'a model' reselect blue"
    assert found[0].numbers["limit"] == checks.SAME or found[0].numbers["shared_evidence"] >= checks.ONE_CASE


def test_supports_that_dominate_or_never_matter(healthy: Examined) -> None:
    found = checks.unbalanced(sick(healthy, lambda v: v[7].zero_()), COMMANDS)
    assert titles(found) == ["A support that dominates", "A support that never matters"]
    assert [finding.supports for finding in found] == [[6], [7]]
    assert found[0].numbers["mean_share"] == pytest.approx(1)
    assert found[1].command == f"sic supports 'a model' drop {healthy.supports[7].source}"


def test_evidence_that_saturates(healthy: Examined) -> None:
    healthy.model.classifier.temperature /= 30
    (finding,) = checks.saturated(healthy, COMMANDS)
    logits = healthy.predictions("validation").logits
    medians = [logits[logits.argmax(1) == label, label].median().item() for label in range(4)]
    assert finding.numbers["median_logit"] == pytest.approx(max(medians))
    for label, median in enumerate(medians):
        assert (healthy.classes[label] in finding.sentence) == (median > checks.SATURATED)
    before, needed = healthy.model.classifier.temperature, float(finding.command.split()[7]) if finding.command else 0
    assert finding.command == (
        f"sic train images --weights 'a model' -T {needed:g} --supports 2 --inference-supports nearest "
        f"--out 'a model-T{needed:g}'"
    )
    # The median falls to a probability of 0.999 at most, and hardly below.
    expected = (max(medians) - healthy.classifier.bias) * before / needed + healthy.classifier.bias
    assert 0.85 * checks.UNSATURATED < expected <= checks.UNSATURATED


def test_label_suspects(healthy: Examined) -> None:
    train = [
        replace(sample, labels=(0,)) if sample.id == "yellow/02.png" else sample for sample in healthy.splits["train"]
    ]
    (finding,) = checks.label_suspects(replace(healthy, splits=healthy.splits | {"train": train}), COMMANDS)
    assert finding.images == ["yellow/02.png"]
    assert "labelled blue: a support of yellow gives it" in finding.sentence
    assert finding.command == f"sic explain 'a model' {train_file(healthy, 'yellow/02.png')} --out why-02.png"


def test_negative_mass(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "TOO_MUCH_NEGATIVE", 1e-4)
    plain = sic.load(model)
    images = torch.stack([to_tensor(s.image) for s in plain.supports])
    # The evidence of a support in its own image is made of the same contributions, divided by T.
    maps = plain.classifier.explain_evidence(images, torch.arange(len(images))).maps
    shares = (-maps.clamp(max=0)).sum(dim=(1, 2)) / maps.abs().sum(dim=(1, 2))
    assert shares.max() > 1e-4
    (finding,) = pixels.negative_mass(Clinic(model).examined)
    assert finding.numbers["negative_share"] == pytest.approx(shares.max().item(), rel=1e-3)
    assert finding.supports == [index for index, share in enumerate(shares.tolist()) if share > 1e-4]
    assert finding.command is None


@pytest.mark.parametrize("largest", [True, False])
def test_evidence_outside_of_the_boxes(healthy: Examined, largest: bool) -> None:
    """Boxes around the quarter of the image that contributes most, or least."""
    plain, boxed, shares = healthy.model, [], []
    for sample in healthy.splits["validation"]:
        label = sample.labels[0]
        view = to_tensor(plain.config.preprocessing(read_image(sample.path)))
        maps = plain.classifier.explain(view[None], torch.tensor([label])).maps[0].clamp(min=0)
        quarters = {(x, y): maps[y : y + 8, x : x + 8].sum().item() for x in (0, 8) for y in (0, 8)}
        x, y = (max if largest else min)(quarters, key=quarters.__getitem__)
        boxed.append(replace(sample, boxes=(Box(label, x, y, x + 8, y + 8),)))
        shares.append(1 - quarters[x, y] / maps.sum().item())
    examined = replace(healthy, splits=healthy.splits | {"validation": boxed})
    found = pixels.background(examined, COMMANDS)
    if largest:
        assert found == []
        return
    assert {finding.severity for finding in found} == {"serious"}
    assert any("outside of the boxes, which is 75% of the area" in finding.sentence for finding in found)
    by_id = dict(zip([sample.id for sample in boxed], shares, strict=True))
    for finding in found:
        expected = sum(by_id[id] for id in finding.images) / len(finding.images)
        assert finding.numbers["share_outside"] == pytest.approx(expected, abs=1e-4)


def test_evidence_near_the_border(healthy: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no boxes."""
    outer = torch.zeros(16, 16)
    outer[:2] = outer[-2:] = 1

    def explain(images: torch.Tensor, targets: torch.Tensor) -> object:
        class Result:
            maps = outer[None] - 0.5

        return Result()

    monkeypatch.setattr(healthy.model.classifier, "explain", explain)
    found = pixels.background(healthy, COMMANDS)
    assert len(found) >= 3 and {finding.severity for finding in found} == {"notice"}
    assert (
        "100% of the evidence for" in found[0].sentence
        and "near the border of the image, which is 44%" in found[0].sentence
    )


def test_only_images_that_were_answered_rightly_are_looked_at(healthy: Examined) -> None:
    chosen = pixels._chosen(healthy)
    answers = healthy.predictions("validation").logits.argmax(dim=1).tolist()
    right = {s.id for s, answer in zip(healthy.splits["validation"], answers, strict=True) if s.labels == (answer,)}
    assert chosen and {sample.id for sample, _ in chosen} <= right
    assert all(isinstance(sample, Sample) and sample.labels == (label,) for sample, label in chosen)
