from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.data import checks
from sic.data.checks import Leak, examine, leakage, leaks, training_leaks
from sic.data.dataset import ImageData, Sample
from sic.data.duplicates import Fingerprint, fingerprint
from sic.data.images import read_image
from tests.data.test_duplicates import picture

CLASSES = ("cat", "dog")


def sample(root: Path, name: str, image: Image.Image, *labels: int, group: str | None = None) -> Sample:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return Sample(name, path, labels, group=group)


def images(root: Path) -> ImageData:
    """Twelve training and four test images without any fault."""
    train = [sample(root, f"train/{i}.png", picture(i), i % 2) for i in range(12)]
    test = [sample(root, f"test/{i}.png", picture(100 + i), i % 2) for i in range(4)]
    return ImageData("images", root, "class folders", CLASSES, {"train": train, "test": test})


def test_good_data_has_no_problems(tmp_path: Path) -> None:
    data = images(tmp_path)
    seen: list[tuple[int, int]] = []
    assert examine(data, lambda done, total: seen.append((done, total))).problems == []
    assert leaks(data, prints_of(data)) == []
    assert seen == [(i, 16) for i in range(1, 17)]


def test_everything_is_listed_at_once(tmp_path: Path) -> None:
    data = images(tmp_path)
    train, test = data.splits["train"], data.splits["test"]
    test.append(sample(tmp_path, "test/same.bmp", picture(3), 1))
    test.append(sample(tmp_path, "test/near.jpg", picture(4).resize((80, 60)), 0))
    train.append(sample(tmp_path, "train/again.tif", picture(5), 1))
    train.append(sample(tmp_path, "train/conflict.png", picture(6), 1))
    train.append(sample(tmp_path, "train/small.png", picture(50, 20, 30), 1))
    train.append(sample(tmp_path, "train/long.png", picture(51, 40, 200), 1))
    (tmp_path / "train/text.png").write_text("no picture")
    train.append(Sample("train/text.png", tmp_path / "train/text.png", (0,)))
    train.append(Sample("train/gone.png", tmp_path / "train/gone.png", (0,)))
    assert examine(data).problems == [
        "train/text.png cannot be used: not an image.",
        "train/gone.png cannot be used: no such file.",
        "train/3.png (train) and test/same.bmp (test) are the same image.",
        "train/4.png (train) and test/near.jpg (test) are nearly the same image.",
        "train/6.png and train/conflict.png are the same image but have the labels cat and dog.",
        "2 images in train are copies of another image in it.",
        "1 image is less than 32 px wide or high: train/small.png (30×20).",
        "1 image is more than 4 times as long as wide: train/long.png (200×40).",
    ]


def test_leaks_between_any_two_splits(tmp_path: Path) -> None:
    data = images(tmp_path)
    data.splits["val"] = [
        sample(tmp_path, "val/0.png", picture(7), 1),
        sample(tmp_path, "val/1.jpg", picture(102), 0),
    ]
    assert leaks(data, prints_of(data)) == [
        Leak("same", ("train", "val"), ("train/7.png", "val/0.png")),
        Leak("near", ("test", "val"), ("test/2.png", "val/1.jpg")),
    ]


def test_copies_of_both_kinds_of_one_picture(tmp_path: Path) -> None:
    data = images(tmp_path)
    data.splits["test"] += [sample(tmp_path, name, picture(3), 1) for name in ("test/same.png", "test/near.jpg")]
    assert leaks(data, prints_of(data)) == [
        Leak("same", ("train", "test"), ("train/3.png", "test/same.png")),
        Leak("near", ("train", "test"), ("train/3.png", "test/near.jpg")),
    ]


def test_a_group_in_two_splits_is_a_leak(tmp_path: Path) -> None:
    """One pair for each group; the name of the group, which may be a patient's, is not said."""
    data = images(tmp_path)
    data.splits = {
        split: [replace(s, group=f"Doe{i % 3 + (split == 'test') * 2}") for i, s in enumerate(samples)]
        for split, samples in data.splits.items()
    }
    found = leaks(data, {})
    assert found == [Leak("group", ("train", "test"), ("train/2.png", "test/0.png"))]
    assert "Doe" not in str(found[0]) and "same group" in str(found[0])


def test_known_fingerprints_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = images(tmp_path)
    data.splits["test"].append(sample(tmp_path, "test/same.png", picture(3), 1))
    everything = [s for samples in data.splits.values() for s in samples]
    prints: dict[Path, Fingerprint] = {s.path: fingerprint(read_image(s.path)) for s in everything}
    monkeypatch.setattr(checks, "read_fingerprints", None)
    assert leaks(data, prints) == [Leak("same", ("train", "test"), ("train/3.png", "test/same.png"))]
    del prints[tmp_path / "test/same.png"]
    assert leaks(data, prints) == []


def test_one_file_listed_twice(tmp_path: Path) -> None:
    """As in a table that names a file in two splits, with two labels."""
    data = images(tmp_path)
    data.splits["test"].append(replace(data.splits["train"][0], labels=(1,)))
    assert examine(data).problems == [
        "train/0.png (train) and train/0.png (test) are the same image.",
        "train/0.png and train/0.png are the same image but have the labels cat and dog.",
    ]


def test_several_labels_in_another_order_are_no_conflict(tmp_path: Path) -> None:
    data = replace(images(tmp_path), task="multi")
    train = data.splits["train"]
    train += [sample(tmp_path, f"train/both{i}.png", picture(60), *labels) for i, labels in enumerate([(0, 1), (1, 0)])]
    assert examine(data).problems == ["1 image in train is a copy of another image in it."]
    train.append(sample(tmp_path, "train/none.png", picture(60)))
    assert "train/both0.png and train/none.png are the same image but have the labels cat and dog and nothing." in (
        examine(data).problems
    )


def test_class_counts(tmp_path: Path) -> None:
    data = images(tmp_path)
    data.classes = ("cat", "dog", "emu", *(f"bird{i}" for i in range(8)))
    train = data.splits["train"]
    train += [replace(train[0], id=f"{i}", path=tmp_path / "none.png") for i in range(40)]
    train.append(sample(tmp_path, "train/emu.png", picture(70), 2))
    problems = [problem for problem in examine(data).problems if "cannot be used" not in problem]
    assert problems == [
        "9 classes have fewer than 5 training images: emu (1), bird0 (0), bird1 (0), bird2 (0), bird3 (0) and 4 more.",
        "The classes are imbalanced: cat has 46 training images, bird7 0.",
    ]


def test_data_without_anything(tmp_path: Path) -> None:
    assert examine(ImageData("none", tmp_path, "class folders", (), {})).problems == []


def test_large_sets_are_read_in_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tiles = [Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(260)]
    train = [sample(tmp_path, f"{i}.bmp", tile, i % 2) for i, tile in enumerate(tiles)]
    (tmp_path / "7.bmp").write_bytes(b"")
    data = ImageData("tiles", tmp_path, "class folders", CLASSES, {"train": train})
    assert examine(data).problems == ["7.bmp cannot be used: empty file."]


def many(root: Path) -> ImageData:
    """Twelve training and 40 test images without any fault."""
    data = images(root)
    test = [sample(root, f"test/{i}.png", picture(200 + i), i % 2) for i in range(40)]
    return replace(data, splits={"train": data.splits["train"], "test": test})


def prints_of(data: ImageData) -> dict[Path, Fingerprint]:
    samples = [sample for split in data.splits.values() for sample in split]
    return {sample.path: fingerprint(read_image(sample.path)) for sample in samples}


def test_few_copies_do_not_stop_a_training(tmp_path: Path) -> None:
    data = many(tmp_path)
    data.splits["test"] += [sample(tmp_path, f"test/{i}.jpg", picture(i), 0) for i in (3, 4)]
    found = leakage(data, prints_of(data))
    assert found.stops is None and found.tainted == {"test": {"test/3.jpg", "test/4.jpg"}} and len(found.leaks) == 2
    assert found.remark is not None and found.remark.startswith(
        "2 of the 42 test images are in training, too (test/3.jpg as train/3.png). Figures are given with and without"
    )


def test_many_copies_stop_a_training(tmp_path: Path) -> None:
    data = many(tmp_path)
    data.splits["test"] += [sample(tmp_path, f"test/{i}.jpg", picture(i), 0) for i in (3, 4, 5)]
    found = leakage(data, prints_of(data))
    assert (
        found.stops is not None and "3 of the 43 test images are in training, too, and the limit is 5%" in found.stops
    )
    assert "the first of 3 such pairs" in found.stops and found.remark is None


def test_a_shared_group_stops_a_training_and_taints_all_its_images(tmp_path: Path) -> None:
    data = many(tmp_path)
    for split, places in (("train", [0]), ("test", [5, 6])):
        for place in places:
            data.splits[split][place] = replace(data.splits[split][place], group="Doe")
    found = leakage(data, {})
    assert found.stops is not None and "belong to the same group" in found.stops and "Doe" not in found.stops
    assert found.tainted == {"test": {"test/5.png", "test/6.png"}}


def test_training_images_that_leak_are_all_found(tmp_path: Path) -> None:
    """Two training images are copies of one test image, and one is of its group."""
    data = many(tmp_path)
    data.splits["train"].append(sample(tmp_path, "train/again.jpg", picture(3), 1))
    data.splits["test"] += [sample(tmp_path, "test/copy.jpg", picture(3), 0, group="Doe")]
    data.splits["train"][8] = replace(data.splits["train"][8], group="Doe")
    leaking = training_leaks(data, prints_of(data))
    assert leaking == {"train/3.png", "train/again.jpg", "train/8.png"}
    kept = [sample for sample in data.splits["train"] if sample.id not in leaking]
    assert leakage(replace(data, splits=data.splits | {"train": kept}), prints_of(data)).leaks == []
