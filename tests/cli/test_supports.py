"""`sic supports` from the outside, in this process: opening a clinic is cheap, starting torch is not."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from sic.cli.main import main
from sic.clinic import Clinic, Edit
from tests.clinic.colours import draw, make


class Command:
    """`sic supports MODEL …`."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.model, self.monkeypatch, self.capsys = model, monkeypatch, capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        self.monkeypatch.setattr(sys, "argv", ["sic", "supports", str(self.model), *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        said = self.capsys.readouterr()
        assert (end.value.code or 0) == code, said.err
        return said.out if code == 0 else said.err

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("supports") / "my images")


@pytest.fixture
def supports(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    return Command(make(tmp_path / "a model", images), monkeypatch, capsys)


def test_a_bad_case_comes_and_goes(supports: Command) -> None:
    """Put a wrong image among the supports: accuracy falls, the check finds it, and dropping or undoing helps."""
    first = supports.json("list")["supports"]
    assert len(first) == 8 and first[6]["label"] == "yellow"
    assert supports.json("check")["findings"] == []
    assert "shows red, not yellow; use --force" in supports("replace", 6, "red/11.png", code=1)
    preview = supports.json("replace", 6, "red/11.png", "--force", "--preview")
    assert preview["saved"] is False and supports.json("list")["supports"] == first
    bad = supports.json("replace", 6, "red/11.png", "--force")
    assert {**bad, "saved": False} == preview
    assert bad["after"]["accuracy"] < bad["before"]["accuracy"]
    assert bad["to_wrong"] and set(bad["to_wrong"]) <= {flip["id"] for flip in bad["flips"]}
    (finding,) = [one for one in supports.json("check", "--quick")["findings"] if one["severity"] == "serious"]
    assert finding["supports"] == [6]
    said = supports("check")
    assert "A support of the wrong class" in said and f"→ {finding['command']}" in said
    assert "shows red" in supports("list")
    dropped = supports.json("drop", 6)
    assert dropped["after"]["accuracy"] == bad["before"]["accuracy"]
    assert supports.json("check")["findings"] == []
    assert len(supports.json("list")["supports"]) == 7
    restored = supports.json("undo", 2)
    assert restored["after"] == bad["before"]
    assert supports.json("list")["supports"] == first
    edits = supports.json("history")["edits"]
    assert [(edit["action"], bool(edit["undone"])) for edit in edits] == [("replace", True), ("drop", True)]
    assert "replace (forced)" in supports("history")


def test_what_people_read(supports: Command) -> None:
    assert "were never edited" in supports("history")
    second = supports.json("list")["supports"][1]["source"]
    shown = supports("show", 0)
    assert "blue #1 is support 0" in shown and "Most typical for blue and no support: blue/" in shown
    said = supports("replace", 1, "red/04.png", "--force", "--preview")
    assert f"- {second}" in said and "+ red/04.png" in said and "Nothing was saved." in said
    assert "now wrong: " in said
    said = supports("pin", 0)
    assert "to undo it: sic supports" in said
    assert "pinned" in supports("list") and "(pinned)" in supports("show", 0)
    supports("pin", 0, "--off")
    assert "the same images as before" in supports("reselect", "green")
    assert len(supports.json("reselect", "green", "--supports", 4)["added"]) == 2
    assert "0 findings" not in supports("check") and "Nothing found in 10 supports" in supports("check", "--quick")


def test_json_says_where_the_images_are(supports: Command, images: Path) -> None:
    shown = supports.json("show", 3)
    assert shown["support"]["label"] == "green"
    assert Path(shown["candidates"][0]["path"]).is_relative_to(images)
    assert {"id", "path", "split", "truth", "evidence", "share", "decisive"} == set(shown["relying"][0])


def test_one_sentence_for_every_mistake(supports: Command, images: Path, tmp_path: Path) -> None:
    for words, sentence in (
        (["drop", 99], "There is no support 99"),
        (["drop", "9" * 5000], "No support is"),
        (["show", "no.png"], "No support is 'no.png'"),
        (["replace", 0, "nothing.png"], "No training image"),
        (["reselect", "pink"], "no class 'pink'"),
        (["undo"], "There is nothing to undo"),
    ):
        said = supports(*words, code=1)
        assert said.splitlines()[-1].startswith("sic: ") and sentence in said
    images.rename(images.with_name("moved"))
    try:
        assert "say where they are: --data PATH" in supports("list", code=1)
        assert len(supports.json("list", "--data", images.with_name("moved"))["supports"]) == 8
        supports("replace", 1, "red/04.png", "--force", "--data", images.with_name("moved"))
        findings = supports.json("check", "--data", images.with_name("moved"))["findings"]
        assert "--data" in findings[0]["command"]
    finally:
        images.with_name("moved").rename(images)


@pytest.mark.parametrize("edits", [[{}], [{"action": "drop"}], [{"what": 1}]])
def test_a_damaged_list_of_edits_is_one_sentence(supports: Command, edits: list[dict[str, Any]]) -> None:
    supports("drop", 0)
    file = supports.model / "config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["edits"] = [{**content["edits"][0], "removed": 7}] if edits == [{}] else edits
    file.write_text(json.dumps(content), encoding="utf-8")
    for words in (["history"], ["undo"]):
        assert "The list of edits in" in supports(*words, code=1)


def test_two_commands_at_once_do_not_drop_two_supports_by_one_number(supports: Command) -> None:
    """Both were started when number 0 was still the first one's image."""
    first, second = (info["source"] for info in supports.json("list")["supports"][:2])
    between, others = supports.monkeypatch, [0, 1]

    def open_after_the_other(*arguments: Any) -> Any:
        between.undo()
        Clinic(supports.model).apply(Edit.drop(others.pop(0)))
        return Clinic(*arguments)

    between.setattr("sic.clinic.Clinic", open_after_the_other)
    said = supports("drop", 0, code=1)
    assert "numbers may have changed; name the support by its image" in said
    left = [info["source"] for info in supports.json("list")["supports"]]
    assert first not in left and second in left
    between.setattr("sic.clinic.Clinic", open_after_the_other)
    assert supports.json("pin", second)["saved"]  # by its permanent name


@pytest.mark.slow
def test_a_model_that_was_really_trained(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its record is understood: reselecting finds what training found, and the figures are those it reached."""
    out, said = trained
    supports = Command(shutil.copytree(out, tmp_path / "copy"), monkeypatch, capsys)
    for name in ("bird 0", "bird 3"):
        assert supports.json("reselect", name)["labels"] == []
    dropped = supports.json("drop", 0)
    assert dropped["before"]["accuracy"] == pytest.approx(said["figures"]["validation"]["accuracy"])
    assert supports.json("undo")["after"] == dropped["before"]
    assert (supports.model / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
