import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import sic.data
from sic.data.layouts import funnybirds
from sic.errors import SicError
from sic.files import cache_folder


def class_folders(root: Path) -> Path:
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(root / name / "1.png")
    return root


def tiny_birds(folder: Path) -> Path:
    """The layout by hand: two species, one training image each."""
    parts = dict.fromkeys(("beak", "eye", "foot", "tail", "wing"), 0)
    classes = [{"class_idx": i, "parts": {**parts, "beak": i}} for i in range(2)]
    scenes = [{"class_idx": i, **{f"{part}_model": "x" for part in parts}} for i in range(2)]
    folder.mkdir(parents=True)
    (folder / "classes.json").write_text(json.dumps(classes))
    (folder / "dataset_train.json").write_text(json.dumps(scenes))
    for i in range(2):
        (folder / "train" / str(i)).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder / "train" / str(i) / f"{i:06d}.png")
    return folder


def test_layouts_are_recognised(tmp_path: Path) -> None:
    assert sic.data.open(class_folders(tmp_path / "plain")).layout == "class folders"
    for split in ("train", "test"):
        class_folders(tmp_path / "split" / split)
    assert sic.data.open(str(tmp_path / "split")).layout == "train/val/test folders"
    assert sic.data.open(tiny_birds(tmp_path / "funny")).layout == "FunnyBirds"


def test_missing_paths_and_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SicError, match="does not exist"):
        sic.data.open(tmp_path / "nowhere")
    (tmp_path / "images.zip").write_text("zip")
    with pytest.raises(SicError, match=r"images\.zip is a file"):
        sic.data.open(tmp_path / "images.zip")


def test_a_layout_can_be_named(tmp_path: Path) -> None:
    folder = tiny_birds(tmp_path / "funny")
    with pytest.raises(SicError, match="holds"):
        sic.data.open(tmp_path, layout="folders")
    assert sic.data.open(folder, layout="funnybirds").layout == "FunnyBirds"
    with pytest.raises(
        SicError,
        match="--layout vco does not exist; choose from funnybirds, voc, cub, dogs, rsna, manifest, shards, folders",
    ):
        sic.data.open(folder, layout="vco")
    for name in ("voc", "cub", "dogs", "rsna", "manifest"):
        with pytest.raises(SicError, match=str(folder)):
            sic.data.open(folder, layout=name)


def photos(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(root / name)
    return root


XRAYS = (
    "train/ill/person1_virus_6.png",
    "train/ill/person1_virus_7.png",
    "train/well/IM-0001-2.png",
    "test/ill/person1_9.png",
)


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        (r"person\d+", ["person1", "person1", None, "person1"]),
        (r"person(\d+)|IM-(\d+)", ["1", "1", "0001", "1"]),
        (r"/(?P<who>[^/_]+)[^/]*$", ["person1", "person1", "IM-0001-2.png", "person1"]),
    ],
)
def test_groups_are_found_in_the_names(tmp_path: Path, pattern: str, groups: list[str | None]) -> None:
    data = sic.data.open(photos(tmp_path, *XRAYS), group=pattern)
    assert [sample.group for samples in data.splits.values() for sample in samples] == groups


def test_a_pattern_that_is_wrong_or_finds_nothing_is_an_error(tmp_path: Path) -> None:
    photos(tmp_path, *XRAYS)
    with pytest.raises(SicError, match=r"--group 'person\(' is not a regular expression"):
        sic.data.open(tmp_path, group="person(")
    with pytest.raises(SicError, match=r"--group 'patient' matches no image path, such as train/ill/person1_virus_6"):
        sic.data.open(tmp_path, group="patient")


def test_classes_that_differ_in_case_only_are_a_problem(tmp_path: Path) -> None:
    photos(tmp_path, "Cat/1.png", "cat/1.png", "dog/1.png")
    data = sic.data.open(tmp_path)
    if len(data.classes) == 3:  # some file systems cannot hold both
        assert data.problems == [
            "The names of the classes 'Cat' and 'cat' differ in case only; "
            "if they are the same class, give them one name."
        ]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where the built-in birds were drawn: something tiny takes the place of the drawing."""
    drawn: list[Path] = []

    def write(folder: Path, **_: Any) -> None:
        drawn.append(folder)
        tiny_birds(folder)

    monkeypatch.setattr(funnybirds, "write_funnybirds", write)
    monkeypatch.setenv("SIC_CACHE", str(tmp_path / "cache" / "deep"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return drawn


def test_built_in_birds_are_drawn_once(calls: list[Path], tmp_path: Path) -> None:
    first = sic.data.open("birds")
    assert first.layout == "FunnyBirds" and first.root.parent == tmp_path / "cache" / "deep"
    assert first.root.name.startswith("birds-")
    second = sic.data.open("birds")
    assert calls == [first.root] and second == first


def test_a_folder_called_birds_is_opened_as_a_path(calls: list[Path]) -> None:
    class_folders(Path("birds"))
    assert sic.data.open("birds").classes == ("bird 0", "bird 1")
    assert sic.data.open("./birds").classes == sic.data.open(Path("birds")).classes == ("a", "b")
    assert len(calls) == 1


def test_the_drawing_reports_its_progress(calls: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path, progress: Any) -> None:
        progress(1, 2)
        tiny_birds(folder)

    monkeypatch.setattr(funnybirds, "write_funnybirds", write)
    seen: list[tuple[int, int]] = []
    sic.data.open("birds", lambda *at: seen.append(at))
    assert seen == [(1, 2)]


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIC_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("SIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "sic"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sic"
