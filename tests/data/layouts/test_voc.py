"""Pascal VOC, in miniature: the XML is as the devkit writes it."""

from pathlib import Path

import pytest
from PIL import Image

import sic.data
from sic.data.dataset import Box, Skipped, UnusableData
from sic.data.layouts.voc import CLASSES, open_voc
from sic.errors import SicError

Thing = tuple[str, tuple[int, int, int, int], int]

CAT: Thing = ("cat", (1, 1, 10, 20), 0)
DOG: Thing = ("dog", (11, 5, 40, 30), 0)
HIDDEN_DOG: Thing = ("dog", (3, 3, 9, 9), 1)


def annotate(root: Path, name: str, *things: Thing) -> None:
    """An image of 40×30 and its annotation; a person comes with a part, which has a name and a box too."""
    objects = "".join(
        f"<object><name>{label}</name><pose>Left</pose><truncated>0</truncated><difficult>{difficult}</difficult>"
        f"<bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox>"
        "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
        "</object>"
        for label, (x0, y0, x1, y1), difficult in things
    )
    (root / "Annotations" / f"{name}.xml").write_text(
        f"<annotation><folder>VOC2012</folder><filename>{name}.jpg</filename><source><database>The VOC2008 Database"
        "</database></source><size><width>40</width><height>30</height><depth>3</depth></size>"
        f"<segmented>0</segmented>{objects}</annotation>"
    )
    Image.new("RGB", (40, 30)).save(root / "JPEGImages" / f"{name}.jpg")


def listing(root: Path, split: str, *names: str) -> None:
    (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    annotate(root, "2008_000002", CAT)
    annotate(root, "2008_000003", DOG, CAT, DOG)
    annotate(root, "2008_000007", CAT, HIDDEN_DOG)
    annotate(root, "2008_000008", DOG)
    listing(root, "train", "2008_000002", "2008_000003")
    listing(root, "val", "2008_000007", "2008_000008")
    listing(root, "trainval", "2008_000002", "2008_000003", "2008_000007", "2008_000008")
    return root


def labels(root: Path) -> dict[str, dict[str, list[str]]]:
    data = open_voc(root)
    return {
        split: {sample.path.stem: [data.classes[label] for label in sample.labels] for sample in samples}
        for split, samples in data.splits.items()
    }


def test_the_official_lists_are_the_splits(root: Path) -> None:
    data = open_voc(root)
    assert data.layout == "Pascal VOC 2012" and data.task == "multi" and data.name == "VOC2012"
    assert data.classes == CLASSES and len(CLASSES) == 20
    assert labels(root) == {
        "train": {"2008_000002": ["cat"], "2008_000003": ["cat", "dog"]},
        "val": {"2008_000007": ["cat"], "2008_000008": ["dog"]},
    }
    assert data.skipped == [] and data.problems == []
    assert all(sample.path == root / sample.id for samples in data.splits.values() for sample in samples)


def test_the_year_and_what_is_around_it_are_recognised(root: Path) -> None:
    for where in (root, root.parent, root.parent.parent):
        data = sic.data.open(where)
        assert data.layout == "Pascal VOC 2012" and data.root == root


def test_boxes_count_from_zero_and_end_after_the_last_pixel(root: Path) -> None:
    sample = open_voc(root).splits["train"][1]
    cat, dog = CLASSES.index("cat"), CLASSES.index("dog")
    assert sample.boxes == (Box(dog, 10, 4, 40, 30), Box(cat, 0, 0, 10, 20), Box(dog, 10, 4, 40, 30))


def test_difficult_objects_are_no_labels_but_keep_their_boxes(root: Path) -> None:
    """Official: 1 if any object of the class is not difficult, 0 (does not count) if all are, else -1."""
    sample = open_voc(root).splits["val"][0]
    dog = CLASSES.index("dog")
    assert sample.boxes[1] == Box(dog, 2, 2, 9, 9, difficult=True)
    assert sample.labels == (CLASSES.index("cat"),) and sample.unsure == (dog,)
    annotate(root, "2008_000007", DOG, HIDDEN_DOG)
    sample = open_voc(root).splits["val"][0]
    assert sample.labels == (dog,) and sample.unsure == ()
    annotate(root, "2008_000007", HIDDEN_DOG)
    sample = open_voc(root).splits["val"][0]
    assert sample.labels == () and sample.unsure == (dog,)


def test_an_image_without_objects_is_one_without_labels(root: Path) -> None:
    annotate(root, "2008_000007")
    assert labels(root)["val"] == {"2008_000007": [], "2008_000008": ["dog"]}


def test_a_class_outside_the_twenty_is_named_with_its_file(root: Path) -> None:
    annotate(root, "2008_000002", CAT, ("unicorn", (1, 1, 5, 5), 0))
    annotate(root, "2008_000008", ("unicorn", (1, 1, 5, 5), 0))
    data = open_voc(root)
    assert [said.partition(",")[0] for said in data.problems] == [
        "Annotations/2008_000002.xml names 'unicorn'",
        "Annotations/2008_000008.xml names 'unicorn'",
    ]
    assert labels(root) == {
        "train": {"2008_000002": ["cat"], "2008_000003": ["cat", "dog"]},
        "val": {"2008_000007": ["cat"]},
    }
    assert data.skipped == [
        Skipped("JPEGImages/2008_000008.jpg", "Annotations/2008_000008.xml names none of the 20 classes")
    ]


def test_boxes_outside_of_the_image_are_cut_or_dropped_and_reported(root: Path) -> None:
    annotate(
        root, "2008_000002", CAT, ("dog", (30, 20, 60, 30), 0), ("cow", (50, 1, 60, 9), 0), ("bus", (9, 9, 5, 5), 0)
    )
    data = open_voc(root)
    assert data.splits["train"][0].boxes[1:] == (Box(CLASSES.index("dog"), 29, 19, 40, 30),)
    assert [said.split("JPEGImages/2008_000002.jpg ")[1] for said in data.problems] == [
        "extends beyond the image (40×30) and is clipped.",
        "is outside the image (40×30) and is dropped.",
        "has no area and is dropped.",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("<annotation><object>", "not valid XML"),
        ("", "not valid XML"),
        ("<annotation><object><name>cat</name></object></annotation>", "without a name or a bndbox"),
        ("<annotation><object><name>cat</name><bndbox/></object></annotation>", "a bndbox without xmin"),
        (
            "<annotation><size><width>wide</width><height>3</height></size></annotation>",
            "width is not a number ('wide')",
        ),
    ],
)
def test_a_broken_annotation_costs_its_image_only(root: Path, content: str, reason: str) -> None:
    (root / "Annotations" / "2008_000008.xml").write_text(content)
    data = open_voc(root)
    assert len(data.splits["val"]) == 1
    (skipped,) = data.skipped
    assert skipped.file == "JPEGImages/2008_000008.jpg"
    assert "Annotations/2008_000008.xml" in skipped.reason and reason in skipped.reason


def test_everything_that_is_wrong_is_said_at_once(root: Path) -> None:
    (root / "JPEGImages" / "2008_000007.jpg").unlink()
    (root / "Annotations" / "2008_000008.xml").unlink()
    listing(root, "val", "2008_000007", "2008_000008", "2008_000002")
    assert [str(skipped) for skipped in open_voc(root).skipped] == [
        "JPEGImages/2008_000007.jpg is not used: val.txt lists it but it does not exist.",
        "JPEGImages/2008_000008.jpg is not used: Annotations/2008_000008.xml: no such file.",
        "JPEGImages/2008_000002.jpg in val.txt is not used: train.txt lists it already.",
    ]


def test_test_images_count_only_where_they_have_annotations(root: Path) -> None:
    annotate(root, "2008_000009", CAT)
    listing(root, "test", "2008_000009")
    assert labels(root)["test"] == {"2008_000009": ["cat"]}
    (root / "Annotations" / "2008_000009.xml").unlink()
    data = open_voc(root)
    assert "test" not in data.splits and data.skipped == []


def test_what_cannot_be_used_is_one_sentence(root: Path, tmp_path: Path) -> None:
    for name in ("Annotations", "JPEGImages"):
        (root.parent / "VOC2007" / name).mkdir(parents=True)
    with pytest.raises(SicError, match="holds VOC2007 and VOC2012; give one"):
        open_voc(root.parent)
    with pytest.raises(SicError, match=r"VOC2007/ImageSets/Main/train\.txt is missing"):
        open_voc(root.parent / "VOC2007")
    with pytest.raises(SicError, match="is not Pascal VOC"):
        sic.data.open(tmp_path / "VOCdevkit" / "VOC2012" / "JPEGImages", layout="voc")
    listing(root, "train", "2008_000002", "nowhere")
    with pytest.raises(
        UnusableData, match="training images of one class only; the first of 1 problems: .*nowhere"
    ) as e:
        open_voc(root)
    assert len(e.value.data.splits["val"]) == 2
