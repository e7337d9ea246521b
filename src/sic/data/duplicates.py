"""Find duplicate images, also if they were re-encoded, resized, brightened a little or cropped a little.

A 64-bit perceptual hash finds candidates among all pairs. X-rays or rendered scenes can have similar hashes without
being copies, so a candidate counts only if the details of the two aligned images agree. All pairs of hashes are
compared, in tiles that fit into the cache: 0.7 ns a pair, whatever the hashes are (see benchmarks/copies.py). SciPy is
imported where it is used: `sic explain` does not need it.
"""

import hashlib
import struct
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sic.data.dataset import Progress
from sic.data.images import Pixels
from sic.data.store import code_of, key_of, remembered
from sic.machines import cores

Array = NDArray[np.float32]

SIDE = 64
"""Side of the reduced grey image that is kept of every image."""
DIGEST = 16
"""Bytes of the checksum of an image."""
SMALLEST = 32
"""Short side in pixels below which an image has too little detail to be a near duplicate."""
MOST_BITS = 10
"""Different bits of two hashes. Copies differ in 6 at most (399 of 400), those cropped by 4 % in 10 (93 of 100)."""
ALIKE = 0.7
"""The lowest correlation of the details at 32×32 before the images are aligned."""
STAGES = (2, 0.93), (1, 0.98)
"""For aligned images: the factor of their reduction, and the lowest correlation of their details.

Measured: copies end above 0.98 (398 of 400 at least), different X-rays and photographs below 0.93. Rendered birds in
the same pose can reach 0.988 (3 in 21 million pairs are above 0.98).
"""
FURTHEST = 0.12
"""The most that an image is shifted or stretched, in units of half its side."""
CANDIDATES = 256, 4
"""The most candidates of an image by hash, and of these by correlation; bounds the work if all images are similar."""
ROWS, COLUMNS = 64, 8192
"""The size of a tile of compared hashes, which fits into a processor's cache."""


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of an image."""

    size: tuple[int, int]
    """Width and height."""
    digest: bytes
    """A checksum of the decoded pixels, which is equal for equal images in different file formats."""
    grey: Pixels
    """SIDE×SIDE."""

    BYTES: ClassVar = 8 + DIGEST + SIDE * SIDE
    """The length of its encoding."""

    def encoded(self) -> bytes:
        return struct.pack("<II", *self.size) + self.digest + self.grey.tobytes()

    @classmethod
    def decoded(cls, stored: bytes) -> Self:
        start = 8 + DIGEST
        width, height = struct.unpack("<II", stored[:8])
        return cls((width, height), stored[8:start], np.frombuffer(stored[start:], np.uint8).reshape(SIDE, SIDE))


def fingerprint(image: Image.Image) -> Fingerprint:
    """The fingerprint of an RGB image; takes 0.5 ms for 256×256 pixels and 0.1 s for 12 megapixels."""
    digest = hashlib.blake2b(image.tobytes(), digest_size=DIGEST, key=repr(image.size).encode())
    grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return Fingerprint(image.size, digest.digest(), np.array(grey))


def near_copies(first: Sequence[Fingerprint], second: Sequence[Fingerprint]) -> list[tuple[int, int]]:
    """Pairs of positions of the same image: for each of `second` the closest of `first`, if there is one."""

    def search() -> list[tuple[int, int]]:
        rows, columns = _detailed(first), _detailed(second)
        closest = {j: i for i, j in _pairs(_greys(first, rows), _greys(second, columns))}
        return [(rows[i], columns[j]) for j, i in sorted(closest.items())]

    return [(i, j) for i, j in remembered(_key(first, second), search)]


def copies_within(prints: Sequence[Fingerprint], progress: Progress | None = None) -> list[list[int]]:
    """Sets of two or more positions of images that are the same or nearly so, including copies of copies."""
    return list(remembered(_key(prints), lambda: _sets(prints, progress)))


def _key(*sides: Sequence[Fingerprint]) -> bytes:
    """Under which the copies among these images are remembered; a digest stands for an image."""
    return key_of(code_of(sys.modules[__name__]), [[each.digest for each in side] for side in sides])


def _sets(prints: Sequence[Fingerprint], progress: Progress | None) -> list[list[int]]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first: dict[bytes, int] = {}
    links = [(first.setdefault(p.digest, position), position) for position, p in enumerate(prints)]
    rows = [position for position in _detailed(prints) if first[prints[position].digest] == position]
    greys = _greys(prints, rows)
    links += [(rows[i], rows[j]) for i, j in _pairs(greys, greys, earlier=True, progress=progress)]
    ends = np.array(links, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(links), bool), (ends[0], ends[1])), (len(prints), len(prints)))
    members: dict[int, list[int]] = defaultdict(list)
    for position, component in enumerate(connected_components(graph, directed=False)[1]):
        members[int(component)].append(position)
    return [positions for positions in members.values() if len(positions) > 1]


def _detailed(prints: Sequence[Fingerprint]) -> list[int]:
    return [position for position, p in enumerate(prints) if min(p.size) >= SMALLEST]


def _greys(prints: Sequence[Fingerprint], rows: Sequence[int]) -> Pixels:
    """N×SIDE×SIDE."""
    return np.stack([prints[row].grey for row in rows]) if rows else np.zeros((0, SIDE, SIDE), np.uint8)


def _reduced(pictures: NDArray[np.uint8], by: int) -> Array:
    side = SIDE // by
    return pictures.reshape(len(pictures), side, by, side, by).mean((2, 4), dtype=np.float32)


def hashes(pictures: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Perceptual hashes, N×SIDE×SIDE → N×64 bits: which of the 8×8 lowest frequencies are above their median, without
    the mean brightness."""
    from scipy.fft import dctn

    frequencies = dctn(_reduced(pictures, 2), axes=(1, 2))[:, :8, :8].reshape(len(pictures), 64)
    frequencies[:, 0] = 0
    bits = frequencies > np.median(frequencies, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(np.uint64)[:, 0]


def _details(pictures: Array) -> Array:
    """The details of images: smoothed a little, minus a local mean, which removes the common shape of X-rays."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(pictures, (0, 1, 1)) - gaussian_filter(pictures, (0, 3, 3))


def _pairs(a: Pixels, b: Pixels, earlier: bool = False, progress: Progress | None = None) -> list[tuple[int, int]]:
    """All pairs that are copies, by j, the closest i last; with `earlier`, only i < j."""
    if not len(a) or not len(b):
        return []
    found: list[tuple[int, int]] = []
    with ThreadPoolExecutor(cores()) as pool:  # NumPy's loops run beside each other
        sides = [_signatures(a, pool)] if b is a else [_signatures(a, pool), _signatures(b, pool)]

        def block(start: int) -> list[tuple[int, int]]:
            pairs = _candidates(sides[0], sides[-1], slice(start, start + ROWS), earlier)
            return _confirmed(a, b, pairs) if len(pairs) else []

        for start, pairs in zip(range(0, len(b), ROWS), pool.map(block, range(0, len(b), ROWS)), strict=True):
            found += pairs
            if progress is not None:
                progress(min(start + ROWS, len(b)), len(b))
    return found


class _Signatures(NamedTuple):
    hashes: NDArray[np.uint64]
    """N."""
    details: Array
    """Unit vectors, N×(SIDE/2)²."""


def _signatures(pictures: Pixels, pool: ThreadPoolExecutor) -> _Signatures:
    def block(some: Pixels) -> tuple[NDArray[np.uint64], Array]:
        return hashes(some), _unit(_details(_reduced(some, 2)).reshape(len(some), -1))

    blocks = [pictures[start : start + 1024] for start in range(0, len(pictures), 1024)]
    return _Signatures(*map(np.concatenate, zip(*pool.map(block, blocks), strict=True)))


def _candidates(a: _Signatures, b: _Signatures, rows: slice, earlier: bool) -> NDArray[np.int64]:
    """Pairs (i, j), n×2, with j in `rows` of `b`, that have similar hashes and similar details; with `earlier`,
    only i < j."""
    most, few = CANDIDATES
    i, j, bits = _similar(a.hashes[: rows.stop] if earlier else a.hashes, b.hashes[rows])
    j += rows.start
    if earlier:
        i, j, bits = i[i < j], j[i < j], bits[i < j]
    kept = _least(j, bits, most)
    i, j = i[kept], j[kept]
    ends = np.flatnonzero(np.diff(j, append=-1)) + 1  # of the entries of one j, which stand together
    alike = np.concatenate(
        [np.zeros(0, np.float32), *(a.details[i[s:e]] @ b.details[j[s]] for s, e in pairwise([0, *ends]))]
    )
    i, j, alike = i[alike >= ALIKE], j[alike >= ALIKE], alike[alike >= ALIKE]
    kept = _least(j, -alike, few)
    return np.stack([i[kept], j[kept]], 1)


def _similar(
    a: NDArray[np.uint64], b: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Pairs (i, j) of hashes that differ in at most `MOST_BITS`, and in how many; for each j in the order of i."""
    differ = np.empty((len(b), COLUMNS), np.uint64)
    bits = np.empty((len(b), COLUMNS), np.uint8)
    found = []
    for start in range(0, len(a), COLUMNS):
        some = a[start : start + COLUMNS]
        np.bitwise_xor(b[:, None], some, out=differ[:, : len(some)])
        np.bitwise_count(differ, out=bits)
        j, i = np.nonzero(bits[:, : len(some)] <= MOST_BITS)
        if i.size:
            found.append((i + start, j, bits[j, i]))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
    i, j, number = map(np.concatenate, zip(*found, strict=True))
    return i, j, number


def _least(row: NDArray[np.int64], cost: NDArray[Any], number: int) -> NDArray[np.int64]:
    """Positions of the `number` entries with the lowest cost in each row."""
    order = np.lexsort((cost, row))
    rank = np.arange(len(order)) - np.searchsorted(row[order], row[order])
    return order[rank < number]


def _confirmed(a: NDArray[np.uint8], b: NDArray[np.uint8], pairs: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The pairs that agree after one image is aligned with the other, the best ones last."""
    moves = np.zeros((len(pairs), 4), np.float32)
    for reduction, least in STAGES:
        first, second = _details(_reduced(a[pairs[:, 0]], reduction)), _details(_reduced(b[pairs[:, 1]], reduction))
        moved, moves = align(first, second, moves)
        alike = _correlation(_inner(moved), _inner(second))
        kept = np.argsort(alike)[np.count_nonzero(alike < least) :]
        if not kept.size:
            return []
        pairs, moves = pairs[kept], moves[kept]
    return [(int(i), int(j)) for i, j in pairs]


def align(a: Array, b: Array, moves: Array, steps: int = 4) -> tuple[Array, Array]:
    """`a` (N×S×S) aligned with `b`, and the moves.

    Gauss-Newton steps (Lucas and Kanade) find a move (y, x, stretch y, stretch x), in units of half the side, starting
    from `moves`.
    """
    from scipy.ndimage import map_coordinates

    middle = (a.shape[1] - 1) / 2
    grid = (np.mgrid[: a.shape[1], : a.shape[2]].astype(np.float32) - middle) / middle
    y, x = grid[0], grid[1]
    number = np.broadcast_to(np.arange(len(a))[:, None, None], a.shape)

    def moved() -> Array:
        down, right, tall, wide = moves.T[:, :, None, None]
        places = [number, middle * (1 + y + down + tall * y), middle * (1 + x + right + wide * x)]
        return map_coordinates(a, places, order=1, mode="nearest")

    for _ in range(steps):
        now = moved()
        slope_y, slope_x = (np.gradient(now, 1 / middle, axis=axis) for axis in (1, 2))
        slopes = np.stack([_inner(slope) for slope in (slope_y, slope_x, y * slope_y, x * slope_x)], 1)
        slopes = slopes.reshape(len(a), 4, -1)
        square = slopes @ slopes.transpose(0, 2, 1)
        square += (1e-4 * np.trace(square, axis1=1, axis2=2)[:, None, None] + 1e-6) * np.eye(4)
        change = np.linalg.solve(square, slopes @ _inner(b - now).reshape(len(a), -1, 1))[:, :, 0]
        moves = np.clip(moves + change, -FURTHEST, FURTHEST).astype(np.float32)
    return moved(), moves


def _inner(pictures: Array) -> Array:
    """The images without their border, where a shifted image may have no pixels."""
    rim = pictures.shape[1] // 16
    return pictures[:, rim:-rim, rim:-rim]


def _correlation(a: Array, b: Array) -> Array:
    return np.einsum("nd,nd->n", _unit(a.reshape(len(a), -1)), _unit(b.reshape(len(b), -1)))


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-3)
