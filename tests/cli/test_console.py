"""Text from outside is printed as it is: no markup, no emoji codes, no escape sequences."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.progress import Progress
from rich.table import Table

from sic.cli import console
from sic.cli.console import CONTROL, Results, Talker, harmless, print_json, styled
from tests.cli.conftest import Sic
from tests.test_directory import SIZE, model

NAMES = ["lesion [benign]", "lesion [malignant]", "a[/b]:warning:\x1b[2J\x9b31m\x07\r\u202ec"]
SHOWN = ["lesion [benign]", "lesion [malignant]", r"a[/b]:warning:\x1b[2J\x9b31m\x07\r\u202ec"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What both consoles write, as to a terminal without colours."""
    screen = io.StringIO()
    for name in ("OUT", "ERR"):
        shown = console._Console(file=screen, force_terminal=True, no_color=True, width=200)
        monkeypatch.setattr(console, name, shown)
    return screen


def test_cells_titles_columns_and_lines(terminal: io.StringIO) -> None:
    for name, shown in zip(NAMES, SHOWN, strict=True):
        table = Table("class", f"column {name}", title=f"title {name}")
        table.add_row(name, styled(f"styled {name}", "red"))
        console.OUT.print(table)
        console.OUT.print(f"line {name}")
        console.OUT.print(styled(f"words {name}", "yellow"))
        text = terminal.getvalue()
        for where in ("title", "column", "styled", "line", "words"):
            assert f"{where} {shown}" in text
    plain = terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[3m", "").replace("\x1b[0m", "")  # rich's own
    assert not CONTROL.search(plain)


def test_sentences_and_bars(terminal: io.StringIO) -> None:
    with Talker() as talker:
        talker.bars = Progress(*talker.bars.columns, console=console.ERR, auto_refresh=False)
        for name in NAMES:
            talker.say(f"said {name}")
            talker.warn(f"warned {name}")
            talker.advance(f"task {name}", 1, 2, f"note {name}")
        console.ERR.print(talker.bars.get_renderable())
    for shown in SHOWN:
        for where in ("said", "! warned", "task", "note"):
            assert f"{where} {shown}" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue() and "\x9b" not in terminal.getvalue()


def test_a_log_shows_the_progress_of_a_task_that_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as a second training; not every step of it."""
    with Talker() as talker:
        for _ in range(2):
            for step in range(1, 41):
                talker.advance("training", step, 40)
    lines = capsys.readouterr().err.splitlines()
    assert lines == 2 * [f"training: {step}/40" for step in (1, *range(4, 41, 4))]


@pytest.mark.parametrize("as_json", [False, True])
def test_results_and_json(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    results = Results({"model": NAMES[2]}, "images", as_json)
    results.add({"image": NAMES[2]}, f"text {NAMES[2]}")
    results.close()
    text = capsys.readouterr().out
    assert not CONTROL.search(text)
    if as_json:
        assert json.loads(text) == {"model": NAMES[2], "images": [{"image": NAMES[2]}]}
    else:
        assert text == f"text {SHOWN[2]}\n"
    print_json({"name": NAMES})
    text = capsys.readouterr().out
    assert not CONTROL.search(text) and json.loads(text) == {"name": NAMES}


def test_other_writing_is_left_as_it_is() -> None:
    for text in ("möwe", "カワセミ", "नीलकंठ", "שלדג\u200f", "a\tb\nc", "👩‍🔬"):
        assert harmless(text) == text


def test_classes_in_brackets_are_told_apart(sic: Sic, tmp_path: Path) -> None:
    saved = model()
    saved.config.classes = NAMES
    saved.save(tmp_path / "model")
    folder = tmp_path / "a["  # `a[/b].png` closes a tag that is not open
    folder.mkdir()
    generator = np.random.default_rng(0)
    files = [folder / "b].png", *(tmp_path / f"{i}\x1b[31m.png" for i in range(12))]
    for file in files:
        Image.fromarray(generator.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(file)
    answers = sic.json("predict", tmp_path / "model", *files)["images"]
    labels = {image["labels"][0] if image["similar_case"] else None for image in answers}
    text = sic("predict", tmp_path / "model", *files).stdout
    assert "a[/b].png" in text and not CONTROL.search(text)
    for name, shown in zip(NAMES, SHOWN, strict=True):
        assert (name in labels) <= (shown in text)
    assert sum(shown in text for shown in SHOWN) >= 2
    words = sic.refuse("predict", tmp_path / "model\x1b[2J", files[0])
    assert r"model\x1b[2J" in words and not CONTROL.search(words)
    words = sic.refuse("explain", tmp_path / "model", files[0], "--class", "[/x]\x9b", "--out", tmp_path / "why.png")
    assert all(shown in words for shown in SHOWN) and not CONTROL.search(words)
