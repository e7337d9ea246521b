import csv
import io
import statistics
from typing import Any

import pytest

from sic.evaluate.compare import cell, collect, latex, markdown, summary, table, tidy_csv
from sic.evaluate.metrics import METRICS, headline


def evaluation(accuracy: float, deletion: float, alpha: bool = True) -> dict[str, Any]:
    """What a `Suite` returns, as far as it is compared."""
    kind = {
        "CSDC": 0.9,
        "PC": 0.8,
        "DC": 0.7,
        "D": 0.6,
        "SD": 0.5,
        "TS": None,
        "Cor": 0.5,
        "threshold": 0.1,
        "curves": {},
    }
    return {
        "data": "test images",
        "accuracy": {"accuracy": accuracy, "ece": 0.1, "per_class": [], "images": 3},
        "funnybirds": {"A": accuracy, "BI": 1.0, "contributions": kind, **({"alpha": kind} if alpha else {})},
        "localisation": {
            "grid_2x2": {"share": 0.4, "chance": 0.25, "grids": 3, "smoothed": {"share": 0.6}},
            "boxes": {"all": {"maps": 2, "area": 0.1, "energy": 0.3, "hit": 1.0, "overlap": 0.2}},
        },
        "faithfulness": {
            "deletion": {"area": deletion},
            "insertion": {"area": 0.9},
            "stability": {"rank_correlation": 0.99},
            "randomisation": {"stages": [{"rank_correlation": 0.9}, {"rank_correlation": 0.01}]},
        },
        "matches": {"part_agreement": {"matches": {"agreement": 0.85}}, "causality": {"spearman": 0.67}},
        "frame": {"mass": 0.4, "effect": 0.2, "times": 2.0},
        "unfamiliar": {"familiar": {}, "blurred noise": {"probability": {"flagged": 0.25}}},
    }


@pytest.fixture
def methods() -> dict[str, dict[str, list[float | None]]]:
    return collect(
        {
            "sic": [evaluation(0.9, 0.1), evaluation(0.8, 0.3)],
            "black_box & co": [evaluation(0.7, 0.2, alpha=False), {"data": "test images"}],
        }
    )


def test_what_is_compared() -> None:
    found = headline(evaluation(0.9, 0.1))
    assert found["accuracy"] == found["A"] == 0.9 and found["ece"] == 0.1
    assert found["CSDC"] == found["CSDC_alpha"] == 0.9 and found["TS"] is None
    assert (found["grid_2x2"], found["box_energy"], found["box_overlap"]) == (0.4, 0.3, 0.2)
    assert found["grid_2x2_smoothed"] == 0.6 and "box_energy_smoothed" not in found
    assert (found["deletion"], found["stability"], found["randomised"]) == (0.1, 0.99, 0.01)
    assert (found["frame_mass"], found["frame_effect"], found["frame_times"]) == (0.4, 0.2, 2.0)
    assert (found["part_agreement"], found["match_spearman"]) == (0.85, 0.67)
    assert found["refused_blurred_noise"] == 0.25 and "curves" not in found
    assert headline({"data": "x"}) == {}


def test_one_value_per_seed(methods: dict[str, Any]) -> None:
    assert methods["sic"]["accuracy"] == [0.9, 0.8]
    assert methods["black_box & co"]["accuracy"] == [0.7, None]
    assert methods["black_box & co"]["CSDC_alpha"] == [None, None]
    assert list(methods["sic"]) == list(methods["black_box & co"])
    order = [name for name in methods["sic"] if name in METRICS]
    assert order == [name for name in METRICS if name in order]


def test_mean_and_spread(methods: dict[str, Any]) -> None:
    found = summary(methods)
    expected = {"mean": 0.85, "spread": statistics.stdev([0.9, 0.8]), "seeds": 2}
    assert found["sic"]["accuracy"] == pytest.approx(expected)
    assert found["black_box & co"]["accuracy"] == {"mean": 0.7, "spread": None, "seeds": 1}
    assert found["black_box & co"]["PC_alpha"] == {"mean": None, "spread": None, "seeds": 0}


def test_who_is_best(methods: dict[str, Any]) -> None:
    best = {row.metric.key: row.best for row in table(methods)}
    assert best["accuracy"] == {"sic"}
    assert best["ece"] == best["threshold"] == best["BI"] == frozenset()  # equal, no better one, equal
    rows = {row.metric.key: row for row in table(collect({"a": [evaluation(0.5, 0.1)], "b": [evaluation(0.5, 0.2)]}))}
    assert rows["deletion"].best == {"a"} and rows["randomised"].best == frozenset()
    assert "Cor" not in rows and "TS" not in rows


@pytest.mark.parametrize(
    ("values", "name", "text"),
    [([0.5, 0.7], "accuracy", "60.0 ± 14.1"), ([0.12345], "SD", "0.123"), ([None], "SD", "–")],
)
def test_how_cells_read(values: list[float | None], name: str, text: str) -> None:
    assert cell(values).text(METRICS[name]) == text


def test_markdown(methods: dict[str, Any]) -> None:
    lines = markdown(table(methods)).splitlines()
    assert lines[0] == "| | sic | black_box & co |" and lines[1] == "|---|---|---|"
    assert "| accuracy (%) | **85.0 ± 7.1** | 70.0 |" in lines
    assert "| FunnyBirds PC (alpha) | 0.800 ± 0.000 | – |" in lines
    assert "| refused: blurred noise (%) | 25.0 ± 0.0 | 25.0 |" in lines


def test_latex(methods: dict[str, Any]) -> None:
    text = latex(table(methods))
    assert "& sic & black\\_box \\& co \\\\" in text and "{lrr}" in text
    assert "accuracy (\\%) & $\\mathbf{85.0 \\pm 7.1}$ & $70.0$ \\\\" in text
    assert "FunnyBirds PC (alpha) & $0.800 \\pm 0.000$ & -- \\\\" in text
    assert "2$\\times$2" in text and text.count("{") == text.count("}")


def test_tidy_csv(methods: dict[str, Any]) -> None:
    lines = list(csv.DictReader(io.StringIO(tidy_csv(methods, {"sic": [0, 7], "black_box & co": [0, 1]}))))
    values = [
        (line["seed"], line["value"]) for line in lines if (line["method"], line["metric"]) == ("sic", "accuracy")
    ]
    assert values == [("0", "0.9"), ("7", "0.8")]
    assert len(lines) == 4 * len(methods["sic"])
    missing = next(line for line in lines if line["method"] != "sic" and line["metric"] == "CSDC_alpha")
    assert missing["value"] == ""
