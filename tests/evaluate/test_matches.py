"""Matches are measured: agreement and causality are what they are by hand."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sic import backbones
from sic.data.dataset import ImageData, Point
from sic.data.images import Preprocessing, read_image, to_tensor
from sic.data.layouts.funnybirds import known_part_map, open_funnybirds, part_map, write_funnybirds
from sic.directory import Config
from sic.evaluate import matches as evaluated
from sic.evaluate.matches import NO_PART, Drop, agreement, causality, matches
from sic.evaluate.matches import drops as matched_drops
from sic.explain.matches import find_matches
from sic.methods import SIC, BlackBox, ProtoPNet
from sic.model import Model
from sic.supports import Support
from tests.explain.test_matches import SIZE, build, photos, stored

VIEW = Preprocessing(SIZE, SIZE, "squash")


def test_agreement_by_hand() -> None:
    rows = [(0, 3.0, "eye", "eye"), (0, 1.0, "beak", "eye"), (1, 4.0, "eye", "eye"), (1, 2.0, NO_PART, NO_PART)]
    found = agreement(rows)
    assert found["agreement"] == pytest.approx(0.7)
    assert found["chance"] == pytest.approx(0.7 * 0.8)  # the eye on either side
    assert found["parts"] == pytest.approx({"beak": 0.1, "eye": 0.7})
    low, high = found["interval"]
    assert low == pytest.approx(4 / 6) and high == pytest.approx(0.75)  # one of the images alone
    assert found["matches"] == 4


def test_causality_by_hand() -> None:
    drops = [Drop(n // 2, float(n), float(n) ** 2, 2.0, -float(n), float(n) ** 3) for n in range(8)]
    found = causality(drops)
    assert found["spearman"] == pytest.approx(1) and found["interval"] == pytest.approx([1, 1])
    assert found["claimed"] == pytest.approx(3.5) and found["measured"] == pytest.approx(17.5)
    assert found["beats_random"] == pytest.approx(6 / 8) and found["random"] == 2
    assert found["spearman_other_class"] == pytest.approx(-1) and found["spearman_uniform"] == pytest.approx(1)
    assert found["above_other_class"] == pytest.approx([2, 2])
    opposite = [Drop(n, float(n), -float(n), 0.0, float(n), float(n)) for n in range(8)]
    assert causality(opposite)["spearman"] == pytest.approx(-1)


def test_blanked_regions_against_single_images() -> None:
    model, image = build(), photos(8)[4]
    found = find_matches(model.answered(image[None]), stored(photos(4)), [[0, 2]])[0]
    other = torch.zeros(image.shape[1:])
    other[:, :10], other[0, 0] = 2.0, -5.0
    measured = list(matched_drops(model, image, 7, found, other, torch.Generator().manual_seed(0)))
    regions = [(case, match.image) for case, each in found.items() for match in each.groups]
    assert len(measured) == len(regions) > 2
    for (case, region), drop in zip(regions, measured, strict=True):
        blank = image.clone()
        blank[:, region.mask] = image.mean(dim=(1, 2))[:, None]
        with torch.no_grad():
            before, after = (model.answer(each[None])[1][0, case].item() for each in (image, blank))
        assert drop.image == 7
        assert drop.measured == pytest.approx(before - after, abs=1e-4)
        assert drop.claimed == pytest.approx((region.map * region.mask).sum().item(), rel=1e-4)
        inside = region.mask[:, :10].sum().item() - region.mask[0, 0].item()
        assert drop.other_class == pytest.approx(before * inside / (10 * len(other) - 1), rel=1e-4)
        assert drop.uniform == pytest.approx(before * region.mask.sum().item() / region.mask.numel(), rel=1e-4)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    root = tmp_path_factory.mktemp("matches") / "birds"
    write_funnybirds(root, classes=3, train=3, test=2, size=48, interventions=False)
    return open_funnybirds(root)


def model_of(data: ImageData, classifier: SIC | ProtoPNet, boxes: bool = False) -> Model:
    """Untrained, with the first training images of each class as cases."""
    labels = (classifier.support_classes if isinstance(classifier, SIC) else classifier.prototype_classes).tolist()
    chosen = [[s for s in data.splits["train"] if s.path.parent.name == str(label)][0] for label in labels]
    pictures = [VIEW(read_image(sample.path)) for sample in chosen]
    box = (4, 4, 20, 20) if boxes else None
    supports = [Support(n, s.id, p, box) for n, s, p in zip(labels, chosen, pictures, strict=True)]
    return Model(classifier, Config("none", list(data.classes), "single", VIEW, 0, 1.0), supports)


def test_part_maps_of_training_images_are_drawn_again(drawn: ImageData, tmp_path: Path) -> None:
    test = drawn.splits["test"][0]
    stored_map = np.asarray(read_image(part_map(drawn.root, test)))
    scenes = json.loads((drawn.root / "dataset_test.json").read_text())
    (tmp_path / "dataset_train.json").write_text(json.dumps(scenes))
    id = test.id.replace("test", "train", 1)
    (tmp_path / id).parent.mkdir(parents=True)
    shutil.copy(test.path, tmp_path / id)
    np.testing.assert_array_equal(known_part_map(tmp_path, id), stored_map)
    np.testing.assert_array_equal(known_part_map(drawn.root, test.id), stored_map)
    (tmp_path / "other").mkdir()
    assert known_part_map(tmp_path / "other", id) is None and known_part_map(tmp_path, test.id) is None


def matched_share(classifier: SIC, data: ImageData) -> float:
    """The share of the evidence of the predicted classes that has a match, image by image."""
    model, matched, whole = model_of(data, classifier), 0.0, 0.0
    for sample in data.splits["test"]:
        probabilities = model.predict(sample.path).probabilities
        nearest = max(probabilities, key=lambda name: probabilities[name])
        (explained,) = model.explain(sample.path, [nearest], matches=True).classes
        assert explained.matches is not None
        matched += sum(match.evidence for match in explained.matches.groups)
        whole += sum(case.evidence for case in explained.cases)
    return matched / whole


def test_the_protocol_on_drawn_birds(drawn: ImageData) -> None:
    classifier = build()
    with torch.no_grad():
        first = torch.stack([to_tensor(VIEW(read_image(drawn.splits["train"][3 * n].path))) for n in (0, 0, 1, 2)])
        classifier.set_supports(classifier.encoder(first), classifier.support_classes)
    found = matches(model_of(drawn, classifier), drawn, drawn.splits["test"])
    assert not isinstance(found, str)
    assert set(found["part_agreement"]) == {"matches", "whole_maps", "same_place"}
    for each in found["part_agreement"].values():
        assert 0 <= each["interval"][0] <= each["agreement"] <= each["interval"][1] <= 1
    assert found["part_agreement"]["matches"]["matches"] == found["part_agreement"]["same_place"]["matches"]
    assert found["causality"]["regions"] > 0 and found["images_per_s"] > 0
    assert found["matched_share"] == pytest.approx(matched_share(classifier, drawn), rel=1e-4)
    assert found["images"] == len(drawn.splits["test"])
    elsewhere = replace(drawn, layout="class folders")
    assert set(matches(model_of(drawn, classifier), elsewhere, drawn.splits["test"])) == {
        "images",
        "causality",
        "matched_share",
        "images_per_s",
    }


def test_other_images_with_the_ids_of_the_cases(drawn: ImageData, tmp_path: Path) -> None:
    """Where the parts of the cases are is not known then."""
    write_funnybirds(tmp_path / "others", classes=3, train=3, test=2, size=48, interventions=False, seed=1)
    others = open_funnybirds(tmp_path / "others")
    assert {sample.id for sample in others.splits["train"]} == {sample.id for sample in drawn.splits["train"]}
    found = matches(model_of(drawn, build()), others, others.splits["test"])
    assert "causality" in found and "part_agreement" not in found


@pytest.mark.parametrize("form", ["part maps", "points"])
def test_images_of_cases_that_cannot_be_read(drawn: ImageData, tmp_path: Path, form: str) -> None:
    """The parts of these cases are not known then; everything else is measured."""
    data = drawn if form == "part maps" else as_cub(drawn, points=True)
    model = model_of(data, build())
    (tmp_path / "damaged.png").write_bytes(b"no image")
    paths = {support.source: tmp_path / "damaged.png" for support in model.supports}
    train = [replace(sample, path=paths.get(sample.id, sample.path)) for sample in data.splits["train"]]
    found = matches(model, replace(data, splits=data.splits | {"train": train}), data.splits["test"])
    assert set(found) == {"images", "causality", "matched_share", "images_per_s"}


def test_images_of_cases_are_not_read_where_no_parts_are_known(
    drawn: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(evaluated, "read_image", lambda path: read.append(path) or read_image(path))
    model = model_of(drawn, build())
    matches(model, replace(drawn, layout="class folders"), drawn.splits["test"])
    assert read == []
    matches(model, drawn, drawn.splits["test"])
    assert len(read) == len(model.supports)


def test_the_protocol_compares_the_patches_of_protopnet(drawn: ImageData) -> None:
    torch.manual_seed(0)
    network = ProtoPNet(backbones.create("resnet_tiny", "conventional"), 3, 6, latent=8).eval()
    model = model_of(drawn, network, boxes=True)
    found = matches(model, drawn, drawn.splits["test"])
    assert set(found) == {"images", "part_agreement"} and set(found["part_agreement"]) == {"matches"}
    assert network.attribution == "enlarged"
    assert "parts of these images" in matches(model, replace(drawn, layout="class folders"), drawn.splits["test"])


def as_cub(drawn: ImageData, points: bool) -> ImageData:
    """The drawn birds, with a point at each corner of a square instead of part maps."""
    corners = tuple(Point(f"{x} {y}", x, y) for x in (12.0, 36.0) for y in (12.0, 36.0))
    splits = {
        split: [replace(sample, points=corners if points else ()) for sample in samples]
        for split, samples in drawn.splits.items()
    }
    return replace(drawn, layout="CUB-200-2011", splits=splits)


def test_the_protocol_with_points_of_parts(drawn: ImageData) -> None:
    """Points that are the same in all images: the same place is the same part."""
    data = as_cub(drawn, points=True)
    found = matches(model_of(data, build()), data, data.splits["test"])
    assert not isinstance(found, str)
    agreed = found["part_agreement"]
    assert set(agreed) == {"matches", "whole_maps", "same_place"}
    assert set(agreed["matches"]["parts"]) <= {"12.0 12.0", "12.0 36.0", "36.0 12.0", "36.0 36.0"}
    assert sum(agreed["matches"]["parts"].values()) == pytest.approx(1)  # without boxes every pixel belongs to a part
    without = as_cub(drawn, points=False)
    assert set(matches(model_of(without, build()), without, without.splits["test"])) == {
        "images",
        "causality",
        "matched_share",
        "images_per_s",
    }


def test_what_cannot_be_measured_is_said(drawn: ImageData) -> None:
    model = model_of(drawn, build())
    model.supports[0] = replace(model.supports[0], image=None)
    assert "does not keep the images" in matches(model, drawn, drawn.splits["test"])
    model.classifier = BlackBox(backbones.create("resnet_tiny", "conventional"), 3)
    assert "only SIC and ProtoPNet" in matches(model, drawn, drawn.splits["test"])
