import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.data import birds, birds_layout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("birds") / "drawn"
    birds_layout.write(folder, classes=3, train=4, test=2, size=48)
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "RGB"
        return np.array(image)


def test_the_folder_holds_exactly_the_named_files(folder: Path) -> None:
    expected = {"classes.json", "parts.json", "dataset_train.json", "dataset_test.json"}
    expected |= {f"train/{i // 4}/{i:06d}.png" for i in range(12)}
    for i, scene in enumerate(json.loads((folder / "dataset_test.json").read_text())):
        name = f"{i // 2}/{i:06d}"
        assert scene["class_idx"] == i // 2
        expected |= {f"test/{name}.png", f"test_part_map/{name}.png"}
        subsets = itertools.product((False, True), repeat=5)
        kept = ["_".join(itertools.compress(("beak", "eye", "foot", "tail", "wing"), mask)) for mask in subsets]
        assert len(kept) == 32
        expected |= {f"test_interventions/{name}/body_{k}.png" for k in kept}
        objects = range(scene["bg_objects"].count(","))
        expected |= {f"test_interventions/{name}/background_interventions/{j}.png" for j in objects}
    assert files(folder) == expected
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_pictures_show_the_scenes_of_the_lists(folder: Path) -> None:
    for split in ("train", "test"):
        for i, data in enumerate(json.loads((folder / f"dataset_{split}.json").read_text())):
            drawn = birds.render(birds.Scene.from_json(data), 48)
            name = f"{data['class_idx']}/{i:06d}"
            assert (pixels(folder / split / f"{name}.png") == drawn.image).all()
            if split == "test":
                assert (pixels(folder / "test_part_map" / f"{name}.png") == drawn.part_map).all()


def test_nothing_removed_is_the_test_image(folder: Path) -> None:
    for path in (folder / "test").rglob("*.png"):
        kept = folder / "test_interventions" / path.parent.name / path.stem
        assert (kept / "body_beak_eye_foot_tail_wing.png").read_bytes() == path.read_bytes()
        assert (pixels(kept / "body_.png") != pixels(path)).any()


def test_lists_agree_with_the_classes(folder: Path) -> None:
    classes = json.loads((folder / "classes.json").read_text())
    parts = json.loads((folder / "parts.json").read_text())
    assert [c["class_idx"] for c in classes] == [0, 1, 2]
    assert {part: len(variants) for part, variants in parts.items()} == birds.VARIANTS
    for split in ("train", "test"):
        for scene in json.loads((folder / f"dataset_{split}.json").read_text()):
            for part, variant in classes[scene["class_idx"]]["parts"].items():
                shown = {"model": scene[f"{part}_model"], "color": scene[f"{part}_color"]}
                removed = {"model": "placeholder", "color": "placeholder"}
                assert shown == parts[part][variant] or (split == "train" and shown == removed)


def test_test_poses_are_not_training_poses(folder: Path) -> None:
    train, test = (json.loads((folder / f"dataset_{s}.json").read_text()) for s in ("train", "test"))
    assert not {s["camera_yaw"] for s in train} & {s["camera_yaw"] for s in test}


def test_writing_again_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    again = tmp_path / "again"
    again.mkdir()  # an empty folder may be there
    birds_layout.write(
        again, classes=3, train=4, test=2, size=48, interventions=False, progress=lambda *at: seen.append(at)
    )
    assert seen == [(i, 18) for i in range(1, 19)]
    assert files(again) == {name for name in files(folder) if not name.startswith("test_interventions")}
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in files(again))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        birds_layout.write(tmp_path, classes=2, train=1, test=1, size=16)
    assert files(tmp_path) == {"mine.txt"}


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        birds_layout.write(tmp_path / "birds", classes=2, train=2, test=1, size=16, progress=stop)
    assert not list(tmp_path.iterdir())
