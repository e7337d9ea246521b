"""Pascal VOC 2007 and 2012, main task: 20 classes, several labels per image, and boxes.

The official lists give the splits: `ImageSets/Main/train.txt`, `val.txt` and, for 2007, `test.txt`.

Difficult objects are treated as in the official classification task, where the lists `Main/<class>_train.txt` hold 1
(present), -1 (absent) and 0 (only difficult objects, ignored). A class is a label of an image if at least one of its
objects is not difficult. Boxes of difficult objects are kept and marked; `Sample.unsure` lists the classes that the
official metrics ignore for an image. An image without objects, or with difficult ones only, has no label.
"""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from sic.data.boxes import inside, size_of
from sic.data.dataset import Box, ImageData, Sample, Skipped, require_training_images
from sic.errors import SicError

# fmt: off
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on
SPLITS = ("train", "val", "test")


def is_voc(root: Path) -> bool:
    """Read the folder of one year, or the VOCdevkit with it."""
    return bool(_years(root))


def _years(root: Path) -> list[Path]:
    inner = sorted(root.glob("VOC20[0-9][0-9]"))
    return [year for year in (root, *inner) if all((year / sub).is_dir() for sub in ("Annotations", "JPEGImages"))]


def open_voc(root: Path) -> ImageData:
    years = _years(root)
    if not years:
        raise SicError(f"{root} is not Pascal VOC; give the folder with Annotations, ImageSets and JPEGImages.")
    if len(years) > 1:
        raise SicError(f"{root} holds {' and '.join(year.name for year in years)}; give one of these folders.")
    reader = _Reader(years[0])
    lists = {split: reader.root / "ImageSets" / "Main" / f"{split}.txt" for split in SPLITS}
    if not lists["train"].is_file():
        raise SicError(f"{lists['train']} is missing; it is part of Pascal VOC and lists the training images.")
    splits = {split: reader.split(file) for split, file in lists.items() if file.is_file()}
    name = reader.root.resolve().name
    return require_training_images(
        ImageData(
            name,
            reader.root,
            f"Pascal VOC {name.removeprefix('VOC')}" if name.startswith("VOC2") else "Pascal VOC",
            CLASSES,
            {split: samples for split, samples in splits.items() if samples},
            task="multi",
            skipped=reader.skipped,
            problems=reader.problems,
        )
    )


class UnreadableAnnotation(Exception):
    """The reason why an annotation cannot be used, in a few words."""


@dataclass(frozen=True)
class Thing:
    """One object of an annotation; `corners`: left, top, right, bottom."""

    name: str
    corners: tuple[float, float, float, float]
    difficult: bool


@dataclass(frozen=True)
class Annotation:
    size: tuple[int, int] | None
    """Width and height of the image, if the file has them."""
    things: tuple[Thing, ...]


def read_annotation(path: Path) -> Annotation:
    """Read an annotation. VOC counts pixels from 1 and includes the last one; our boxes start at 0 and exclude it."""
    try:
        tree = ElementTree.parse(path).getroot()
        return Annotation(_size(tree), tuple(_thing(node) for node in tree.findall("object")))
    except FileNotFoundError:
        raise UnreadableAnnotation("no such file") from None
    except ElementTree.ParseError as error:
        raise UnreadableAnnotation(f"not valid XML ({error})") from None
    except (OSError, UnicodeError, ValueError, OverflowError) as error:
        raise UnreadableAnnotation(str(error)) from None


def _size(tree: ElementTree.Element) -> tuple[int, int] | None:
    size = tree.find("size")
    if size is None:
        return None
    width, height = (int(_number(size, side)) for side in ("width", "height"))
    return (width, height) if width > 0 and height > 0 else None  # some tools write 0 for "not known"


def _thing(node: ElementTree.Element) -> Thing:
    name, box = (node.findtext("name") or "").strip(), node.find("bndbox")
    if not name or box is None:
        raise ValueError("an object without a name or a bndbox")
    left, top, right, bottom = (_number(box, corner) for corner in ("xmin", "ymin", "xmax", "ymax"))
    difficult = (node.findtext("difficult") or "0").strip() not in ("", "0")
    return Thing(name, (left - 1, top - 1, right, bottom), difficult)


def _number(node: ElementTree.Element, tag: str) -> float:
    text = node.findtext(tag)
    if text is None:
        raise ValueError(f"a {node.tag} without {tag}")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{tag} is not a number ({text.strip()!r})") from None


class _Reader:
    """Reads lists and collects their problems."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.skipped: list[Skipped] = []
        self.problems: list[str] = []
        self.listed: dict[str, str] = {}

    def split(self, file: Path) -> list[Sample]:
        """The samples of one list; none for the test images of 2012, which have no annotations."""
        names = [line.split()[0] for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        if file.stem == "test" and not any(self._annotation(name).is_file() for name in names):
            return []
        return [sample for name in names if (sample := self.sample(name, file.name)) is not None]

    def sample(self, name: str, listed_in: str) -> Sample | None:
        id = f"JPEGImages/{name}.jpg"
        if name in self.listed:
            self.skipped.append(Skipped(f"{id} in {listed_in}", f"{self.listed[name]} lists it already"))
            return None
        self.listed[name] = listed_in
        if not (self.root / id).is_file():
            self.skipped.append(Skipped(id, f"{listed_in} lists it but it does not exist"))
            return None
        file = self._annotation(name)
        try:
            annotation = read_annotation(file)
        except UnreadableAnnotation as reason:
            self.skipped.append(Skipped(id, f"Annotations/{file.name}: {reason}"))
            return None
        boxes = self._boxes(annotation, file)
        if annotation.things and not boxes:
            self.skipped.append(Skipped(id, f"Annotations/{file.name} names none of the 20 classes"))
            return None
        labels = tuple(sorted({box.label for box in boxes if not box.difficult}))
        kept, problems = inside(boxes, annotation.size or size_of(self.root / id), id)
        self.problems += problems
        return Sample(id, self.root / id, labels, kept)

    def _boxes(self, annotation: Annotation, file: Path) -> list[Box]:
        strangers = sorted({thing.name for thing in annotation.things if thing.name not in CLASSES})
        self.problems += [
            f"Annotations/{file.name} names {name!r}, which is none of the 20 classes of Pascal VOC; "
            "the object is ignored."
            for name in strangers
        ]
        return [
            Box(CLASSES.index(thing.name), *thing.corners, thing.difficult)
            for thing in annotation.things
            if thing.name in CLASSES
        ]

    def _annotation(self, name: str) -> Path:
        return self.root / "Annotations" / f"{name}.xml"
