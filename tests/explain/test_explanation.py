"""Explanations put together from the model's parts, their reading and their figure."""

import copy
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sic import backbones
from sic.explain import Explanation, explain_answers, negative_share, support_contributions
from sic.explain.matches import Match, Region
from sic.explain.prose import percent
from sic.explain.regions import REGION_COLOURS
from sic.explain.render import as_json
from sic.methods import SIC, Contributions
from sic.supports import Support
from tests.models import norms_take_the_next_batch

SIZE = 24
LABELS = [0, 0, 1, 2, 2, 2]
NAMES = ["wren", "heron", "kite"]


def photos(number: int) -> Tensor:
    """Pictures that survive being stored in 8 bits."""
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(number, 3, 6, 6, generator=generator)
    return (F.interpolate(coarse, (SIZE, SIZE), mode="bilinear") * 255).round() / 255


def supports(keep_images: bool = True) -> list[Support]:
    pixels = (photos(6) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [
        Support(label, f"{NAMES[label]}/{i}.png", image if keep_images else None)
        for i, (label, image) in enumerate(zip(LABELS, pixels, strict=True))
    ]


def build(temperature: float) -> SIC:
    torch.manual_seed(0)
    model = SIC(backbones.create("resnet_tiny"), 3, len(LABELS), latent=16, temperature=temperature)
    norms_take_the_next_batch(model)
    with torch.no_grad():
        model.train().encoder(photos(8))
        model.eval().set_supports(model.encoder(photos(6)), torch.tensor(LABELS))
    return model


@pytest.fixture(scope="module")
def sure() -> SIC:
    """Small temperature: every class is found."""
    return build(0.005)


@pytest.fixture(scope="module")
def unsure() -> SIC:
    """Large temperature: no class is."""
    return build(1000)


def explained(model: SIC, classes: list[int], cases: list[Support] | None = None) -> Explanation:
    image = photos(8)[7]
    answered = model.answered(image[None])
    (parts,) = explain_answers(model, cases or supports(), NAMES, answered, [classes], evidence_maps=True)
    with torch.no_grad():
        chances = dict(zip(NAMES, model(image[None])[0].sigmoid().tolist(), strict=True))
    nearest = max(NAMES, key=lambda name: chances[name])
    found = [part.name for part in parts if part.probability >= 0.5]
    return Explanation(image, "robin.png", model.bias, bool(found), parts, found or [nearest], nearest, chances)


def test_parts_are_those_of_the_model(sure: SIC) -> None:
    image = photos(8)[7]
    parts = explained(sure, [2, 0]).classes
    assert [part.name for part in parts] == ["kite", "wren"]
    with torch.no_grad():
        logits = sure(image[None])[0]
        evidence = sure.evidence(sure.encoder(image[None]))[0]
    for part, label in zip(parts, [2, 0], strict=True):
        assert part.logit == pytest.approx(logits[label].item(), rel=1e-5)
        assert part.probability == pytest.approx(logits[label].sigmoid().item(), rel=1e-5)
        own = [i for i, other in enumerate(LABELS) if other == label]
        assert [case.index for case in part.cases] == sorted(own, key=lambda i: -evidence[i].item())
        for case in part.cases:
            assert case.evidence == pytest.approx(evidence[case.index].item(), rel=1e-5)
            assert case.support.source == f"{part.name}/{case.index}.png"
        total = sum(case.evidence for case in part.cases)
        assert total + sure.bias == pytest.approx(part.logit, rel=1e-5)
        maps = torch.stack([case.evidence_map for case in part.cases]).sum(dim=0)
        torch.testing.assert_close(maps, part.contributions.maps, rtol=1e-4, atol=1e-5)


def test_cases_show_what_they_are_made_of(sure: SIC) -> None:
    own = support_contributions(sure, photos(6), range(6))
    for part in explained(sure, [0, 1, 2]).classes:
        for case in part.cases:
            assert case.image is not None
            assert case.own is not None
            torch.testing.assert_close(case.image, photos(6)[case.index])
            torch.testing.assert_close(case.own.maps, own.maps[case.index], rtol=1e-4, atol=1e-6)
            assert case.own.value.item() == pytest.approx(sure.support_vectors[case.index].norm().item(), rel=1e-4)


def test_cases_without_a_picture(sure: SIC) -> None:
    cases = supports()
    cases[2] = replace(cases[2], image=None)
    shown = [case for part in explained(sure, [0, 1], cases).classes for case in part.cases]
    assert [case.own is None for case in shown] == [case.image is None for case in shown] == [False, False, True]
    with_pictures = [case for part in explained(sure, [0, 1]).classes for case in part.cases]
    assert [case.evidence for case in shown] == [case.evidence for case in with_pictures]
    assert all(case.own is None for part in explained(sure, [2], supports(False)).classes for case in part.cases)


def test_the_residual_is_the_largest_of_all(sure: SIC) -> None:
    explanation = explained(sure, [0, 1, 2])
    assert explanation.residual < 1e-4
    assert explanation.residual == max(abs(c.contributions.residual.item()) for c in explanation.classes)
    broken = explanation.classes[1].contributions
    broken.constant = broken.constant + 3
    assert explanation.residual == pytest.approx(3, rel=1e-3)


def test_explaining_in_inference_mode(sure: SIC) -> None:
    expected = explained(sure, [0, 2])
    with torch.inference_mode():
        got = explained(sure, [0, 2])
    assert got.text == expected.text


def read(explanation: Explanation) -> str:
    """The reading, with "5 %" and "5%" written alike."""
    return explanation.text.replace(" %", "%")


def test_parts_print_in_one_line(sure: SIC) -> None:
    explanation = explained(sure, [2])
    printed, cases = repr(explanation.classes), explanation.classes[0].cases
    assert printed.startswith("[<kite: score ") and printed.count("kite #") == len(cases) and len(printed) < 200
    assert f"<{cases[0].evidence:+.2f} {cases[0].name}>" in printed


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_the_reading_of_one_class(sure: SIC) -> None:
    explanation = explained(sure, [2])
    part = explanation.classes[0]
    text = read(explanation)
    assert re.match(r"The model predicts kite \((over )?\d+%\)\. ", text)
    score = text[text.index("The score for kite is") : text.index("The most similar of them is")]
    ranked = sorted((case.evidence for case in part.cases), reverse=True)
    said = numbers(score)
    assert said == pytest.approx([part.logit, *ranked, -sure.bias], abs=0.0051)
    assert said[0] == pytest.approx(sum(said[1:-1]) - said[-1], abs=0.05)
    best = max(part.cases, key=lambda case: case.evidence)
    assert f"The most similar of them is {best.support.source} ({best.name})." in text
    assert "No similar case" not in text
    assert "\n" not in text


def test_the_reading_of_several_classes(sure: SIC) -> None:
    explanation = explained(sure, [1, 0, 2])
    text = re.sub(r"\((over )?\d+%\)", "(p)", read(explanation))
    assert text.startswith("The model predicts heron (p) and wren (p) and kite (p). ")
    assert [text.count(f"The score for {name} is") for name in NAMES] == [1, 1, 1]
    assert text.count("add up to the score") == 1


def test_no_similar_case_is_said_first(unsure: SIC) -> None:
    explanation = explained(unsure, [0, 1, 2])
    assert not explanation.similar_case
    text = read(explanation)
    assert text.startswith("No similar case: no class reaches a probability of 50%")
    assert f"The nearest class is {explanation.nearest} (33%)" in text  # 1 / (1 + 2), with next to no evidence
    assert "The model predicts" not in text


def test_a_class_that_was_asked_for_is_not_an_answer(sure: SIC) -> None:
    explanation = replace(explained(sure, [0]), labels=["kite"])
    chance = explanation.probabilities["kite"]
    assert explanation.text.startswith(f"The model predicts kite ({percent(chance)}). Also above 50 %: wren (")
    assert "The score for wren is " in explanation.text


def test_a_class_that_was_asked_for_is_not_the_nearest(unsure: SIC) -> None:
    explanation = explained(unsure, [0, 1, 2])
    farthest = min(range(3), key=lambda label: explanation.probabilities[NAMES[label]])
    text = explained(unsure, [farthest]).text
    assert f"The nearest class is {explanation.nearest} (" in text
    assert f"The score for {NAMES[farthest]} is" in text and NAMES[farthest] != explanation.nearest


def test_one_case_is_one_image(sure: SIC) -> None:
    text = explained(sure, [1]).text
    assert "from the similarity to 1 training image, minus" in text
    assert "The most similar is heron/2.png (heron #1)." in text


def test_a_large_error_is_a_warning(sure: SIC) -> None:
    explanation = explained(sure, [0])
    assert "was checked: pixels and bias add up to the score to within 0.0" in explanation.text
    assert "Warning" not in explanation.text
    broken = explanation.classes[0].contributions
    broken.value = broken.value + 3
    assert explanation.text.endswith("Warning: pixels and bias do not add up to the score (residual 3).")
    assert "Checked" not in explanation.text


def test_what_has_no_pixel_is_said(sure: SIC) -> None:
    explanation = explained(sure, [0])
    assert "positions" not in explanation.text
    part = explanation.classes[0]
    evidence = sum(case.evidence for case in part.cases)
    part.contributions.constant = part.contributions.constant + evidence / 4
    part.contributions.maps = part.contributions.maps * 0.75  # the rest of the evidence
    assert (
        f"{evidence / 4:.2f} of the evidence ({percent(0.25)}) comes from the transformer's positional encoding"
        in explanation.text
    )
    assert "pixels, positions and bias add up to the score" in explanation.text


@pytest.mark.parametrize(
    ("error", "words"),
    [(0, "0.0000001"), (3e-7, "0.000001"), (2e-5, "0.0001"), (9e-4, "0.001"), (2e-3, None), (math.nan, None)],
)
def test_the_error_is_at_most_what_is_said(sure: SIC, error: float, words: str | None) -> None:
    explanation = explained(sure, [0])
    part = explanation.classes[0]
    zero = torch.zeros((), dtype=torch.double)
    maps = torch.zeros(SIZE, SIZE, dtype=torch.double)
    bias = zero + explanation.bias
    part.contributions = Contributions(maps, part.contributions.weights, bias + error, bias)
    expected = "Warning:" if words is None else f"was checked: pixels and bias add up to the score to within {words}."
    assert expected in explanation.text


@pytest.mark.parametrize(
    ("rows", "columns", "place"),
    [
        (slice(0, 6), slice(0, 6), "upper left"),
        (slice(18, 24), slice(18, 24), "lower right"),
        (slice(0, 6), slice(0, 24), "upper part"),
        (slice(0, 24), slice(18, 24), "right"),
        (slice(9, 15), slice(9, 15), "middle"),
    ],
)
def test_where_the_evidence_lies(sure: SIC, rows: slice, columns: slice, place: str) -> None:
    explanation = explained(sure, [0])
    maps = torch.zeros(SIZE, SIZE)
    maps[rows, columns] = 1
    set_maps(explanation, maps)
    assert f"comes from the {place} of the image:" in explanation.text
    assert "negative" not in explanation.text


def set_maps(explanation: Explanation, maps: Tensor) -> None:
    part = explanation.classes[0]
    old = part.contributions
    part.contributions = Contributions(maps, old.weights, old.value, old.constant)


def test_how_concentrated_the_evidence_is_and_what_speaks_against_it(sure: SIC) -> None:
    explanation = explained(sure, [0])
    maps = torch.zeros(SIZE * SIZE)
    maps[:57] = 3.0  # a tenth of 576 pixels
    maps[57:228] = 1.0
    maps[228:342] = -1.0
    set_maps(explanation, maps.view(SIZE, SIZE))
    assert "a tenth of the pixels contributes 50% of it, and 25% of all contributions are negative." in read(
        explanation
    )


def test_nothing_speaks_for_an_image_without_positive_contributions(sure: SIC) -> None:
    explanation = explained(sure, [0])
    set_maps(explanation, -torch.ones(SIZE, SIZE))
    assert "No part of the image is evidence for it." in explanation.text


def test_a_case_made_of_negative_parts_is_a_caution(sure: SIC) -> None:
    explanation = explained(sure, [0])
    first, second = explanation.classes[0].cases
    for case, negative in ((first, 0.3), (second, 0.1)):
        assert case.own is not None
        maps = torch.ones(SIZE * SIZE)
        maps[: round(negative * SIZE * SIZE)] = -1
        case.own = replace(case.own, maps=maps.view(SIZE, SIZE))
        assert negative_share(case.own.maps).item() == pytest.approx(negative, abs=0.01)
    assert f"Caution: 30% of the contributions to {first.support.source} ({first.name}) are negative" in read(
        explanation
    )
    assert explanation.text.count("Caution") == 1


MAGIC = {"png": b"\x89PNG\r\n", "pdf": b"%PDF-", "svg": b"<?xml"}


@pytest.mark.parametrize("suffix", MAGIC)
def test_figures_are_written_in_the_format_of_the_suffix(sure: SIC, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"why.{suffix}"
    explained(sure, [2]).save(path)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_figure_without_pictures_of_the_cases(unsure: SIC, tmp_path: Path) -> None:
    path = tmp_path / "why.svg"
    explained(unsure, [0], supports(False)).save(str(path))
    assert path.stat().st_size > 0


def test_a_figure_of_several_classes_and_a_wrong_answer(sure: SIC, tmp_path: Path) -> None:
    from PIL import Image

    one, two = tmp_path / "one.png", tmp_path / "two.png"
    explained(sure, [1]).save(one)
    replace(explained(sure, [1, 0]), truth="wren").save(two)
    with Image.open(one) as small, Image.open(two) as large:
        assert large.height > small.height
        assert np.asarray(large.convert("L")).std() > 5


def test_no_similar_case_is_never_called_right(unsure: SIC, tmp_path: Path) -> None:
    explanation = explained(unsure, [0])
    assert not explanation.similar_case
    replace(explanation, labels=[explanation.nearest], truth=explanation.nearest).save(tmp_path / "why.svg")
    text = (tmp_path / "why.svg").read_text(encoding="utf-8")
    assert f"; true class: {explanation.nearest}" in text and "which is correct" not in text


def test_names_with_dollar_signs_are_only_names(sure: SIC, tmp_path: Path) -> None:
    cases = [replace(case, source=r"a$\no_such_command$.png") for case in supports()]
    explanation = replace(explained(sure, [1], cases), title=r"$\frac$ and $x$", labels=["a$b$"], truth="$c")
    explanation.probabilities["a$b$"] = 0.7
    explanation.save(tmp_path / "why.svg")
    assert r"$\frac$ and $x$: a$b$ (70 %); true class: $c" in (tmp_path / "why.svg").read_text(encoding="utf-8")


def matched(model: SIC, classes: list[int], cases: list[Support] | None = None) -> Explanation:
    """As `explained`, with matches."""
    image = photos(8)[7]
    answered = model.answered(image[None])
    parts = explain_answers(model, cases or supports(), NAMES, answered, [classes], matches=True)[0]
    return replace(explained(model, classes, cases), classes=parts)


def test_matches_add_up_from_regions_to_scores(sure: SIC) -> None:
    explanation = matched(sure, [2, 0])
    assert sorted(explanation.matches) == [0, 1, 3, 4, 5]
    for part in explanation.classes:
        assert part.matches is not None
        total = sum(match.evidence for match in part.matches.parts)
        assert total + explanation.bias == pytest.approx(part.logit, rel=1e-5)
        for case in part.cases:
            assert case.matches is not None
            assert sum(match.evidence for match in case.matches.parts) == pytest.approx(case.evidence, rel=1e-5)
        for match in part.matches.parts:
            own = [m.evidence for case in part.cases if case.matches for m in case.matches.parts]
            numbers = [m.number for case in part.cases if case.matches for m in case.matches.parts]
            assert match.evidence == pytest.approx(
                sum(value for value, number in zip(own, numbers, strict=True) if number == match.number), rel=1e-4
            )
    assert explained(sure, [2]).matches == {} and explained(sure, [2]).classes[0].matches is None


def test_the_strongest_match_in_words(sure: SIC) -> None:
    explanation = matched(sure, [2])
    matches = explanation.classes[0].matches
    assert matches is not None and len(matches.groups) > 1
    first, second = sorted(matches.groups, key=lambda match: -match.share)[:2]
    assert (
        f"The strongest match is region {first.number} with {percent(first.share)} of the evidence; then region "
        in (explanation.text)
    )
    assert f"region {second.number} with {percent(second.share)}" in explanation.text
    assert "match" not in explained(sure, [2]).text
    without = matched(sure, [2], supports(False))
    assert "No regions can be matched, because the model does not keep the images of its cases." in without.text


def test_a_notebook_shows_the_regions_of_matches(sure: SIC) -> None:
    explanation = matched(sure, [2])
    numbers = {match.number for each in explanation.matches.values() for match in each.groups}
    assert len(numbers) > 1
    for shown, expected in ((explanation, numbers), (explained(sure, [2]), set())):
        picture = np.asarray(Image.open(io.BytesIO(shown._repr_png_())).convert("RGB"))
        found = {
            number
            for number, colour in enumerate(REGION_COLOURS)
            if number and (picture == list(bytes.fromhex(colour[1:]))).all(axis=-1).sum() > 20
        }
        assert found == expected


def test_matches_as_json(sure: SIC) -> None:
    found = as_json(matched(sure, [2]))["classes"][0]
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, allow_nan=False))
    assert sum(part["share"] for part in found["regions"]) == pytest.approx(1, abs=1e-4)
    assert found["regions"][-1]["number"] == 0 and found["regions"][-1]["image"]["outline"] == []
    for case in found["cases"]:
        for side in ("image", "support"):
            total = sum(part[side]["evidence"] for part in case["regions"])
            assert total == pytest.approx(case["evidence"], rel=1e-4)
        for part in case["regions"][:-1]:
            (x, y), polygons = part["support"]["centre"], part["support"]["outline"]
            assert 0 <= x <= SIZE and 0 <= y <= SIZE
            assert all(0 <= value <= SIZE for polygon in polygons for point in polygon for value in point)
    assert "regions" not in as_json(explained(sure, [2]))["classes"][0]
    assert "support" not in as_json(matched(sure, [2], supports(False)))["classes"][0]["cases"][0]["regions"][0]


def test_a_figure_numbers_the_matches_on_both_sides(sure: SIC, tmp_path: Path) -> None:
    explanation = matched(sure, [2])
    explanation.save(tmp_path / "matches.svg")
    explained(sure, [2]).save(tmp_path / "plain.svg")
    text, plain = ((tmp_path / name).read_text(encoding="utf-8") for name in ("matches.svg", "plain.svg"))
    assert "Outlines with the same number mark regions that match" in text.replace("\n", " ")
    part = explanation.classes[0]
    assert part.matches is not None
    for match in part.matches.groups:
        shown = f"<!-- {match.number} -->"
        assert text.count(shown) > plain.count(shown)
        assert text.count(REGION_COLOURS[match.number]) > 0 == plain.count(REGION_COLOURS[match.number])
    for case in part.cases:
        assert case.matches is not None and case.matches.groups
        for match in case.matches.groups:
            assert f"<!-- {match.number}  {match.evidence:+.2f} -->" in text, "the amount is beside the number"
    assert "no region matches" not in text
    alone = matched(sure, [2])
    for case in alone.classes[0].cases:
        assert case.matches is not None
        case.matches = replace(case.matches, groups=[])
    alone.save(tmp_path / "alone.svg")
    assert "no region matches" in (tmp_path / "alone.svg").read_text(encoding="utf-8")


def test_evidence_is_strength_times_likeness(sure: SIC) -> None:
    explanation = explained(sure, [2])
    with torch.no_grad():
        latents = sure.encoder(photos(8)[7:])[0]
    for case in explanation.classes[0].cases:
        cosine = F.cosine_similarity(latents, sure.support_vectors[case.index], dim=0).item()
        assert case.strength == pytest.approx(latents.norm().item() / sure.temperature, rel=1e-5)
        assert case.likeness == pytest.approx(cosine**2, rel=1e-4)
        assert case.strength * case.likeness == pytest.approx(case.evidence, rel=1e-6)
        assert percent(case.likeness) in explanation.text
    assert f"the strength of this image is {explanation.classes[0].cases[0].strength:.2f}" in explanation.text


def test_cases_that_count_as_one_are_said(sure: SIC) -> None:
    twin = copy.deepcopy(sure)
    vectors = twin.support_vectors.clone()
    vectors[3:] = vectors[3] * torch.tensor([[1.0], [2.0], [3.0]])
    twin.set_supports(vectors, twin.support_classes)
    said = "To the model these 3 training images are nearly the same"
    assert said in explained(twin, [2]).text and explained(twin, [2]).classes[0].alike == pytest.approx(1)
    vectors[4] = torch.rand(16, generator=torch.Generator().manual_seed(0))
    twin.set_supports(vectors, twin.support_classes)
    apart = explained(twin, [2])
    directions = F.normalize(vectors[3:], dim=1)
    assert apart.classes[0].alike == pytest.approx((directions @ directions.T).min().item() ** 2, rel=1e-5)
    assert said not in apart.text and explained(twin, [1]).classes[0].alike is None


def test_a_contrast_adds_up_to_the_difference_of_the_scores(sure: SIC) -> None:
    explanation = replace(matched(sure, [2, 0]), versus="wren")
    first, other = explanation.classes
    assert sum(each.value for each in explanation.contrast) == pytest.approx(first.logit - other.logit, rel=1e-5)
    assert explanation.contrast[-1].number == 0
    values = [each.value for each in explanation.contrast[:-1]]
    assert values == sorted(values, reverse=True) and len(values) > 1
    text = explanation.text
    assert f"kite against wren: the scores differ by {first.logit - other.logit:+.2f}, made of region " in text
    told = as_json(explanation)["contrast"]
    assert (told["class"], told["versus"]) == ("kite", "wren")
    assert sum(each["difference"] for each in told["regions"]) == pytest.approx(told["difference"], rel=1e-5)
    assert matched(sure, [2, 0]).contrast == [] and "contrast" not in as_json(matched(sure, [2, 0]))


def test_a_region_counts_for_both_classes_whether_a_case_matches_it_or_not(sure: SIC) -> None:
    explanation = replace(matched(sure, [2, 0]), versus="wren")
    found = explanation.contrast
    assert all(abs(each.other) > 1e-4 for each in found[:-1])
    for part, rest in zip(explanation.classes, (found[-1].evidence, found[-1].other), strict=True):
        assert part.matches is not None
        assert rest == part.matches.evidence_map[part.matches.areas == 0].sum().item()  # no difference of large sums
    for each in found[:-1]:
        for part, value in zip(explanation.classes, (each.evidence, each.other), strict=True):
            assert part.matches is not None
            inside = part.contributions.maps[part.matches.areas == each.number].sum().item()
            assert value == pytest.approx(inside, abs=1e-4)
    for case in explanation.classes[1].cases:  # as if no case of the other class had a match
        assert case.matches is not None
        whole = Region(case.matches.evidence_map)
        case.matches = replace(case.matches, groups=[], rest=Match(0, case.evidence, 1.0, whole, None))
    for now, before in zip(explanation.contrast, found, strict=True):
        assert (now.number, now.evidence) == (before.number, before.evidence)
        assert now.other == pytest.approx(before.other, abs=1e-4)
