import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sic.data
from sic.data.images import UnreadableImage, image_size, read_image
from sic.data.layouts import LAYOUTS
from sic.errors import SicError


def picture(number: int) -> bytes:
    """A PNG that says which it is, 8 px high and 9 + `number` wide."""
    file = io.BytesIO()
    Image.fromarray(np.full((8, 9 + number, 3), number, np.uint8)).save(file, "png")
    return file.getvalue()


def write(file: Path, members: dict[str, Any]) -> None:
    """A tar file of bytes; what is not bytes becomes text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            content = content if isinstance(content, bytes) else str(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def numbered(first: int, labels: list[int]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for number, label in enumerate(labels, first):
        members |= {f"{number:05d}.png": picture(number), f"{number:05d}.cls": label}
    return members


def test_images_are_read_where_they_lie(tmp_path: Path) -> None:
    write(tmp_path / "photos-train-0.tar", numbered(0, [1, 0, 10]))
    write(tmp_path / "photos-train-1.tar", numbered(3, [0, 10]))
    write(tmp_path / "photos-val-0.tar", numbered(5, [10]))
    data = sic.data.open(tmp_path)
    assert (data.layout, data.classes, data.task, data.skipped) == ("tar shards", ("0", "1", "10"), "single", [])
    assert [sample.labels for sample in data.splits["train"]] == [(1,), (0,), (2,), (0,), (2,)]
    assert [sample.id for sample in data.splits["val"]] == ["photos-val-0.tar/00005.png"]
    for number, sample in enumerate(data.splits["train"] + data.splits["val"]):
        assert image_size(sample.path) == (9 + number, 8)
        assert (np.asarray(read_image(sample.path)) == number).all()
        assert sample.path.name == f"{number:05d}.png"


def test_json_labels_names_and_several_labels(tmp_path: Path) -> None:
    said = [{"label": "cat"}, {"labels": ["dog", "cat"]}, {"cls": "dog"}, {"caption": "a cat"}]
    members: dict[str, Any] = {}
    for number, content in enumerate(said):
        members |= {f"a/{number}.json": json.dumps(content), f"a/{number}.jpg": picture(number)}
    write(tmp_path / "train" / "0.tar", members)
    data = sic.data.open(tmp_path)
    assert (data.classes, data.task) == (("cat", "dog"), "multi")
    assert [sample.labels for sample in data.splits["train"]] == [(0,), (0, 1), (1,)]
    assert [str(one) for one in data.skipped] == [
        "train/0.tar/a/3.jpg is not used: no .cls or .json file with its label."
    ]


def test_numbers_have_names_in_a_file(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", numbered(0, [2, 0, 1]))
    (tmp_path / "classnames.txt").write_text("ant\nbee\ncow\n")
    data = sic.data.open(tmp_path)
    assert data.classes == ("ant", "bee", "cow") and data.splits["train"][0].labels == (2,)
    (tmp_path / "classnames.txt").write_text("ant\nbee\n")
    with pytest.raises(SicError, match=r"have the label 2, and .*classnames.txt names the classes 0 to 1; correct"):
        sic.data.open(tmp_path)


def test_empty_lines_at_the_end_are_no_classes(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", numbered(0, [0, 1]))
    (tmp_path / "classes.txt").write_text("ant\nbee\n\n \n")
    assert sic.data.open(tmp_path).classes == ("ant", "bee")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Käfer\nbee\n".encode("latin-1"), "is not UTF-8 text; save it as UTF-8"),
        (b"ant\n\nbee\n", "must have one line per class"),
        (b"ant\nant\n", "must have one line per class"),
        (b"\n", "must have one line per class"),
    ],
)
def test_a_file_of_names_must_name_each_class(tmp_path: Path, content: bytes, words: str) -> None:
    write(tmp_path / "0.tar", numbered(0, [0, 1]))
    (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(SicError, match=rf"classes\.txt {words}.*\.$"):
        sic.data.open(tmp_path)


def test_names_without_labels_and_negative_labels_are_errors(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    write(tmp_path / "0.tar", {"0.png": picture(0), "1.png": picture(1)})
    with pytest.raises(SicError, match="holds no usable training images"):
        sic.data.open(tmp_path)
    write(tmp_path / "0.tar", numbered(0, [0, 1]) | {"2.png": picture(2), "2.json": '{"label": -1}'})
    with pytest.raises(SicError, match="have the label -1, and"):
        sic.data.open(tmp_path)


@pytest.mark.parametrize("first", [".json", ".cls"])
def test_json_about_something_else_leaves_the_label_alone(tmp_path: Path, first: str) -> None:
    """As img2dataset writes it beside .cls; .cls also decides where both give a label."""
    said = {"width": 9}, {"label": 0}
    members: dict[str, Any] = {}
    for number, about in enumerate(said):
        beside = {f"{number}.json": json.dumps(about), f"{number}.cls": number}
        members |= {f"{number}.png": picture(number)} | dict(sorted(beside.items(), reverse=first == ".json"))
    write(tmp_path / "0.tar", members)
    data = sic.data.open(tmp_path)
    assert [sample.labels for sample in data.splits["train"]] == [(0,), (1,)] and data.skipped == []


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", numbered(0, [0, 1]) | {"2.png": b"", "2.cls": 1, "3.txt": "?", "4.png": picture(4)})
    (tmp_path / "1.tar").write_bytes((tmp_path / "0.tar").read_bytes()[:700])
    (tmp_path / "2.tar.gz").write_bytes(b"")
    data = sic.data.open(tmp_path)
    reasons = {one.file: one.reason for one in data.skipped}
    assert set(reasons) == {"2.tar.gz", "0.tar/3.txt", "0.tar/4.png", "1.tar"} | {
        sample.file for sample in data.skipped if sample.file.startswith("1.tar/")
    }
    with pytest.raises(UnreadableImage, match="not an image"):
        read_image(data.splits["train"][2].path)
    shard = tmp_path / "0.tar"
    shard.write_bytes(shard.read_bytes()[:530])
    with pytest.raises(UnreadableImage, match="truncated"):
        read_image(data.splits["train"][0].path)
    shard.unlink()
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(data.splits["train"][0].path)


def test_an_archive_beside_class_folders_is_no_shard(tmp_path: Path) -> None:
    write(tmp_path / "download.tar", numbered(0, [0, 1]))
    for name in ("ants", "bees"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(picture(1))
    assert sic.data.open(tmp_path).layout == "class folders"
    assert LAYOUTS["shards"].read(tmp_path).classes == ("0", "1")


@pytest.mark.slow
def test_a_model_of_shards_is_that_of_the_files(bird_folders: Path, tmp_path: Path) -> None:
    members: dict[str, Any] = {}
    rows = ["path,label"]
    for number, file in enumerate(sorted(bird_folders.rglob("*.png"))):
        members |= {f"{number:04d}.png": file.read_bytes(), f"{number:04d}.cls": file.parent.name}
        rows.append(f"{file},{file.parent.name}")
    write(tmp_path / "shards" / "0.tar", members)
    (tmp_path / "files.csv").write_text("\n".join(rows))
    said = {"backbone": "resnet_tiny", "size": 32, "batch_size": 16, "epochs": 1, "workers": 1}
    one = sic.fit(tmp_path / "shards", tmp_path / "one", **said)
    two = sic.fit(tmp_path / "files.csv", tmp_path / "two", **said)
    assert one.config.figures["validation"] == two.config.figures["validation"]
    assert (one.sic.support_vectors == two.sic.support_vectors).all()


def test_names_that_lead_out_of_the_tar_file_are_only_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    members = {"../../evil/0.png": picture(0), "../../evil/0.cls": 0, "/etc/evil.png": picture(1), "/etc/evil.cls": 1}
    write(data / "train-0.tar", members | numbered(2, [0, 1]))
    before = sorted(tmp_path.rglob("*"))
    found = sic.data.open(data).splits["train"]
    sizes = {image_size(sample.path)[0] - 9 for sample in found if read_image(sample.path)}
    assert {2, 3} <= sizes <= {0, 1, 2, 3}
    assert sorted(tmp_path.rglob("*")) == before
