import math
import random
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from sic.data.images import Preprocessing
from sic.data.transforms import Moves, TrainingTransform, boxes, evaluation_view, photo
from sic.settings import Augmentation

SIZE = 32
PREPROCESSING = Preprocessing(SIZE, 40)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(number: int, height: int = 40, width: int = 48) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (number, height, width, 3), dtype=np.uint8))


def affine(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """N×3×S×S bytes, moved as `--augmentation affine` does."""
    return TrainingTransform("affine", Preprocessing(SIZE, SIZE))(list(batch.permute(0, 2, 3, 1).numpy()), generator)


def ramps(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Batches whose grey value is 8 × column, 8 × row."""
    line = 8 * torch.arange(SIZE, dtype=torch.uint8)
    columns = line.expand(SIZE, SIZE).expand(number, 3, SIZE, SIZE)
    return columns, columns.transpose(2, 3)


def fitted(number: int, seed: int) -> np.ndarray:
    """What `affine` did, n×2×3, read off two ramps: source (x, y) = A · target (x, y) + shift, all in [-1, 1].

    Only the central half counts: it never sees the mirrored border.
    """
    inner = slice(SIZE // 4, 3 * SIZE // 4)
    centre = (2 * np.arange(SIZE) + 1) / SIZE - 1
    y, x = np.meshgrid(centre[inner], centre[inner], indexing="ij")
    design = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], 1)
    found = []
    for batch in ramps(number):
        moved = affine(batch, generator(seed))[:, 0, inner, inner].double().numpy() / 8
        places = (2 * moved + 1) / SIZE - 1
        found.append(np.linalg.lstsq(design, places.reshape(number, -1).T, rcond=None)[0].T)
    return np.stack(found, 1)


def test_the_evaluation_view_is_the_centre() -> None:
    batch = images(3)
    view = evaluation_view(batch, PREPROCESSING)
    assert view.shape == (3, 3, SIZE, SIZE) and view.dtype == torch.uint8
    np.testing.assert_array_equal(view.permute(0, 2, 3, 1).numpy(), np.stack(batch)[:, 4:36, 8:40])


def test_affine_does_what_its_docstring_says() -> None:
    maps = fitted(400, seed=1)
    linear, shift = maps[:, :, :2], maps[:, :, 2]
    area = np.linalg.det(linear)
    scale = 1 / np.sqrt(np.abs(area))
    angle = np.degrees(np.arctan2(linear[:, 1, 0], linear[:, 1, 1]))
    assert 0.845 < scale.min() < 0.87 and 1.13 < scale.max() < 1.155
    assert -12.3 < angle.min() < -11 and 11 < angle.max() < 12.3
    assert -0.205 < shift.min() < -0.19 and 0.19 < shift.max() < 0.205  # 10 % of the side, which is 2 long
    assert abs((area < 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(400)
    # Nothing but a similarity: columns of equal length at a right angle.
    np.testing.assert_allclose(np.linalg.norm(linear, axis=1)[:, 0], np.linalg.norm(linear, axis=1)[:, 1], atol=1e-2)
    np.testing.assert_allclose((linear[:, :, 0] * linear[:, :, 1]).sum(1), 0, atol=1e-2)
    assert len(np.unique(maps.round(3), axis=0)) > 390  # each image by itself


def test_affine_pixels_against_scipy() -> None:
    """The movement is read off ramps, then done again with `map_coordinates` and mirrored borders."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    picture = 127 + 60 * np.sin(7 * x + 1) + 60 * np.cos(5 * y)
    batch = torch.from_numpy(picture).round().to(torch.uint8).expand(12, 3, SIZE, SIZE)
    moved = affine(batch, generator(5)).double().numpy()
    centre = (2 * np.arange(SIZE) + 1) / SIZE - 1
    for image, ((a, b, c), (d, e, f)) in zip(moved, fitted(12, seed=5), strict=True):
        gx, gy = centre[None], centre[:, None]
        at = np.stack([d * gx + e * gy + f, a * gx + b * gy + c])
        expected = map_coordinates(batch[0, 0].double().numpy(), ((at + 1) * SIZE - 1) / 2, order=1, mode="reflect")
        assert np.abs(image - expected).max() < 4  # of 255: rounding, and the accuracy of the fit


def test_affine_keeps_a_constant_image_constant() -> None:
    for value in (0, 77, 255):
        batch = torch.full((16, 3, SIZE, SIZE), value, dtype=torch.uint8)
        assert torch.equal(affine(batch, generator()), batch)


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_training_transforms_depend_on_their_generator_alone(augmentation: str) -> None:
    transform = TrainingTransform(augmentation, PREPROCESSING)  # type: ignore[arg-type]
    batch = images(8)
    torch.manual_seed(1)
    first = transform(batch, generator(3))
    torch.manual_seed(2)
    assert first.shape == (8, 3, SIZE, SIZE) and first.dtype == torch.uint8
    assert torch.equal(transform(batch, generator(3)), first)
    assert torch.equal(transform(batch, generator(4)), first) == (augmentation == "none")


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_training_transforms_leave_global_generators_alone(augmentation: str) -> None:
    transform = TrainingTransform(augmentation, PREPROCESSING)  # type: ignore[arg-type]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    source = images(4)
    transform(source, generator())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    for image, original in zip(source, images(4), strict=True):
        np.testing.assert_array_equal(image, original)


def test_none_is_the_evaluation_view() -> None:
    batch = images(3)
    assert torch.equal(
        TrainingTransform("none", PREPROCESSING)(batch, generator()), evaluation_view(batch, PREPROCESSING)
    )


def test_affine_works_on_the_evaluation_view() -> None:
    batch = images(3)
    expected = affine(evaluation_view(batch, PREPROCESSING), generator(2))
    assert torch.equal(TrainingTransform("affine", PREPROCESSING)(batch, generator(2)), expected)


def test_photos_are_cropped_flipped_and_erased() -> None:
    """On pictures that brighten to the right: flipped ones darken, erased boxes are black."""
    line = np.linspace(60, 250, 48).astype(np.uint8)
    batch = [np.broadcast_to(line[None, :, None], (40, 48, 3))] * 400
    out = TrainingTransform("photo", PREPROCESSING)(batch, generator(1)).float()
    erased = (out == 0).all(1).any(2).any(1)
    assert abs(erased.float().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(400)
    lit = out.amax((1, 2))  # brightest value of every column, n×S
    flipped = lit[:, -1] < lit[:, 0]
    assert abs(flipped.float().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(400)
    assert len({image.numpy().tobytes() for image in out}) > 350


def black_boxes(batch: torch.Tensor) -> list[float]:
    """Share of each image that is black, of those where anything is."""
    shares = (batch == 0).all(1).float().mean((1, 2))
    return [share for share in shares.tolist() if share > 0]


def test_photos_lose_boxes_of_the_papers_sizes() -> None:
    batch = [np.full((40, 48, 3), 200, np.uint8)] * 600
    out = TrainingTransform("photo", PREPROCESSING)(batch, generator(1))
    shares = black_boxes(out)
    assert abs(len(shares) / 600 - 0.5) < 4 * 0.5 / math.sqrt(600)
    assert 0.01 < min(shares) < 0.05 and 0.29 < max(shares) < 0.36  # of 32×32: sides are rounded
    assert set(out.unique().tolist()) == {0, 200}


def moved_xrays(number: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """X-rays of two ramps that nothing black falls on: which were erased, and each one's map n×2×3 as in `fitted`."""
    size = 64
    line = 2 * np.arange(1, size + 1, dtype=np.uint8)
    columns = np.broadcast_to(line[None, :, None], (size, size, 3))
    preprocessing = Preprocessing(size, size)
    seen = [
        TrainingTransform("xray", preprocessing)([picture] * number, generator(seed))[:, 0].double().numpy()
        for picture in (columns, columns.swapaxes(0, 1))
    ]
    centre = (2 * np.arange(size) + 1) / size - 1
    y, x = np.meshgrid(centre, centre, indexing="ij")
    maps, whole = [], []
    inner = (np.abs(x) < 0.35) & (np.abs(y) < 0.35)  # never sees beyond the edge
    for image in zip(*seen, strict=True):
        used = inner & (image[0] > 0) & (image[1] > 0)
        whole.append(used.sum() == inner.sum())
        design = np.stack([x[used], y[used], np.ones(used.sum())], 1)
        places = [((v[used] / 2 - 1) * 2 + 1) / size - 1 for v in image]
        maps.append([np.linalg.lstsq(design, place, rcond=None)[0] for place in places])
    return torch.tensor(whole), np.array(maps)


def test_xrays_move_as_in_the_paper() -> None:
    whole, maps = moved_xrays(600, seed=2)
    assert 0.3 < (~whole).float().mean() < 0.5  # a box is erased in half of them, mostly near the centre
    maps = maps[whole.numpy()]
    linear = maps[:, :, :2]
    area = np.linalg.det(linear)
    scale = 1 / np.sqrt(np.abs(area))
    flip = np.sign(area)
    angle = np.degrees(np.arctan2(linear[:, 1, 0], linear[:, 1, 1]))
    # source = A · (target - shift), so the shift is what A undoes.
    shift = -np.einsum("nij,nj->ni", np.linalg.inv(linear), maps[:, :, 2]) / 2
    assert 0.845 < scale.min() < 0.87 and 1.13 < scale.max() < 1.155
    assert -45.5 < angle.min() < -42 and 42 < angle.max() < 45.5
    assert -0.16 < shift.min() < -0.14 and 0.14 < shift.max() < 0.16
    assert abs((flip < 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(len(flip))


def test_xrays_lose_boxes_of_the_papers_sizes() -> None:
    """Told from the black around a moved image by the same movement without them."""
    size, number = 64, 400
    images = [np.full((size, size, 3), 250, np.uint8)] * number
    transform = TrainingTransform("xray", Preprocessing(size, size))
    moves = transform.draw(images, generator(3))
    assert moves is not None
    whole = transform.apply(transform.canvas(images), Moves(moves.source, moves.extent, torch.zeros(number, 4)))
    shares = []
    for image, moved in zip(transform.apply(transform.canvas(images), moves), whole, strict=True):
        rows, columns = torch.where((image != moved).any(0))
        if len(rows) == 0:
            continue
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        around = moved[:, max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1]
        # None: some of it may lie in the dark, unseen
        shares.append(int((bottom - top) * (right - left)) / size**2 if (around > 0).all() else None)
    assert abs(len(shares) / number - 0.5) < 4 * 0.5 / math.sqrt(number)
    seen = [share for share in shares if share is not None]
    assert 0.04 < min(seen) < 0.06 and 0.18 < max(seen) < 0.22


def test_photos_of_different_sizes_do_not_see_each_other() -> None:
    """Bright images on canvases of every size: nothing of the filling comes in."""
    sizes = [(40, 48), (60, 40), (40, 40), (40, 160)] * 50
    batch = [np.full((*size, 3), 200, np.uint8) for size in sizes]
    out = TrainingTransform("photo", PREPROCESSING)(batch, generator(4))
    assert set(out.unique().tolist()) == {0, 200}
    assert (out[:, 0] > 0).any(2).any(1).all()


def test_photo_crops_against_their_definition() -> None:
    """The cropped rectangle, read off the map: inside the image, of the area and proportions that were asked for."""
    sides = torch.tensor([(48, 40), (40, 60), (400, 40)]).repeat(300, 1)
    maps = photo(sides, generator(7)).double()
    half, centre = torch.stack([maps[:, 0, 0], maps[:, 1, 1]], 1).abs(), maps[:, :, 2]
    assert (maps[:, 0, 1] == 0).all() and (maps[:, 1, 0] == 0).all() and (maps[:, 1, 1] > 0).all()
    assert (centre.abs() + half <= 1 + 1e-6).all()
    area, (width, height) = half.prod(1), (half * sides).T
    ratio = width / height
    strip = sides[:, 0] == 400
    assert ((ratio > 0.749) & (ratio < 1.334)).all()
    assert 0.079 < area[~strip].min() < 0.1 and 0.9 < area[~strip].max() <= 1
    # A strip is ten times as wide as high: the largest crop of 4:3 takes 13 % of it, in the middle where nothing fits.
    assert area[strip].max() < 0.134
    assert (centre[strip & (area > 0.1333)].abs() < 1e-6).all() and (strip & (area > 0.1333)).sum() > 50
    assert abs((maps[:, 0, 0] < 0).double().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(len(maps))


def test_photo_pixels_against_scipy() -> None:
    y, x = np.mgrid[:40, :48]
    picture = (127 + 60 * np.sin(x / 7) + 60 * np.cos(y / 5)).astype(np.uint8)
    transform = TrainingTransform("photo", PREPROCESSING)
    # A canvas that is larger than the picture: another image of the batch is.
    batch = [np.repeat(picture[:, :, None], 3, 2), np.zeros((50, 70, 3), np.uint8)] * 6
    moves = transform.draw(batch, generator(9))
    assert moves is not None
    moves.erased.zero_()
    moved = transform.apply(transform.canvas(batch), moves)[::2, 0].double().numpy()
    grid = (2 * np.arange(SIZE) + 1) / SIZE - 1
    for image, ((a, _, c), (_, e, f)) in zip(moved, moves.source[::2].double().numpy(), strict=True):
        columns, rows = ((a * grid + c + 1) * 48 - 1) / 2, ((e * grid + f + 1) * 40 - 1) / 2
        at = np.stack(np.meshgrid(rows, columns, indexing="ij"))
        expected = map_coordinates(picture.astype(float), at, order=1, mode="nearest")
        assert np.abs(image - expected).max() < 0.6


def test_boxes_are_of_the_asked_areas_and_lie_inside() -> None:
    found = boxes(2000, (0.1, 0.3), generator(2))
    erased = found[(found != 0).any(1)]
    assert abs(len(erased) / 2000 - 0.5) < 4 * 0.5 / math.sqrt(2000)
    left, top, right, bottom = erased.T
    area, ratio = (right - left) * (bottom - top), (right - left) / (bottom - top)
    assert 0.1 <= area.min() < 0.102 and 0.298 < area.max() <= 0.3001
    assert 0.29 < ratio.min() < 0.4 and 2.7 < ratio.max() < 3.31
    assert erased.min() >= 0 and erased.max() <= 1
