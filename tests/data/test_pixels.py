import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sic.data import pixels as module
from sic.data.dataset import Sample, Skipped
from sic.data.duplicates import fingerprint
from sic.data.images import Preprocessing, read_image
from sic.data.pixels import CachedPixels, DecodedPixels, load_pixels

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
