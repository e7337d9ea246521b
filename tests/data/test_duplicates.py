from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy.fft import dct
from scipy.ndimage import gaussian_filter

from sic.data import duplicates
from sic.data.duplicates import SIDE, Fingerprint, align, copies_within, fingerprint, hashes, near_copies

Change = Callable[[Image.Image], Image.Image]


@cache
def picture(seed: int, height: int = 120, width: int = 160, common: float = 0) -> Image.Image:
    """Something like a photograph: structure at all sizes; a share of it is common to all pictures, as in X-rays."""

    def structure(rng: np.random.Generator) -> np.ndarray:
        noise = [gaussian_filter(rng.normal(size=(height, width, 3)), (s, s, 0)) * s**1.5 for s in (1, 3, 8, 20)]
        return np.sum(noise, 0)

    values = structure(np.random.default_rng(seed)) * (1 - common) + structure(np.random.default_rng(9999)) * common
    values = (values - values.mean()) / values.std() * 50 + 128
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: int = 40) -> Image.Image:
    from io import BytesIO

    stream = BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def cropped(image: Image.Image, share: float = 0.03) -> Image.Image:
    width, height = image.size
    return image.crop((round(width * share), 0, width, round(height * (1 - share))))


def with_object(image: Image.Image) -> Image.Image:
    """Another object in one place: a twentieth of the picture."""
    pixels = np.array(image)
    height, width = pixels.shape[:2]
    pixels[height // 2 : height // 2 + height // 4, width // 5 : width // 5 + width // 5] = (250, 250, 20)
    return Image.fromarray(pixels)


COPIES: dict[str, Change] = {
    "as it is": lambda image: image,
    "JPEG": jpeg,
    "half the size": lambda image: image.resize((80, 60)),
    "twice the size": lambda image: image.resize((320, 240), Image.Resampling.BICUBIC),
    "other proportions": lambda image: image.resize((128, 128)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "paler": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "cropped": cropped,
    "cropped, small, JPEG": lambda image: jpeg(cropped(image, 0.02).resize((100, 75)), 60),
}
OTHERS: dict[str, Change] = {
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "upside down": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "an object more": with_object,
    "half of it": lambda image: image.crop((0, 0, 80, 120)),
    "negative": lambda image: Image.eval(image, lambda value: 255 - value),
}


def prints(images: list[Image.Image]) -> list[Fingerprint]:
    return [fingerprint(image) for image in images]


PICTURES = [picture(seed) for seed in range(12)]


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_found_and_nothing_else(name: str) -> None:
    copies = [COPIES[name](image) for image in PICTURES[::2]]
    assert near_copies(prints(PICTURES), prints(copies)) == [(2 * i, i) for i in range(6)]


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_another_picture_is_not_found(name: str) -> None:
    assert near_copies(prints(PICTURES), prints([OTHERS[name](image) for image in PICTURES])) == []


def test_pictures_that_share_most_are_not_copies() -> None:
    """Hashes alone would say so: many of these pairs differ in a few bits only."""
    alike = [picture(seed, common=0.8) for seed in range(40)]
    first, second = prints(alike[:20]), prints(alike[20:])
    bits = hashes(np.stack([p.grey for p in first]))[:, None] ^ hashes(np.stack([p.grey for p in second]))
    assert (np.bitwise_count(bits) <= 10).sum() > 20
    assert near_copies(first, second) == []
    assert near_copies(first, prints([jpeg(image) for image in alike[:20]])) == [(i, i) for i in range(20)]


def test_small_and_featureless_pictures_are_not_compared() -> None:
    small = prints([image.resize((20, 40)) for image in PICTURES])
    assert near_copies(small, small) == []
    flat = prints([Image.new("RGB", (64, 64), colour) for colour in ("white", "grey", "black")])
    assert near_copies(flat, flat) == []
    assert near_copies([], small) == near_copies(small, []) == []


def test_many_copies_of_one_picture_take_bounded_work() -> None:
    many = prints([PICTURES[0]]) * 600
    assert [j for _, j in near_copies(many, many[:3])] == [0, 1, 2]


def test_of_several_copies_the_closest_counts() -> None:
    image = PICTURES[0]
    versions = prints([jpeg(image, 20), cropped(image), jpeg(image, 95), image.resize((90, 70)), PICTURES[1]])
    assert near_copies(versions, prints([image])) == [(2, 0)]


def test_digests_are_of_the_pixels_and_their_shape() -> None:
    image = PICTURES[0]
    assert fingerprint(image).digest == fingerprint(image.copy()).digest != fingerprint(jpeg(image)).digest
    turned = Image.frombytes("RGB", (120, 160), image.tobytes())
    assert fingerprint(turned).digest != fingerprint(image).digest


def test_hashes_agree_with_a_slow_one() -> None:
    greys = np.stack([fingerprint(image).grey for image in PICTURES])
    for grey, code in zip(greys, hashes(greys), strict=True):
        half = grey.astype(float).reshape(SIDE // 2, 2, SIDE // 2, 2).mean((1, 3))
        low = dct(dct(half, axis=0), axis=1)[:8, :8].ravel()
        low[0] = 0
        bits = [str(int(value > np.median(low))) for value in low]
        expected = int.from_bytes(int("".join(bits), 2).to_bytes(8, "big"), "little")
        assert int(code) == expected


def test_alignment_finds_a_known_move() -> None:
    """b(y) = a(y + down + tall·y), and the same for x, in half sides from the middle."""
    rng = np.random.default_rng(0)
    waves = [(rng.normal(size=2) * 6, rng.uniform(0, 6), rng.normal()) for _ in range(12)]

    def field(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.sum([size * np.cos(k[0] * y + k[1] * x + phase) for k, phase, size in waves], 0)

    y, x = (np.mgrid[:64, :64] - 31.5) / 31.5
    down, right, tall, wide = move = 0.03, -0.05, 0.04, -0.02
    a = field(y, x).astype(np.float32)[None]
    b = field(y + down + tall * y, x + right + wide * x).astype(np.float32)[None]
    moved, found = align(a, b, np.zeros((1, 4), np.float32))
    np.testing.assert_allclose(found[0], move, atol=2e-3)
    assert np.abs(moved - b)[:, 6:-6, 6:-6].max() < 0.05 * np.abs(b).max() < np.abs(a - b).max()


def test_copies_within_are_all_in_one_set() -> None:
    one, two = PICTURES[0], PICTURES[3]
    images = [
        PICTURES[5],
        one,
        jpeg(one),
        two,
        PICTURES[6],
        one.copy(),
        two.resize((80, 60)),
        PICTURES[7],
        cropped(one),
    ]
    seen: list[tuple[int, int]] = []
    found = copies_within(prints(images), lambda done, total: seen.append((done, total)))
    assert sorted(found) == [[1, 2, 5, 8], [3, 6]]
    assert seen[-1] == (8, 8)  # of two that are equal, one is compared
    assert copies_within(prints(PICTURES)) == [] == copies_within([])


def test_equal_pictures_are_copies_however_small_or_flat() -> None:
    flat = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "red", "green", "blue", "red")]
    assert sorted(copies_within(prints(flat))) == [[0, 2, 5], [1, 4]]


def test_pairs_within_are_those_of_a_comparison_with_the_others() -> None:
    """Against the slow way: each picture with all pictures before it."""
    images = [change(image) for image in PICTURES[:4] for change in (*COPIES.values(), *OTHERS.values())]
    found = prints(images)
    expected = {(i, j) for j in range(1, len(found)) for i, _ in near_copies(found[:j], [found[j]]) if i < j}
    sets = copies_within(found)
    home = {position: number for number, positions in enumerate(sets) for position in positions}
    assert all(home[i] == home[j] for i, j in expected)
    assert len(expected) >= 30


@pytest.mark.parametrize("earlier", [True, False])
def test_candidates_are_those_of_a_loop_over_all_pairs(earlier: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the tiles, and also where an image has more candidates than are looked at."""
    images = [picture(seed, common=0.8) for seed in range(24)]
    images += [jpeg(cropped(image), 30 + seed) for seed, image in enumerate(images[::2])]
    greys = np.stack([fingerprint(image).grey for image in images])
    second = greys if earlier else greys[::-1].copy()
    monkeypatch.setattr(duplicates, "CANDIDATES", (6, 2))
    expected = slow_candidates(greys, second, earlier)
    assert len(expected) > 20
    for rows, columns in ((5, 7), (64, 8192)):
        monkeypatch.setattr(duplicates, "ROWS", rows)
        monkeypatch.setattr(duplicates, "COLUMNS", columns)
        with ThreadPoolExecutor(2) as pool:
            a, b = duplicates._signatures(greys, pool), duplicates._signatures(second, pool)
        found = [
            (int(i), int(j))
            for start in range(0, len(second), rows)
            for i, j in duplicates._candidates(a, b, slice(start, start + rows), earlier)
        ]
        assert set(found) == expected and len(found) == len(expected)


def slow_candidates(first: np.ndarray, second: np.ndarray, earlier: bool) -> set[tuple[int, int]]:
    """One pair after the other."""

    def details(grey: np.ndarray) -> np.ndarray:
        half = grey.reshape(32, 2, 32, 2).mean((1, 3), dtype=np.float32)
        edges = gaussian_filter(half, 1) - gaussian_filter(half, 3)
        return (edges / np.linalg.norm(edges)).ravel()

    result = set()
    for j, other in enumerate(second):
        bits = []
        for i, one in enumerate(first[:j] if earlier else first):
            differ = int(hashes(one[None])[0]) ^ int(hashes(other[None])[0])
            if differ.bit_count() <= duplicates.MOST_BITS:
                bits.append((differ.bit_count(), i))
        alike = [(-details(first[i]) @ details(other), i) for _, i in sorted(bits)[: duplicates.CANDIDATES[0]]]
        alike = sorted((value, i) for value, i in alike if value <= -duplicates.ALIKE)[: duplicates.CANDIDATES[1]]
        result |= {(i, j) for _, i in alike}
    return result
