import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sic.data import birds, drawing
from sic.data.birds import PARTS
from sic.data.drawing import LABELS
from sic.data.layouts.funnybirds import (
    consistent_classes,
    is_funnybirds,
    open_funnybirds,
    part_map,
    without_parts,
    write_funnybirds,
)
from sic.errors import SicError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("funny") / "drawn"
    write_funnybirds(folder, classes=3, train=6, test=1, size=24)
    return folder


def test_what_was_written_is_read(folder: Path) -> None:
    assert is_funnybirds(folder)
    data = open_funnybirds(folder)
    assert (data.name, data.root, data.layout, data.task) == ("drawn", folder, "FunnyBirds", "single")
    assert data.classes == ("bird 0", "bird 1", "bird 2")
    assert [s.id for s in data.splits["train"]] == [f"train/{i // 6}/{i:06d}.png" for i in range(18)]
    assert [(s.id, s.labels) for s in data.splits["test"]] == [(f"test/{i}/{i:06d}.png", (i,)) for i in range(3)]
    assert all(s.path == folder / s.id and s.path.is_file() for split in data.splits.values() for s in split)
    assert all(int(s.id.split("/")[1]) in s.labels for s in data.splits["train"])


def test_training_labels_are_the_consistent_species(folder: Path) -> None:
    """By the parts themselves: a species agrees when drawing it with the same parts removed gives the same bird."""
    classes = json.loads((folder / "classes.json").read_text())
    variants = json.loads((folder / "parts.json").read_text())
    scenes = json.loads((folder / "dataset_train.json").read_text())
    for sample, scene in zip(open_funnybirds(folder).splits["train"], scenes, strict=True):
        expected = []
        for entry in classes:
            looks = {}
            for part in PARTS:
                shown = variants[part][entry["parts"][part]]
                looks[part] = scene[f"{part}_model"] == "placeholder" or (
                    shown == {"model": scene[f"{part}_model"], "color": scene[f"{part}_color"]}
                )
            if all(looks.values()):
                expected.append(entry["class_idx"])
        assert sample.labels == tuple(expected)


def test_consistent_classes_against_brute_force() -> None:
    """All 32 ways to remove parts, from species that differ in few of them."""
    rng = np.random.default_rng(0)
    species = [dict(zip(PARTS, row, strict=True)) for row in rng.integers(0, 2, (12, 5)).tolist()]
    classes = [{"class_idx": i, "parts": parts} for i, parts in enumerate(species)]
    for own, removed in itertools.product(range(12), itertools.product((False, True), repeat=5)):
        scene: dict[str, Any] = {"class_idx": own}
        scene |= {f"{p}_model": "placeholder" if gone else "x" for p, gone in zip(PARTS, removed, strict=True)}
        expected = []
        for i in range(12):
            differing = [p for p in PARTS if species[i][p] != species[own][p]]
            if set(differing) <= {p for p, gone in zip(PARTS, removed, strict=True) if gone}:
                expected.append(i)
        assert consistent_classes(scene, classes) == tuple(expected)


def test_paths_point_at_what_they_say(folder: Path) -> None:
    for sample in open_funnybirds(folder).splits["test"]:
        assert part_map(folder, sample).is_file()
        colours = set(map(tuple, np.asarray(Image.open(part_map(folder, sample))).reshape(-1, 3).tolist()))
        assert colours & set(itertools.chain(*LABELS.values()))
        seen = set()
        for mask in itertools.product((False, True), repeat=5):
            path = without_parts(folder, sample, set(itertools.compress(PARTS, mask)))
            assert path.is_file()
            seen.add(path)
        assert len(seen) == 32
        whole, bare = without_parts(folder, sample, set()), without_parts(folder, sample, set(PARTS))
        assert whole.read_bytes() == sample.path.read_bytes()
        assert bare.name == "body_.png"
        assert without_parts(folder, sample, {"eye", "wing"}).name == "body_beak_foot_tail.png"


def test_a_set_kept_in_part_keeps_its_numbers(folder: Path, tmp_path: Path) -> None:
    part = shutil.copytree(folder, tmp_path / "part", ignore=shutil.ignore_patterns("test*", "dataset_test.json"))
    whole = {s.id: s.labels for s in open_funnybirds(folder).splits["train"]}
    gone = ["train/0/000000.png", "train/1/000007.png", "train/2/000017.png"]
    for name in gone:
        (part / name).unlink()
    data = open_funnybirds(part)
    assert list(data.splits) == ["train"]
    assert {s.id: s.labels for s in data.splits["train"]} == {k: v for k, v in whole.items() if k not in gone}


def test_no_training_image_is_an_error(folder: Path, tmp_path: Path) -> None:
    for name in ("classes.json", "dataset_train.json"):
        shutil.copy(folder / name, tmp_path)
    with pytest.raises(SicError, match="none of the training images"):
        open_funnybirds(tmp_path)


@pytest.mark.parametrize("name", ["classes.json", "dataset_train.json"])
def test_a_damaged_list_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    for other in ("classes.json", "dataset_train.json"):
        shutil.copy(folder / other, tmp_path)
    (tmp_path / name).write_text("[{")
    with pytest.raises(SicError, match=name):
        open_funnybirds(tmp_path)


def test_class_folders_are_not_funnybirds(tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text("[]")
    assert not is_funnybirds(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("birds") / "drawn"
    write_funnybirds(written, classes=3, train=4, test=2, size=48)
    return written


def files(written: Path) -> set[str]:
    return {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "RGB"
        return np.array(image)


def test_the_folder_holds_exactly_the_named_files(written: Path) -> None:
    expected = {"classes.json", "parts.json", "dataset_train.json", "dataset_test.json"}
    expected |= {f"train/{i // 4}/{i:06d}.png" for i in range(12)}
    for i, scene in enumerate(json.loads((written / "dataset_test.json").read_text())):
        name = f"{i // 2}/{i:06d}"
        assert scene["class_idx"] == i // 2
        expected |= {f"test/{name}.png", f"test_part_map/{name}.png"}
        subsets = itertools.product((False, True), repeat=5)
        kept = ["_".join(itertools.compress(("beak", "eye", "foot", "tail", "wing"), mask)) for mask in subsets]
        assert len(kept) == 32
        expected |= {f"test_interventions/{name}/body_{k}.png" for k in kept}
        objects = range(scene["bg_objects"].count(","))
        expected |= {f"test_interventions/{name}/background_interventions/{j}.png" for j in objects}
    assert files(written) == expected
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_pictures_show_the_scenes_of_the_lists(written: Path) -> None:
    for split in ("train", "test"):
        for i, data in enumerate(json.loads((written / f"dataset_{split}.json").read_text())):
            drawn = drawing.render(birds.Scene.from_json(data), 48)
            name = f"{data['class_idx']}/{i:06d}"
            assert (pixels(written / split / f"{name}.png") == drawn.image).all()
            if split == "test":
                assert (pixels(written / "test_part_map" / f"{name}.png") == drawn.part_map).all()


def test_nothing_removed_is_the_test_image(written: Path) -> None:
    for path in (written / "test").rglob("*.png"):
        kept = written / "test_interventions" / path.parent.name / path.stem
        assert (kept / "body_beak_eye_foot_tail_wing.png").read_bytes() == path.read_bytes()
        assert (pixels(kept / "body_.png") != pixels(path)).any()


def test_lists_agree_with_the_classes(written: Path) -> None:
    classes = json.loads((written / "classes.json").read_text())
    parts = json.loads((written / "parts.json").read_text())
    assert [c["class_idx"] for c in classes] == [0, 1, 2]
    assert {part: len(variants) for part, variants in parts.items()} == birds.VARIANTS
    for split in ("train", "test"):
        for scene in json.loads((written / f"dataset_{split}.json").read_text()):
            for part, variant in classes[scene["class_idx"]]["parts"].items():
                shown = {"model": scene[f"{part}_model"], "color": scene[f"{part}_color"]}
                removed = {"model": "placeholder", "color": "placeholder"}
                assert shown == parts[part][variant] or (split == "train" and shown == removed)


def test_test_poses_are_not_training_poses(written: Path) -> None:
    train, test = (json.loads((written / f"dataset_{s}.json").read_text()) for s in ("train", "test"))
    assert not {s["camera_yaw"] for s in train} & {s["camera_yaw"] for s in test}


def test_writing_again_gives_the_same_files(written: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    again = tmp_path / "again"
    again.mkdir()  # an empty folder may be there
    write_funnybirds(
        again, classes=3, train=4, test=2, size=48, interventions=False, progress=lambda *at: seen.append(at)
    )
    assert seen == [(i, 18) for i in range(1, 19)]
    assert files(again) == {name for name in files(written) if not name.startswith("test_interventions")}
    assert all((again / name).read_bytes() == (written / name).read_bytes() for name in files(again))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        write_funnybirds(tmp_path, classes=2, train=1, test=1, size=16)
    assert files(tmp_path) == {"mine.txt"}


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_funnybirds(tmp_path / "birds", classes=2, train=2, test=1, size=16, progress=stop)
    assert not list(tmp_path.iterdir())
