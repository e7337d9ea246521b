"""A model directory from a stranger is data: reading it writes nothing and follows no link out of it."""

import hashlib
import io
import json
import math
import shutil
import struct
import threading
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

import sic
from sic.directory import CONFIG, NEXT, RUN, STAGING, SUPPORTS, WEIGHTS, read_run, version
from sic.errors import SicError
from sic.evaluate.headline import Headline, Part
from sic.evaluate.metrics import EVALUATION
from sic.files import LOCK, inside, locked, write_atomically
from sic.latents import CACHE
from sic.model import load
from sic.report.page import read_measurements
from tests.test_directory import model, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(model(), folder)
    return folder


@pytest.fixture
def foreign(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "foreign")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of its owner's files, beside the foreign directory."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / ".bashrc").write_text("mine")
    Image.new("RGB", (4, 4)).save(folder / "holiday.png")
    Image.new("RGB", (4, 4)).save(folder / "00007.png")
    return folder


def everything(folder: Path) -> dict[str, tuple[object, ...]]:
    """All names below a folder with their content and time of change; links as links."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(folder))] = status.st_mode, status.st_ino, status.st_mtime_ns, content
    return found


def test_a_staged_file_does_not_go_through_a_link(foreign: Path, victim: Path, tmp_path: Path) -> None:
    (foreign / NEXT / "h").mkdir(parents=True)
    (foreign / NEXT / "h" / ".bashrc").write_text("yours")
    (foreign / "h").symlink_to("../victim")
    before = everything(tmp_path)
    sic.load(foreign)
    assert everything(tmp_path) == before
    save(model(seed=1), foreign)
    assert (victim / ".bashrc").read_text() == "mine"
    assert not (foreign / NEXT).exists()


def test_pictures_behind_a_link_are_not_deleted(foreign: Path, victim: Path, tmp_path: Path) -> None:
    shutil.rmtree(foreign / SUPPORTS)
    (foreign / SUPPORTS).symlink_to("../victim")
    (foreign / NEXT).mkdir()
    before = everything(tmp_path)
    with pytest.raises(SicError, match="link out of"):
        sic.load(foreign)
    assert everything(tmp_path) == before
    with pytest.raises(SicError, match="is a link"):
        save(model(seed=1), foreign)
    assert everything(victim) == {name[7:] or ".": about for name, about in before.items() if name.startswith("victim")}


def test_only_the_files_of_a_model_are_moved(foreign: Path, victim: Path) -> None:
    staged = foreign / NEXT
    save(model(seed=1), staged)
    for name in ("extra.txt", "run.json", "supports/extra.png", "supports/.bashrc", "sub/deep.txt"):
        (staged / name).parent.mkdir(exist_ok=True)
        (staged / name).write_text("yours")
    (foreign / "supports" / "holiday.png").write_text("mine")
    known = {path.relative_to(foreign) for path in foreign.rglob("*") if NEXT not in path.parts}
    expected = load(foreign).classifier.support_vectors
    assert torch.equal(expected, model(seed=1).classifier.support_vectors)  # a complete save counts
    save(model(seed=2), foreign)
    assert {path.relative_to(foreign) for path in foreign.rglob("*")} == known


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, SUPPORTS, f"{SUPPORTS}/supports.json", f"{SUPPORTS}/00002.png"])
@pytest.mark.parametrize("staged", [False, True])
def test_links_out_of_the_directory_are_refused(foreign: Path, tmp_path: Path, name: str, staged: bool) -> None:
    """Also where the file behind it is the right one: nobody can tell from where a model reads otherwise."""
    place = foreign / name
    place.rename(tmp_path / "target")
    link = foreign / NEXT / name if staged else place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "target")
    with pytest.raises(SicError, match="link out of") as caught:
        sic.load(foreign)
    assert str(link if name != SUPPORTS else link / "supports.json") in str(caught.value)


def test_other_files_beside_the_model_are_not_read_through_links(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (foreign / RUN).symlink_to(tmp_path / "run.json")
    with pytest.raises(SicError, match="link out of"):
        read_run(foreign)
    (foreign / CACHE).symlink_to(tmp_path / "run.json")
    with pytest.raises(SicError, match="link out of"):
        inside(foreign / CACHE, foreign)
    (foreign / EVALUATION).symlink_to(tmp_path / "run.json")
    with pytest.raises(SicError, match="link out of"):
        read_measurements(foreign)


def test_links_inside_and_to_the_directory_are_followed(foreign: Path, tmp_path: Path) -> None:
    (foreign / WEIGHTS).rename(foreign / "weights.bin")
    (foreign / WEIGHTS).symlink_to("weights.bin")
    (tmp_path / "latest").symlink_to("foreign")
    assert len(sic.load(tmp_path / "latest").supports) == 6


@pytest.mark.parametrize("name", [NEXT, STAGING, LOCK, SUPPORTS])
def test_nothing_is_saved_through_a_link(foreign: Path, victim: Path, name: str) -> None:
    before = everything(victim)
    if (foreign / name).is_dir():
        shutil.rmtree(foreign / name)
    (foreign / name).unlink(missing_ok=True)
    (foreign / name).symlink_to(victim / ".bashrc" if name == LOCK else victim)
    with pytest.raises(SicError, match="is a link"):
        save(model(seed=1), foreign)
    assert everything(victim) == before


def test_an_interrupted_save_is_read_where_nothing_can_be_written(foreign: Path, tmp_path: Path) -> None:
    save(model(seed=1, per_class=1), tmp_path / "new")
    (tmp_path / "new" / LOCK).unlink()
    (tmp_path / "new").rename(foreign / NEXT)
    (foreign / NEXT / CONFIG).replace(foreign / CONFIG)  # some of it has arrived already
    (foreign / NEXT / SUPPORTS / "00000.png").replace(foreign / SUPPORTS / "00000.png")
    before = everything(foreign)
    loaded = load(foreign)
    assert torch.equal(loaded.classifier.support_vectors, model(seed=1, per_class=1).classifier.support_vectors)
    assert everything(foreign) == before


def test_readers_beside_a_writer_see_one_model_or_the_other(tmp_path: Path) -> None:
    models = [model(seed=seed, per_class=1 + seed) for seed in (0, 1)]
    save(models[0], tmp_path)
    done = threading.Event()

    def write() -> None:
        for turn in range(6):
            save(models[(turn + 1) % 2], tmp_path)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    loads = 0
    while not done.is_set() or not loads:
        found = load(tmp_path)
        expected = models[0] if len(found.supports) == 3 else models[1]
        assert torch.equal(found.classifier.support_vectors, expected.classifier.support_vectors)
        assert [s.source for s in found.supports] == [s.source for s in expected.supports]
        loads += 1
    writer.join()


def test_writers_take_turns(tmp_path: Path) -> None:
    models = [model(seed=seed, per_class=1 + seed % 2) for seed in range(4)]
    threads = [threading.Thread(target=save, args=(each, tmp_path)) for each in models]
    with locked(tmp_path):
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert all(thread.is_alive() for thread in threads) and version(tmp_path) == ""
    for thread in threads:
        thread.join()
    found = load(tmp_path).classifier.support_vectors
    assert any(found.equal(each.classifier.support_vectors) for each in models)
    assert not (tmp_path / NEXT).exists() and not (tmp_path / STAGING).exists()


def test_a_save_replaces_only_the_version_it_knows(tmp_path: Path) -> None:
    first = save(model(), tmp_path)
    assert first == version(tmp_path)
    second = save(model(seed=1), tmp_path, replacing=first)
    assert second == version(tmp_path) != first
    with pytest.raises(SicError, match="Somebody else has changed"):
        save(model(seed=2), tmp_path, replacing=first)
    assert version(tmp_path) == second


def test_a_temporary_name_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link where the temporary file would be is not written through."""
    (tmp_path / "victim").write_text("mine")
    monkeypatch.setattr("sic.files.secrets.token_hex", lambda _: "00")
    (tmp_path / ".a.json.00.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "a.json", lambda path: path.write_text("yours"))
    assert (tmp_path / "victim").read_text() == "mine"


HEADLINE = Headline(Part(6, 8), Part(4, 6), Part(4, 8), 1 / 3, "c", 0.5).as_json()


def rewrite(folder: Path, **changes: Any) -> None:
    """Change weights and keep the checksum right, or a key of the configuration (`preprocessing.size` with dots)."""
    tensors = load_file(folder / WEIGHTS)
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    for name, value in changes.items():
        if name in tensors:
            tensors[name] = tensors[name] * value
        else:
            *path, last = name.split(".")
            reduce(dict.__getitem__, path, content)[last] = value
    data = save_tensors(tensors)
    (folder / WEIGHTS).write_bytes(data)
    content["weights_sha256"] = hashlib.sha256(data).hexdigest()
    (folder / CONFIG).write_text(json.dumps(content), encoding="utf-8")


def sentence(folder: Path) -> str:
    with pytest.raises(SicError) as caught:
        sic.load(folder)
    words = str(caught.value)
    assert words.endswith(".") and "\n" not in words and len(words) < 400
    return words


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_and_supports_must_be_finite(foreign: Path, value: float) -> None:
    names = sorted(load_file(foreign / WEIGHTS))
    weight = next(name for name in names if name.endswith("weight"))
    for name in ("support_vectors", weight):
        rewrite(foreign, **{name: value})
        assert f"{name} holds numbers that are not finite" in sentence(foreign)
        shutil.rmtree(foreign)
        save(model(), foreign)


WRONG: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (0, -1, 10**400, float("nan"), float("inf"), "1", None, True, [1])),
    *(("b", value) for value in (0, float("nan"), "2")),
    *(("latent", value) for value in (0, -8, 10**12, 8.5, "8")),
    *(("preprocessing.size", value) for value in (0, -1, 10**9, 16.5, "16", None)),
    *(("preprocessing.fit", value) for value in ("bend", 1, None)),
    *(("preprocessing", value) for value in ([], "16", None, 16)),
    *(("classes", value) for value in ([], "abc", [1, 2, 3], ["a", "a", "b"], None, {"a": 1})),
    *(("task", value) for value in ("double", 1, ["single"])),
    *(("method", value) for value in (1, ["sic"], None)),
    *(("backbone", value) for value in (1, ["resnet_tiny"], {"a": 1})),
    *(("form", value) for value in ("plain", 1)),
    *(("loss", value) for value in ("mse", 1)),
    *(("relu", value) for value in ("no", 1)),
    *(("format", value) for value in ("2", None, [2], {})),
    *(("weights_sha256", value) for value in (1, None, [])),
    *(("figures", value) for value in ([], "good", {"test": {}}, {"test": 1}, {"test": {"headline": []}})),
    *(("figures.test.images", value) for value in (-1, 8.5, "8", None, [8])),
    *(("figures.test.note", value) for value in (1, [], {"a": 1}, None)),
    *(("figures.test.name", value) for value in (1, ["test images"], None)),
    *(("figures.test.accuracy", value) for value in ("0.5", None, float("nan"), 10**400)),
    *(("figures.test.balanced_accuracy", value) for value in ("0.5", None, [0.5], float("inf"))),
    *(("figures.test.similar_case", value) for value in ("0.5", None, float("nan"))),
    ("figures.test.average_precision", {"a": float("nan")}),
    ("figures.test.headline", {}),
    *(("figures.test.headline.commonest", value) for value in (1, None)),
    *(("figures.test.headline.commonest_share", value) for value in ("all", None)),
    *(("figures.test.headline.chance", value) for value in ("none", [])),
    *(("figures.test.headline.right.count", value) for value in (-1, 9, 1.5, "1", None)),
    ("figures.test.headline.sentence", [float("nan")]),
    *(("training", value) for value in ({"seed": "x"}, {"weights": 3}, {"recipe": ["frozen"]})),
    *(("training", {name: value}) for name in ("terms", "origin", "compared", "preprocessing") for value in (1.5, [])),
    *(("edits", value) for value in ({}, [1], "none")),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_values_in_the_configuration_are_one_sentence(foreign: Path, name: str, value: Any) -> None:
    if name == "weights_sha256":
        content = json.loads((foreign / CONFIG).read_text(encoding="utf-8")) | {name: value}
        (foreign / CONFIG).write_text(json.dumps(content), encoding="utf-8")
    else:
        rewrite(foreign, **{"figures.test": {"accuracy": 0.5, "images": 8, "headline": HEADLINE}})
        sic.load(foreign)
        rewrite(foreign, **{name: value})
    assert str(foreign) in sentence(foreign)


def test_nested_json_is_one_sentence(foreign: Path) -> None:
    (foreign / CONFIG).write_text("[" * 100_000)
    assert "is damaged" in sentence(foreign)
    save(model(), foreign)
    (foreign / SUPPORTS / "supports.json").write_text("[" * 100_000)
    assert "does not hold readable supports" in sentence(foreign)


@pytest.mark.parametrize("head", [b"", b"{", bytes(8), b"\xff" * 16, struct.pack("<Q", 2**40) + b"{}" + bytes(100)])
def test_headers_of_weights_are_checked(foreign: Path, head: bytes) -> None:
    (foreign / WEIGHTS).write_bytes(head)
    content = json.loads((foreign / CONFIG).read_text(encoding="utf-8"))
    content["weights_sha256"] = hashlib.sha256(head).hexdigest()
    (foreign / CONFIG).write_text(json.dumps(content), encoding="utf-8")
    assert "do not fit together" in sentence(foreign)


@pytest.mark.parametrize(
    "change",
    [
        {"class": "0"},
        {"class": -1},
        {"class": True},
        {"source": 7},
        {"box": 3},
        {"box": [1, 2]},
        {"box": [math.inf] * 4},
    ],
)
def test_wrong_values_of_a_support_are_one_sentence(foreign: Path, change: dict[str, Any]) -> None:
    file = foreign / SUPPORTS / "supports.json"
    entries = json.loads(file.read_text())
    entries[0] |= change
    file.write_text(json.dumps(entries))
    assert str(foreign) in sentence(foreign)


@pytest.mark.parametrize(("format", "side"), [("PNG", 3000), ("JPEG", 16), ("EPS", 16), ("TIFF", 16)])
def test_a_picture_of_a_support_is_a_png_of_the_right_size(foreign: Path, format: str, side: int) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side)).save(buffer, format)
    (foreign / SUPPORTS / "00000.png").write_bytes(buffer.getvalue())
    file = foreign / SUPPORTS / "supports.json"
    entries = json.loads(file.read_text())
    entries[0]["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    file.write_text(json.dumps(entries))
    assert "does not hold readable supports" in sentence(foreign)
