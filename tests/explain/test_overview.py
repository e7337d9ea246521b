"""The overview against loops, scikit-learn and the model's own parts."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import silhouette_score
from torch import Tensor

from sic.data.dataset import Sample
from sic.explain import Overview, make_overview, negative_share, rgba, support_contributions
from sic.explain.overview import class_similarity, project, silhouette, support_similarity
from sic.methods import SIC
from sic.predictions import Predictions
from tests.explain.test_explanation import LABELS, NAMES, SIZE, build, photos, supports


@pytest.fixture(scope="module")
def model() -> SIC:
    return build(0.5)


def embedded(model: SIC) -> Predictions:
    """20 images: of one class each, but for the last two."""
    generator = torch.Generator().manual_seed(9)
    images = torch.rand(20, 3, SIZE, SIZE, generator=generator)
    labels = [(i % 3,) for i in range(18)] + [(0, 1), (1, 2)]
    samples = [Sample(f"{i}.png", Path(f"{i}.png"), own) for i, own in enumerate(labels)]
    with torch.no_grad():
        latents = model.encoder(images)
        evidence = model.evidence(latents)
        return Predictions(
            model.logits(evidence),
            "multi",
            samples=samples,
            classes=NAMES,
            evidence=evidence,
            owners=model.support_classes,
            latents=latents,
        )


@pytest.fixture(scope="module")
def overview(model: SIC) -> Overview:
    return make_overview(model, supports(), NAMES, embedded(model))


def bcos(x: Tensor, weight: Tensor) -> float:
    """One B-cos unit, from its definition."""
    cosine = (x @ weight / (x.norm() * weight.norm())).item()
    return x.norm().item() * abs(cosine) ** 2 * math.copysign(1, cosine)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def test_similarity_of_supports_is_that_of_a_loop(model: SIC, overview: Overview) -> None:
    vectors = model.support_vectors
    for row in range(3):
        for column in range(3):
            pairs = [(i, j) for i in range(6) for j in range(6) if (LABELS[i], LABELS[j]) == (row, column) and i != j]
            expected = mean([bcos(vectors[i], vectors[j]) for i, j in pairs])
            assert overview.support_similarity[row, column] == pytest.approx(expected, rel=1e-4, nan_ok=True)
    assert np.isnan(overview.support_similarity[1, 1])  # the heron has one support only
    assert np.isnan(overview.support_similarity).sum() == 1


def test_similarity_of_images_is_that_of_a_loop(model: SIC, overview: Overview) -> None:
    images = embedded(model)
    assert overview.image_similarity is not None
    for row in range(3):
        for column in range(3):
            expected = mean(
                [
                    bcos(latent, vector)
                    for latent, own in zip(images.latents, (sample.labels for sample in images.samples), strict=True)
                    for vector, owner in zip(model.support_vectors, LABELS, strict=True)
                    if row in own and owner == column
                ]
            )
            assert overview.image_similarity[row, column] == pytest.approx(expected, rel=1e-4)


def test_similarity_is_not_symmetric_and_knows_absent_classes() -> None:
    vectors = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
    among = support_similarity(vectors, [0, 1], 3, 2)
    assert among[0, 1] == pytest.approx(2 * 0.5)
    assert among[1, 0] == pytest.approx(math.sqrt(2) * 0.5)
    assert np.isnan(among[2]).all() and np.isnan(among[:, 2]).all()
    one = class_similarity(vectors[:1], [(0,)], vectors, [0, 1], 2, 2)
    assert one[0].tolist() == pytest.approx([2, 1])
    assert np.isnan(one[1]).all()


def test_silhouette_is_that_of_scikit_learn(model: SIC, overview: Overview) -> None:
    images = embedded(model)
    alone = images.latents[:18].numpy()
    own = np.array([sample.labels[0] for sample in images.samples[:18]])
    assert overview.image_silhouette is not None and overview.support_silhouette is not None
    assert overview.image_silhouette.overall == pytest.approx(silhouette_score(alone, own))
    assert overview.support_silhouette.overall == pytest.approx(silhouette_score(model.support_vectors, LABELS))

    # By its definition, for one class.
    def distance(i: int, members: NDArray[np.intp]) -> float:
        return float(np.mean([np.linalg.norm(alone[i] - alone[j]) for j in members if j != i]))

    values = []
    for i in np.flatnonzero(own == 1):
        inside = distance(i, np.flatnonzero(own == 1))
        outside = min(distance(i, np.flatnonzero(own == other)) for other in (0, 2))
        values.append((outside - inside) / max(outside, inside))
    assert overview.image_silhouette.per_class[1] == pytest.approx(np.mean(values), rel=1e-4)


def test_silhouette_is_not_made_up() -> None:
    points = np.eye(4, dtype=np.float32)
    assert silhouette(points, np.arange(4), 4) is None  # every class has one member
    assert silhouette(points, np.zeros(4, dtype=np.intp), 4) is None  # there is one class
    some = silhouette(points, np.array([0, 0, 2, 2]), 3)
    assert some is not None and some.per_class[1] is None


def test_supports_show_what_they_are_made_of(model: SIC, overview: Overview) -> None:
    own = support_contributions(model, photos(6), range(6))
    pictures = rgba(own.weights, own.maps)
    for view in overview.supports:
        assert view.class_name == NAMES[LABELS[view.index]]
        assert view.name == f"{view.class_name} #{LABELS[: view.index + 1].count(view.label)}"
        assert view.map is not None and view.rgba is not None and view.image is not None
        np.testing.assert_allclose(view.map, own.maps[view.index].numpy(), atol=1e-5)
        np.testing.assert_allclose(
            view.rgba / 255, pictures[view.index].permute(1, 2, 0).numpy(), atol=0.5 / 255 + 1e-4
        )
        assert view.norm == pytest.approx(model.support_vectors[view.index].norm().item())
        assert view.map.sum() + (view.constant or 0) == pytest.approx(view.norm, rel=1e-4)
        assert view.negative_mass == pytest.approx(negative_share(own.maps[view.index]).item(), abs=1e-5)
        np.testing.assert_array_equal(view.image, supports()[view.index].image)
    assert [view.index for view in overview.of_class(2)] == [3, 4, 5]


def test_without_pictures_numbers_remain(model: SIC, overview: Overview) -> None:
    bare = make_overview(model, supports(keep_images=False), NAMES)
    assert [view.norm for view in bare.supports] == [view.norm for view in overview.supports]
    assert all(view.map is view.rgba is view.image is view.negative_mass is None for view in bare.supports)
    np.testing.assert_array_equal(bare.support_similarity, overview.support_similarity)
    assert bare.image_similarity is None and bare.image_silhouette is None and bare.images == 0
    assert [point.support for point in bare.projection.points] == list(range(6))


def test_projection_marks_supports_and_can_be_repeated(model: SIC, overview: Overview) -> None:
    points = overview.projection.points
    assert overview.projection.method == "tsne"
    assert [point.support for point in points] == [*range(6), *[None] * 20]
    assert [point.id for point in points[6:]] == [sample.id for sample in embedded(model).samples]
    assert points[25].labels == (1, 2)
    again = make_overview(model, supports(), NAMES, embedded(model))
    assert again.projection == overview.projection
    flat = make_overview(model, supports(), NAMES, embedded(model), method="pca")
    assert flat.projection.method == "pca"


def test_projection_keeps_neighbours_together() -> None:
    rng = np.random.default_rng(0)
    crowds = (rng.normal(size=(60, 8)) * 0.1 + 10 * np.eye(8)[np.arange(60) % 3]).astype(np.float32)
    for method in ("tsne", "pca"):
        places, _ = project(crowds, method, 0)  # type: ignore[arg-type]
        assert silhouette_score(places, np.arange(60) % 3) > 0.7
    places, method = project(np.ones((20, 8), dtype=np.float32), "tsne", 0)
    assert method == "pca" and not places.any()


def test_json_has_no_nan(overview: Overview) -> None:
    content = json.loads(json.dumps(overview.as_json(), allow_nan=False))
    assert content["support_similarity"][1][1] is None
    assert content["supports"][2]["class"] == "heron"
    assert content["supports"][2]["norm"] == overview.supports[2].norm
    assert len(content["projection"]["points"]) == 26
