"""CUB-200-2011: 200 species of birds, one box per image, points for parts, official training and test splits."""

from collections import defaultdict
from pathlib import Path

from sic.data.boxes import inside, size_of
from sic.data.dataset import Box, ImageData, Point, Sample, Skipped, require_training_images
from sic.errors import SicError

LISTS = ("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt")
PARTS, PLACES = "parts/parts.txt", "parts/part_locs.txt"


def is_cub(root: Path) -> bool:
    return all((root / name).is_file() for name in LISTS)


def open_cub(root: Path) -> ImageData:
    """Read CUB-200-2011, with boxes if there is a `bounding_boxes.txt` and with points if there is a folder `parts`.

    The class `001.Black_footed_Albatross` is called `Black footed Albatross`, the part `left eye` is called `eye`.
    """
    files, labels, names, training = (_read(root / name) for name in LISTS)
    corners = _read(root / "bounding_boxes.txt") if (root / "bounding_boxes.txt").is_file() else {}
    points = _points(root) if (root / PARTS).is_file() and (root / PLACES).is_file() else {}
    numbers = sorted(names, key=int)
    position = {number: index for index, number in enumerate(numbers)}
    classes = tuple(names[number][0].partition(".")[2].replace("_", " ") or names[number][0] for number in numbers)
    splits: dict[str, list[Sample]] = {"train": [], "test": []}
    skipped, problems = [], []
    for number, (file,) in files.items():
        id, path = f"images/{file}", root / "images" / file
        label = position.get(labels.get(number, ("",))[0])
        split = {"1": "train", "0": "test"}.get(training.get(number, ("",))[0])
        if label is None:
            skipped.append(Skipped(id, "image_class_labels.txt does not assign it a class of classes.txt"))
        elif split is None:
            skipped.append(Skipped(id, "train_test_split.txt has neither 1 (training) nor 0 (test) for it"))
        elif not path.is_file():
            skipped.append(Skipped(id, "images.txt lists it but it does not exist"))
        else:
            boxes, odd = inside(_boxes(corners.get(number), label, root), size_of(path), id)
            problems += odd
            splits[split].append(Sample(id, path, (label,), boxes, points=tuple(points.get(number, ()))))
    splits = {split: samples for split, samples in splits.items() if samples}
    name = root.resolve().name
    return require_training_images(
        ImageData(name, root, "CUB-200-2011", classes, splits, skipped=skipped, problems=problems)
    )


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SicError(f"{path} cannot be read ({error}).") from None


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    """The words of each line by its first word, a number."""
    lines = [line.split() for line in _lines(path)]
    width = 5 if path.name == "bounding_boxes.txt" else 2
    for number, words in enumerate(lines, 1):
        if len(words) != width or not words[0].isdecimal():
            raise SicError(
                f"Line {number} of {path} is not in the format of CUB-200-2011: a number and {width - 1} more words."
            )
    return {words[0]: tuple(words[1:]) for words in lines}


def _boxes(words: tuple[str, ...] | None, label: int, root: Path) -> list[Box]:
    if words is None:
        return []
    try:
        left, top, width, height = map(float, words)
    except ValueError:
        raise SicError(f"{root / 'bounding_boxes.txt'} holds {' '.join(words)!r}, which is not four numbers.") from None
    return [Box(label, left, top, left + width, top + height)]


def _points(root: Path) -> dict[str, list[Point]]:
    """The visible parts by the number of their image; the left and the right eye, leg or wing are the same part."""
    parts = {}
    for row, line in enumerate(_lines(root / PARTS), 1):
        number, *words = line.split()
        name = " ".join(word for word in words if word not in ("left", "right"))
        if not number.isdecimal() or not name:
            raise SicError(f"Line {row} of {root / PARTS} is not in the format of CUB-200-2011: a number and a name.")
        parts[number] = name
    points = defaultdict(list)
    for row, line in enumerate(_lines(root / PLACES), 1):
        try:
            image, part, x, y, visible = line.split()
            point = Point(parts[part], float(x), float(y))
            if int(visible):
                points[image].append(point)
        except (KeyError, ValueError):
            raise SicError(
                f"Line {row} of {root / PLACES} is not in the format of CUB-200-2011: the number of an image, that of "
                f"a part in {PARTS}, x, y, and whether the part is visible (1 or 0)."
            ) from None
    return points
