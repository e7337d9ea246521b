"""Loader processes: bounded in number, and none outlives its parent."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from sic.data import loading as module
from sic.data.dataset import Sample, Skipped
from sic.data.duplicates import fingerprint
from sic.data.images import Preprocessing, read_image
from sic.data.loading import CachedPixels, DecodedPixels, load_pixels, loader, most_workers
from sic.errors import SicError

SCRIPT = """
import os, sys, time
from torch.utils.data import Dataset
from sic.data.loading import loader

class Many(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index):
        open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
        return bytes(1_000_000)  # goes through a pipe that nobody empties any more

batches = iter(loader(Many(), None, 2, prefetch_factor=8))
next(batches)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("workers", [100_000, -1])
def test_too_many_workers_are_refused(workers: int) -> None:
    data = TensorDataset(torch.arange(4))
    with pytest.raises(SicError, match=f"--workers {workers} is not possible"):
        loader(data, 2, workers)
    assert most_workers() >= 16
    assert [batch[0].tolist() for batch in loader(data, 2)] == [[0, 1], [2, 3]]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    workers: list[int] = []
    try:
        assert parent.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < deadline:
            workers = [int(path.name) for path in tmp_path.iterdir()]
        assert len(workers) == 2 and all(map(alive, workers))
        parent.kill()
        parent.wait()
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(alive, workers))
    finally:
        parent.kill()
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)


PREPROCESSING = Preprocessing(8, 10)


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    """Seven images of two classes in different shapes; the third is no image."""
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    made = []
    for i in range(7):
        path = tmp_path / "images" / f"{i}.png"
        Image.fromarray(rng.integers(0, 256, (10 + 3 * i, 12, 3), dtype=np.uint8)).save(path)
        made.append(Sample(f"{i}.png", path, (i % 2,)))
    made[2].path.write_text("broken")
    return made


def reference(sample: Sample) -> np.ndarray:
    with Image.open(sample.path) as image:
        width, height = image.size
        scale = 10 / min(width, height)
        return np.asarray(image.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("limit", [1 << 20, 1000, 0])
def test_cached_and_decoded_pixels_are_the_same(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, workers: int
) -> None:
    monkeypatch.setattr(module, "CACHE_LIMIT", limit)
    seen: list[tuple[int, int]] = []
    cache = tmp_path / "pixels.bin"
    loaded = load_pixels(samples, PREPROCESSING, cache, workers, lambda done, total: seen.append((done, total)))
    usable, pixels, skipped = loaded.samples, loaded.pixels, loaded.skipped
    assert isinstance(pixels, CachedPixels if limit > 1000 else DecodedPixels)
    assert cache.exists() == (limit > 1000)
    assert usable == samples[:2] + samples[3:]
    assert skipped == [Skipped("2.png", "not an image")]
    assert seen == [(i, 7) for i in range(1, 8)]
    assert len(pixels) == 6
    for index, sample in enumerate(usable):
        assert pixels[index].dtype == np.uint8
        np.testing.assert_array_equal(pixels[index], reference(sample))
        expected = fingerprint(read_image(sample.path))
        assert loaded.prints[index].digest == expected.digest and loaded.prints[index].size == expected.size
        np.testing.assert_array_equal(loaded.prints[index].grey, expected.grey)


def test_the_cache_needs_no_files_afterwards(samples: list[Sample], tmp_path: Path) -> None:
    loaded = load_pixels(samples, PREPROCESSING, tmp_path / "pixels.bin", 0)
    usable, pixels = loaded.samples, loaded.pixels
    expected = [reference(sample) for sample in usable]
    for sample in usable:
        sample.path.unlink()
    for index in reversed(range(len(usable))):
        np.testing.assert_array_equal(pixels[index], expected[index])


def test_cached_pixels_travel_without_their_map(samples: list[Sample], tmp_path: Path) -> None:
    loaded = load_pixels(samples, PREPROCESSING, tmp_path / "pixels.bin", 0)
    usable, pixels = loaded.samples, loaded.pixels
    assert isinstance(pixels, CachedPixels)
    before = pixels[0]
    assert pixels._map is not None
    data = pickle.dumps(pixels)
    assert len(data) < sum(pixels[i].nbytes for i in range(len(pixels)))
    copy = pickle.loads(data)
    assert copy._map is None and pixels._map is not None
    np.testing.assert_array_equal(copy[0], before)
    assert len(copy) == len(usable)


def test_a_file_lost_later_is_replaced_by_one_with_the_same_labels(samples: list[Sample]) -> None:
    usable = samples[:2] + samples[3:]  # labels 0 1 1 0 1 0
    pixels = DecodedPixels(usable, PREPROCESSING)
    usable[4].path.unlink()
    usable[5].path.write_bytes(usable[5].path.read_bytes()[:40])
    shown = {i: pixels[i].tobytes() for i in range(6)}
    same = {
        i: [reference(s).tobytes() for j, s in enumerate(usable[:4]) if s.labels == usable[i].labels] for i in (4, 5)
    }
    for i in range(4):
        assert shown[i] == reference(usable[i]).tobytes()
    for i in (4, 5):
        assert shown[i] in same[i]
    assert pixels[4].tobytes() == shown[4]  # always by the same one


def test_a_class_lost_whole_becomes_black(samples: list[Sample]) -> None:
    pixels = DecodedPixels(samples, PREPROCESSING)
    for sample in samples[1::2]:
        sample.path.unlink()
    assert pixels[1].shape == (10, 10, 3) and not pixels[1].any()
    assert pixels[0].any()


def test_nothing_readable_leaves_nothing(tmp_path: Path) -> None:
    missing = [Sample("a.png", tmp_path / "a.png", (0,))]
    loaded = load_pixels(missing, PREPROCESSING, tmp_path / "pixels.bin", 0)
    assert loaded.samples == loaded.prints == [] and len(loaded.pixels) == 0
    assert loaded.skipped == [Skipped("a.png", "no such file")]
