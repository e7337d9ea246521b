"""Images that were looked at before are not decoded again; what is kept of them is bounded and private."""

import os
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sic.data import duplicates, loading
from sic.data import store as store_module
from sic.data.dataset import Sample
from sic.data.duplicates import copies_within, fingerprint, near_copies
from sic.data.images import Preprocessing, read_image
from sic.data.loading import Loaded, load_pixels, read_fingerprints
from sic.data.store import UNUSED, Store
from sic.errors import SicError

PREPROCESSING = Preprocessing(32, 36, "crop")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    monkeypatch.setenv("SIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SIC_CACHE_GB", "1")
    return tmp_path / "cache"


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        pixels = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((60, 48)).save(tmp_path / f"{name}.png")
    return [Sample(f"{name}.png", tmp_path / f"{name}.png", (0,)) for name in ("a", "b", "c")]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded."""
    names: list[str] = []

    def read(path: Path) -> Image.Image:
        names.append(path.name)
        return read_image(path)

    monkeypatch.setattr(loading, "read_image", read)
    return names


def load(samples: list[Sample], folder: Path, keep: bool = True) -> Loaded:
    return load_pixels(samples, PREPROCESSING, folder / "pixels.bin", 0, keep=keep)


def test_unchanged_files_are_decoded_once(home: Path, samples: list[Sample], decoded: list[str]) -> None:
    folder = samples[0].path.parent
    first = load(samples, folder)
    wanted = [np.array(first.pixels[index]) for index in range(3)]
    second = load(samples[::-1], folder)
    assert decoded == ["a.png", "b.png", "c.png"]
    for index in range(3):
        np.testing.assert_array_equal(second.pixels[2 - index], wanted[index])
        one, other = first.prints[index], second.prints[2 - index]
        assert (one.size, one.digest) == (other.size, other.digest) == ((60, 48), one.digest)
        np.testing.assert_array_equal(one.grey, other.grey)


def test_chance_does_not_depend_on_what_is_stored(home: Path, samples: list[Sample], decoded: list[str]) -> None:
    """Or the weights that are drawn after it would."""
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        load(samples, samples[0].path.parent)
        states.append(torch.get_rng_state())
    assert len(decoded) == 3 and torch.equal(*states)


def test_what_may_be_different_is_decoded_again(home: Path, samples: list[Sample], decoded: list[str]) -> None:
    folder, changed = samples[0].path.parent, samples[1].path
    load(samples, folder)
    Image.open(samples[2].path).transpose(Image.Transpose.ROTATE_180).save(changed)
    loaded = load(samples, folder)
    assert decoded[3:] == ["b.png"]
    np.testing.assert_array_equal(loaded.pixels[1], PREPROCESSING.reduce(read_image(changed)))
    load_pixels(samples, Preprocessing(32, 40, "crop"), folder / "pixels.bin", 0)
    assert decoded[4:] == ["a.png", "b.png", "c.png"]  # other pixels are wanted


def test_reasons_are_not_kept(home: Path, samples: list[Sample]) -> None:
    good = samples[0].path.read_bytes()
    status = samples[0].path.stat()
    samples[0].path.write_bytes(bytes(len(good)))
    os.utime(samples[0].path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert isinstance(read_fingerprints([samples[0].path])[samples[0].path], str)
    samples[0].path.write_bytes(good)  # as if a missing decoder had been installed
    os.utime(samples[0].path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not isinstance(read_fingerprints([samples[0].path])[samples[0].path], str)


def test_nothing_is_kept_where_that_is_not_wanted(
    home: Path, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(samples, samples[0].path.parent, keep=False)
    monkeypatch.setenv("SIC_CACHE_GB", "0")
    load(samples, samples[0].path.parent)
    assert not home.exists()
    monkeypatch.setenv("SIC_CACHE_GB", "much")
    with pytest.raises(SicError, match="SIC_CACHE_GB=much"):
        load(samples, samples[0].path.parent)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_only_the_user_can_read_it(home: Path) -> None:
    with Store() as store:
        store.put(b"key", b"value")
    assert stat.S_IMODE(store.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.file.parent.stat().st_mode) == 0o700


def test_it_is_bounded_and_the_oldest_go_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1_000_000
    monkeypatch.setattr(store_module, "OLDEST", 1)
    for day in range(20):
        monkeypatch.setattr(store_module.time, "time", lambda day=day: 1e9 + 2 * store_module.DAY * day)
        with Store(most) as store:
            store.get(b"0")  # always in use
            store.put(str(day).encode(), bytes(100_000))
    assert store.file.stat().st_size <= most + 100_000
    with Store(most) as store:
        kept = [day for day in range(20) if str(day).encode() in store]
    assert kept[0] == 0 and kept[1:] == list(range(20 - len(kept) + 1, 20)) and len(kept) > 5


def test_more_than_fits_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAITING", 100_000)
    with Store(500_000) as store:
        for number in range(20):
            store.put(str(number).encode(), bytes(100_000))
    assert store.file.stat().st_size < 800_000


def test_what_is_not_used_is_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store() as store:
        store.put(b"old", b"value")
    monkeypatch.setattr(store_module.time, "time", lambda: store.now + UNUSED + 10)
    with Store() as later:
        assert b"old" not in later


def test_nothing_is_written_through_a_link(home: Path, tmp_path: Path) -> None:
    (home / "decoded").mkdir(parents=True)
    (tmp_path / "elsewhere").write_bytes(b"")
    (home / "decoded" / "images.sqlite").symlink_to(tmp_path / "elsewhere")
    with Store() as store:
        store.put(b"key", b"value")
    assert (tmp_path / "elsewhere").read_bytes() == b""
    (home / "decoded" / "images.sqlite").unlink()
    (home / "decoded").rmdir()
    (home / "decoded").symlink_to(tmp_path)
    with pytest.raises(SicError, match="is a link"):
        Store()


def test_a_damaged_store_costs_only_time(home: Path, samples: list[Sample], decoded: list[str]) -> None:
    folder = samples[0].path.parent
    load(samples, folder)
    file = Store().file
    file.write_bytes(b"this is no database" * 1000)
    for _ in range(3):
        assert len(load(samples, folder).samples) == 3
    assert len(decoded) == 9  # the damaged file is removed, then written anew


def test_a_changed_value_is_not_believed(home: Path) -> None:
    with Store() as store:
        store.put(b"key", b"value")
    with sqlite3.connect(store.file) as database:
        [[value]] = database.execute("SELECT value FROM contents").fetchall()
        database.execute("UPDATE contents SET value = ?", (value[:-1] + b"!",))
    database.close()
    with Store() as store:
        assert store.get(b"key") is None


def test_the_search_for_copies_is_not_repeated(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((90, 90)) for _ in range(4)]
    prints = [fingerprint(each) for each in [*pictures, pictures[1].resize((80, 80))]]
    within, between = copies_within(prints), near_copies(prints[:4], prints[4:])
    assert (within, between) == ([[1, 4]], [(1, 0)])
    searches = []
    original = duplicates._pairs
    monkeypatch.setattr(duplicates, "_pairs", lambda *a, **k: searches.append(1) or original(*a, **k))
    assert (copies_within(prints), near_copies(prints[:4], prints[4:])) == (within, between)
    assert not searches
    assert near_copies(prints[4:], prints[:4]) == [(0, 1)] and searches
