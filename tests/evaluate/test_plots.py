"""What the plots show, read back from them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sic.evaluate.accuracy import calibration_figures
from sic.evaluate.compare import collect, table
from sic.evaluate.metrics import FUNNYBIRDS
from sic.evaluate.plots import bars, confusion, draw, radar, reliability, removal, save
from tests.evaluate.test_compare import evaluation

CURVES = {
    name: {"curve": [1, 0.2, 0], "random_curve": [1, 0.6, 0], "area": 0.35, "random_area": 0.55}
    for name in ("deletion", "insertion")
} | {"images": 7}


def test_every_plot_is_a_picture(tmp_path: Path) -> None:
    figures = calibration_figures(torch.rand(9, 3), torch.eye(3).repeat(3, 1), torch.ones(9, 3).bool(), single=True)
    accuracy = figures | {"confusion": [[3, 0, 0], [1, 2, 0], [0, 0, 3]]}
    drawn = draw({"accuracy": accuracy, "faithfulness": CURVES}, ["a", "b $x", "c"], tmp_path)
    assert [path.name for path in drawn] == ["reliability.png", "confusion.png", "deletion.png"]
    for path in drawn:
        assert np.array(Image.open(path).convert("L")).std() > 5
    assert draw({"accuracy": {}}, [], tmp_path) == []


def test_the_reliability_curve() -> None:
    curve = [
        {"low": 0.0, "high": 0.5, "answers": 0, "confidence": None, "accuracy": None},
        {"low": 0.5, "high": 1.0, "answers": 4, "confidence": 0.9, "accuracy": 0.75},
    ]
    top, bottom = reliability(curve, 0.15).axes
    assert "0.150" in top.get_title()
    line = next(line for line in top.lines if line.get_label() == "this model")
    assert line.get_xydata().tolist() == [[0.9, 0.75]]
    assert [patch.get_height() for patch in bottom.patches] == [0, 4]


@pytest.mark.parametrize("classes", [2, 40])
def test_confusions_are_shares_of_rows(classes: int) -> None:
    counts = 3 * np.eye(classes, dtype=int)
    counts[0, 1] = 1
    axes = confusion(counts, [f"class {n}" for n in range(classes)]).axes[0]
    shares = axes.images[0].get_array()
    assert shares[0, 0] == 0.75 and shares[0, 1] == 0.25 and shares[1, 1] == 1
    assert [text.get_text() for text in axes.texts] == (["3", "1", "3"] if classes == 2 else [])


def test_curves_of_deletion() -> None:
    axes = removal(CURVES).axes
    assert axes[0].lines[0].get_ydata().tolist() == [1, 0.2, 0]
    assert "7 images" in axes[0].get_ylabel()
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == [
        "by contribution (area 0.35)",
        "in random order (area 0.55)",
    ]


def test_the_radar(tmp_path: Path) -> None:
    whole = dict(zip([metric.key for metric in FUNNYBIRDS], np.linspace(0.1, 0.8, 8).tolist(), strict=True))
    figure = radar({"one": whole, "two": {**whole, "TS": None}}, FUNNYBIRDS, "FunnyBirds")
    polygons = figure.axes[0].lines
    assert polygons[0].get_ydata().tolist() == pytest.approx([*whole.values(), whole["A"]])
    assert np.isnan(polygons[1].get_ydata()[7])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert save(figure, tmp_path / "new" / "radar.png").stat().st_size > 10_000


def test_bars_of_methods() -> None:
    methods = collect({"a": [evaluation(0.9, 0.1), evaluation(0.8, 0.3)], "b": [evaluation(0.7, 0.2, alpha=False)]})
    figure = bars(table(methods), methods)
    shown = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
    assert "accuracy ↑" in shown and "deletion (area) ↓" in shown
    assert not any("alpha" in title or "threshold" in title for title in shown)
    widths = [patch.get_width() for patch in shown["accuracy ↑"].patches]
    assert widths == pytest.approx([0.85, 0.7])
