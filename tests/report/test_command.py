"""`sic report` from the outside."""

import json
import shutil
from pathlib import Path

import pytest

from sic.evaluate.headline import quality_lines
from tests.cli.conftest import Sic, apart, here
from tests.report.conftest import Saved, parse


@pytest.fixture(scope="module")
def sic() -> Sic:
    return Sic(here)


def test_wrong_calls_get_one_sentence(sic: Sic, tmp_path: Path) -> None:
    assert "must end in .html" in sic.refuse("report", tmp_path, "--out", tmp_path / "report.pdf")
    assert "is not supported" in sic.refuse("report", tmp_path, "--format", "pdf,doc")


def test_the_help_names_only_models_that_a_report_can_show(sic: Sic) -> None:
    assert "A report shows the cases" in sic.refuse("report", "photos-small")
    offered = sic("report", "--help").stdout
    assert "model directory" in offered and "photos" not in offered and "distill" not in offered


@pytest.mark.slow
def test_report_and_figures(single: Saved, tmp_path: Path) -> None:
    out = tmp_path / "a b" / "report.html"
    flags = ["--out", out, "--examples", 1, "--limit", 30, "--figures", tmp_path / "f"]
    said = Sic(apart).json("report", single.folder, *flags)
    assert said["report"] == str(out) and said["bytes"] == out.stat().st_size
    assert said["tried_on"]["name"] == "test images of birds" and said["tried_on"]["images"] == 30
    assert said["overview"]["supports"][0]["norm"] == pytest.approx(single.model.overview().supports[0].norm)
    tree = parse(out.read_text(encoding="utf-8"))
    assert all(line in tree.one("header").text for line in quality_lines(said["tried_on"]))
    assert [Path(file).suffix for file in said["figures"]] == [".pdf"] * len(said["figures"])
    assert all(Path(file).is_file() for file in said["figures"])


@pytest.mark.slow
def test_a_copied_model_has_a_page_without_test_images(sic: Sic, single: Saved, tmp_path: Path) -> None:
    shutil.copytree(single.folder, tmp_path / "copy")
    run = json.loads((tmp_path / "copy" / "run.json").read_text())
    run["data"]["opened_with"]["where"] = str(tmp_path / "gone")
    (tmp_path / "copy" / "run.json").write_text(json.dumps(run))
    done = sic("report", tmp_path / "copy", "--out", tmp_path / "report.html")
    assert "are not at" in done.stderr and "without test images" in done.stderr
    assert "No test images were available" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "gone" in sic.refuse("report", tmp_path / "copy", tmp_path / "gone", "--out", tmp_path / "report.html")
