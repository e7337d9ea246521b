"""The XML that Pascal VOC describes an image's objects with; Stanford Dogs uses it too."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


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
    """Width and height of the image, where the file says so."""
    things: tuple[Thing, ...]


def read_annotation(path: Path) -> Annotation:
    """VOC counts pixels from 1 and includes the last one; here a box starts at 0 and ends after its last pixel."""
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
