import sys
from pathlib import Path

import pytest
from PIL import Image

import sic.data
from sic.data.dataset import Box, ImageData, UnusableData
from sic.errors import SicError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in "abcde":
        Image.new("RGB", (20, 10)).save(tmp_path / "images" / f"{name}.png")
    return tmp_path


def write(root: Path, *lines: str, name: str = "table.csv", encoding: str = "utf-8") -> Path:
    (root / name).write_text("\n".join(lines) + "\n", encoding=encoding)
    return root / name


def contents(data: ImageData) -> dict[str, dict[str, list[str]]]:
    return {
        split: {sample.id: [data.classes[label] for label in sample.labels] for sample in samples}
        for split, samples in data.splits.items()
    }


def said(data: ImageData) -> list[str]:
    return [*map(str, data.skipped), *data.problems]


def test_paths_and_labels(root: Path) -> None:
    table = write(root, "path,label", "images/a.png,cat", f"{root}/images/b.png,dog", "images/../images/c.png,cat")
    data = sic.data.open(table)
    assert data.layout == "manifest (table.csv)" and data.task == "single" and data.name == "table"
    assert data.root == table and data.classes == ("cat", "dog")
    assert contents(data) == {"train": {"images/a.png": ["cat"], "images/b.png": ["dog"], "images/c.png": ["cat"]}}
    assert said(data) == [] and all(s.path.is_file() for s in data.splits["train"])


@pytest.mark.parametrize(
    ("header", "delimiter", "encoding"),
    [
        ("File;Class;Set", ";", "utf-8-sig"),
        ("filename\tcategory\tSplit", "\t", "utf-16"),
        (' "Image Path" , "LABEL", "subset"', ",", "utf-8"),
    ],
)
def test_tables_as_spreadsheets_save_them(root: Path, header: str, delimiter: str, encoding: str) -> None:
    lines = [
        delimiter.join(cells)
        for cells in (
            ("images/a.png", "Möwe", "Train"),
            ('"images/b.png"', "Star", ""),
            ("images\\c.png", "Star", "valid"),
        )
    ]
    data = sic.data.open(write(root, header, *lines, "", encoding=encoding))
    assert contents(data) == {
        "train": {"images/a.png": ["Möwe"], "images/b.png": ["Star"]},
        "val": {"images/c.png": ["Star"]},
    }


def test_several_labels(root: Path) -> None:
    data = sic.data.open(
        write(root, "image,labels", "images/a.png,x|y", "images/b.png, y | x |", "images/c.png,y", "images/d.png,")
    )
    assert data.task == "multi"
    assert contents(data)["train"] == {
        "images/a.png": ["x", "y"],
        "images/b.png": ["x", "y"],
        "images/c.png": ["y"],
        "images/d.png": [],
    }


def test_numbers_as_labels_are_in_their_order(root: Path) -> None:
    data = sic.data.open(write(root, "path,target", "images/a.png,10", "images/b.png,9", "images/c.png,0"))
    assert data.classes == ("0", "9", "10")


def test_splits_and_groups(root: Path) -> None:
    table = write(
        root,
        "path,label,split,patient_id",
        "images/a.png,x,train,p1",
        "images/b.png,y,training,",
        "images/c.png,x,test,p2",
    )
    data = sic.data.open(table)
    assert [s.group for samples in data.splits.values() for s in samples] == ["p1", None, "p2"]
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 2, "test": 1}


@pytest.mark.parametrize(
    ("columns", "box"),
    [("left,top,right,bottom", "1,2,4,6"), ("X,Y,W,H", "1,2,3,4"), ("xmin,ymin,xmax,ymax", "1,2,4,6.0")],
)
def test_a_row_per_box(root: Path, columns: str, box: str) -> None:
    table = write(
        root,
        f"path,label,{columns}",
        f"images/a.png,x,{box}",
        f"images/a.png,y,{box}",
        "images/b.png,y,,,,",
        f"images/a.png,x,{box}",
    )
    data = sic.data.open(table)
    first, second = data.splits["train"]
    assert first.boxes == (Box(0, 1, 2, 4, 6), Box(1, 1, 2, 4, 6), Box(0, 1, 2, 4, 6)) and first.labels == (0, 1)
    assert second.boxes == () and second.labels == (1,) and said(data) == []


def test_the_size_of_images_is_no_box(root: Path) -> None:
    data = sic.data.open(write(root, "path,label,width,height", "images/a.png,x,20,10", "images/b.png,y,20,10"))
    assert not any(sample.boxes for sample in data.splits["train"])


def test_all_problems_are_listed_with_their_lines(root: Path) -> None:
    table = write(
        root,
        "path,label,split,x,y,width,height",
        "images/a.png,x,,,,,",
        "images/b.png,y,,,,,",
        "images/gone.png,x,,,,,",
        "",
        ",x,,,,,",
        "images/c.png,,,,,,",
        "images/c.png,x,maybe,,,,",
        "images/c.png,x|y,,1,1,2,2",
        "images/c.png,x,,1,1,2,wide",
        "images/a.png,x,test,,,,",
        "images/d.png,x,,15,1,90,5",
        "images/d.png,x,,55,1,9,5",
        "images/e.png,z,test,,,,",
    )
    assert said(sic.data.open(table)) == [
        "Line 4 of table.csv is not used: it points to images/gone.png, which does not exist.",
        "Line 6 of table.csv is not used: no path.",
        "Line 7 of table.csv is not used: no label for images/c.png.",
        "Line 8 of table.csv is not used: 'maybe' is not a split; use train, val or test.",
        "Line 9 of table.csv is not used: a box needs one label, not 2.",
        "Line 10 of table.csv is not used: its box is not four numbers (1, 1, 2, wide).",
        "Line 11 of table.csv is not used: images/a.png has another split or group in line 2 of table.csv.",
        "The class z is not used: no training images.",
        "The box 15, 1, 105, 6 of images/d.png extends beyond the image (20×10) and is clipped.",
        "The box 55, 1, 64, 6 of images/d.png is outside the image (20×10) and is dropped.",
    ]


def test_repeated_rows(root: Path) -> None:
    rows = ["images/a.png,x", "images/b.png,y", "images/a.png,x", "images/b.png,x"]
    data = sic.data.open(write(root, "path,label", *rows))
    assert contents(data) == {"train": {"images/a.png": ["x"], "images/b.png": ["y"]}}
    assert said(data) == [
        "Line 4 of table.csv is not used: it repeats line 2 of table.csv.",
        "Line 5 of table.csv is not used: line 3 of table.csv gives images/b.png other labels; put several labels into "
        "one row, as a|b.",
    ]


def test_a_folder_with_a_table_is_recognised(root: Path) -> None:
    write(root, "path,label", "images/a.png,x", "images/b.png,y", name="my labels.CSV")
    write(root, "when,what", "today,photos", name="diary.csv")
    assert sic.data.open(root).layout == "manifest (my labels.CSV)"
    write(root, "path,label", "images/c.png,x", name="other.csv")
    with pytest.raises(SicError, match=r"holds my labels\.CSV and other\.csv; give one of these"):
        sic.data.open(root)
    with pytest.raises(SicError, match="only one class with images"):
        sic.data.open(root, layout="folders")


def test_a_table_per_split(root: Path) -> None:
    write(root, "path,label", "images/a.png,x", "images/b.png,y", name="train.csv")
    write(root, "path,label", "images/c.png,x", name="test.csv")
    data = sic.data.open(root)
    assert data.layout == "manifest (test.csv, train.csv)" and data.root == root
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 2, "test": 1}


def test_parquet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"Path": ["images/a.png", "images/b.png", "gone.png"], "labels": [["x", "y"], ["y"], ["x"]]}
    parquet.write_table(pyarrow.table({**columns, "group": [1.0, None, 3.0]}), root / "t.parquet")
    data = sic.data.open(root / "t.parquet")
    assert contents(data) == {"train": {"images/a.png": ["x", "y"], "images/b.png": ["y"]}}
    assert [s.group for s in data.splits["train"]] == ["1", None]
    assert said(data) == ["Row 3 of t.parquet is not used: it points to gone.png, which does not exist."]
    (root / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(SicError, match=r"broken\.parquet cannot be read as Parquet"):
        sic.data.open(root / "broken.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SicError, match=r"needs pyarrow: pip install 'sic\[parquet\]'"):
        sic.data.open(root / "t.parquet")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("images/a.png,x",), r"table\.csv has no column path; its first line must name the columns"),
        (("path,colour", "images/a.png,red"), "has no column label"),
        ((), "has no column path"),
    ],
)
def test_columns_must_have_names(root: Path, lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(SicError, match=words):
        sic.data.open(write(root, *lines))


def test_a_cell_without_end_is_an_error(root: Path) -> None:
    with pytest.raises(SicError, match=r"table\.csv cannot be read as a table"):
        sic.data.open(write(root, "path,label", "images/a.png," + "x" * 200_000))


def test_text_that_is_not_utf8_is_an_error(root: Path) -> None:
    with pytest.raises(SicError, match=r"save it as CSV \(UTF-8\)"):
        sic.data.open(write(root, "path,label", "images/a.png,Möwe", encoding="latin-1"))


def test_a_table_that_points_nowhere_says_all_of_it(root: Path) -> None:
    with pytest.raises(UnusableData, match="no usable training images; the first of 2 problems: Line 2") as caught:
        sic.data.open(write(root, "path,label", "1.png,x", "2.png,y"))
    assert len(caught.value.data.skipped) == 2
