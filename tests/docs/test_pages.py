"""The documentation says nothing that is not there: links, pictures, commands and flags."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main

from sic.cli.main import app

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *DOCS]
LARGEST = 150_000
"""Bytes of a picture."""
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """Every `sic …` that a page shows, and whether it is whole: those within a sentence may leave arguments out."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if (said := line.strip().removeprefix("$ ")).startswith("sic "):
                yield said, True
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        if code.startswith("sic "):
            yield code, False


def parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Read the words as the command line would, without running anything; raises where they mean nothing."""
    context = command.make_context(command.name, words, parent)
    if hasattr(command, "commands"):
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(inner, rest, context)


def refusal(said: str, whole: bool) -> str | None:
    """Why a command line would be refused; None where it would not be."""
    try:
        parse(typer.main.get_command(app), shlex.split(said, comments=True)[1:])
    except Exception as error:
        # typer's own classes, which it may take from click or bring along
        kinds = {kind.__name__ for kind in type(error).__mro__}
        unfinished = kinds & {"MissingParameter", "NoArgsIsHelpError"}
        if "Exit" in kinds or (unfinished and not whole):
            return None
        return f"{said}: {getattr(error, 'message', error)}"
    return None


@by_name
def test_commands_and_flags_exist(page: Path) -> None:
    assert [words for said, whole in commands(page.read_text()) if (words := refusal(said, whole))] == []


def flags(command: Any) -> set[str]:
    """All that a command, and those below it, take."""
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return own.union(*(flags(inner) for inner in getattr(command, "commands", {}).values()))


@by_name
def test_flags_named_in_sentences_exist(page: Path) -> None:
    named = set(re.findall(r"`(--[\w-]*\w)[^`\n]*`", BLOCK.sub("", page.read_text())))
    assert named - flags(typer.main.get_command(app)) - {"--help"} == set()


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        ("sic trian photos/", True),
        ("sic train photos/ --epoch-number 3", True),
        ("sic explain runs/photos", True),
        ("sic supports runs/photos chck", True),
        ("sic verify --quick", False),
        ("sic train photos/ --size huge", True),
    ],
)
def test_what_does_not_exist_is_noticed(said: str, whole: bool) -> None:
    assert refusal(said, whole) is not None


def test_commands_are_found() -> None:
    text = "```\nsic train a/ \\\n  --epochs 3  # why\n```\nand `sic verify`, not `sick`.\n```python\nx = 'sic'\n```"
    assert list(commands(text)) == [("sic train a/    --epochs 3  # why", True), ("sic verify", False)]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_map_of_the_code_names_every_room() -> None:
    named = set(re.findall(r"`(\w+(?:\.py|/))`", (ROOT / "CONTRIBUTING.md").read_text()))
    package = ROOT / "src" / "sic"
    rooms = {f"{init.parent.name}/" for init in package.glob("*/__init__.py")}
    modules = {file.name for file in package.glob("*.py") if not file.name.startswith("__")}
    assert rooms | modules <= named


@by_name
def test_links_and_pictures_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in targets:
        parts = urlsplit(target)
        if parts.scheme:
            continue
        file = page if not parts.path else page.parent / parts.path
        assert file.exists(), target
        if parts.fragment:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert parts.fragment in anchors, target


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.png")), ids=lambda picture: picture.name)
def test_pictures_are_small_and_used(picture: Path) -> None:
    assert picture.stat().st_size <= LARGEST
    assert any(picture.name in page.read_text() for page in PAGES)


@pytest.mark.slow
def test_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {page.stem for page in DOCS} <= {page.stem for page in pages}
    loading = re.compile(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="?((?:https?:)?//[^">\s]+)')
    assert {page.name: found for page in pages if (found := loading.findall(page.read_text()))} == {}
    assert "predict_many" in (tmp_path / "api.html").read_text()
