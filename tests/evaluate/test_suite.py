import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sic.data.dataset import ImageData
from sic.data.images import Preprocessing
from sic.directory import Config
from sic.errors import SicError
from sic.evaluate.funnybirds import funnybirds
from sic.evaluate.suite import PROTOCOLS, Suite, chosen
from sic.files import plain
from sic.model import Model
from sic.run import spread
from tests.evaluate import birds
from tests.evaluate.birds import CLASSES, SIZE, Oracle

NAMES = tuple(f"bird {number}" for number in range(len(CLASSES)))
VIEW = Preprocessing(SIZE, SIZE, "squash")


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    root = tmp_path_factory.mktemp("suite")
    return ImageData("squares", root, "FunnyBirds", NAMES, {"test": birds.write(root)})


def suite(data: ImageData, classifier: Oracle | None = None, **more: Any) -> Suite:
    config = Config("none", list(NAMES), "single", VIEW, 0, 1.0, method="blackbox")
    model = Model(classifier or Oracle(), config, [])
    samples = data.splits["test"]
    predictions = model.predictions([samples[row] for row in spread(len(samples), more.get("limit"))])
    return Suite(model, data, predictions, **more)


def test_everything_that_applies(squares: ImageData) -> None:
    seen = set()
    found = suite(squares, watch=lambda task, done, total: seen.add(task)).run()
    assert set(found) == {"data", "caution", "images", "left_out", *PROTOCOLS} - {"matches"}
    assert set(found["left_out"]) == {"matches"}  # it has no cases
    assert found["images"] == 10 and found["accuracy"]["accuracy"] == 1
    assert found["funnybirds"] == plain(funnybirds(Oracle(), squares.root, squares.splits["test"], VIEW))
    assert set(found["localisation"]) == {"grid_2x2"}  # five classes are too few for 3×3
    assert set(found["faithfulness"]) >= {"deletion", "insertion", "stability", "randomisation"}
    assert not found["faithfulness"]["randomisation"]["passed"]  # it has no weights to depend on
    assert set(found["unfamiliar"]) == {"familiar", "noise", "blurred noise"}
    assert {"interventions", "grids 2×2", "deletion", "stability", "randomisation"} <= seen
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_what_does_not_apply_is_said(squares: ImageData) -> None:
    folders = replace(squares, layout="class folders")
    found = suite(folders).run(["accuracy", "funnybirds", "unfamiliar"])
    assert set(found) == {"data", "caution", "images", "left_out", "accuracy", "unfamiliar"}
    assert "FunnyBirds" in found["left_out"]["funnybirds"]
    assert "drawn birds" in found["unfamiliar"]
    others = suite(replace(squares, classes=NAMES[1:])).run(["funnybirds"])
    assert "classes" in others["left_out"]["funnybirds"]


def test_a_limit_is_spread_over_the_classes(squares: ImageData) -> None:
    limited = suite(squares, limit=5)
    assert [sample.labels[0] for sample in limited.predictions.samples] == [0, 1, 2, 3, 4]
    found = limited.run()
    assert found["images"] == found["funnybirds"]["images"] == found["faithfulness"]["images"] == 5
    assert found["unfamiliar"]["noise"]["images"] == 5
    assert found["localisation"]["grid_2x2"]["grids"] == 1  # each image is in one grid only


def test_more_strangers(squares: ImageData) -> None:
    black = torch.zeros(3, 3, SIZE, SIZE)
    found = suite(squares, strangers={"black": [black]}).run(["unfamiliar"])
    assert found["unfamiliar"]["black"]["images"] == 3
    assert found["unfamiliar"]["black"]["probability"]["flagged"] == 1


def test_a_yes_is_50_percent_where_classes_compete(squares: ImageData) -> None:
    class Competing(Oracle):
        loss = "ce"

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) / 20

    assert suite(squares).run(["accuracy"])["accuracy"]["similar_case"] == 1
    assert suite(squares, Competing()).run(["accuracy"])["accuracy"]["similar_case"] == 0


def test_names_of_protocols() -> None:
    assert chosen(None) == list(PROTOCOLS) and chosen("unfamiliar, accuracy") == ["unfamiliar", "accuracy"]
    with pytest.raises(SicError, match="is not a protocol"):
        chosen("accuracy,speed")


def test_json_knows_no_nan() -> None:
    assert plain({"a": [math.nan, 1.5, (math.inf, "x")], "b": {"c": True}}) == {
        "a": [None, 1.5, [None, "x"]],
        "b": {"c": True},
    }


def test_the_written_layout_is_complete(squares: ImageData, tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    moved = replace(squares, root=tmp_path)
    assert "funnybirds" in suite(moved).run(["funnybirds"])["left_out"]
