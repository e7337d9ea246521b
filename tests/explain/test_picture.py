"""Pictures against a pixel-by-pixel reading of the recipe."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from sic.bcos import encode_colours
from sic.explain.picture import alpha, over_white, rgba, smoothed, symmetric_limit

Array = NDArray[np.float64]


def slow_box(values: Array, kernel: int, count_outside: bool) -> Array:
    """Mean over a window; outside the picture there is nothing, which counts or does not."""
    height, width = values.shape
    reach, result = kernel // 2, np.zeros_like(values)
    for row in range(height):
        for column in range(width):
            inside = [
                values[r, c]
                for r in range(row - reach, row + reach + 1)
                for c in range(column - reach, column + reach + 1)
                if 0 <= r < height and 0 <= c < width
            ]
            result[row, column] = sum(inside) / (kernel**2 if count_outside else len(inside))
    return result


def slow_rgba(weights: Array, maps: Array, smooth: bool) -> Array:
    """One image: 6×H×W and H×W give 4×H×W."""
    _, height, width = weights.shape
    result, opacity = np.zeros((4, height, width)), np.zeros((height, width))
    for row in range(height):
        for column in range(width):
            w = weights[:, row, column]
            for colour in range(3):
                own, inverse = max(w[colour], 0), max(w[colour + 3], 0)
                result[colour, row, column] = own / (own + inverse) if own + inverse > 0 else 0
            if maps[row, column] >= 0:
                opacity[row, column] = math.sqrt(sum(x * x for x in w))
    if smooth:
        opacity = slow_box(opacity, 9, count_outside=True)
    ordered = np.sort(opacity.ravel())
    place = 0.999 * (len(ordered) - 1)
    low = math.floor(place)
    top = ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
    for row in range(height):
        for column in range(width):
            result[3, row, column] = min(opacity[row, column] / top, 1) if top > 0 else 0
    return result


def example(number: int = 2, height: int = 13, width: int = 17) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    weights = torch.randn(number, 6, height, width, dtype=torch.double)
    images = torch.rand(number, 3, height, width, dtype=torch.double)
    return weights, (weights * encode_colours(images)).sum(dim=1)


@pytest.mark.parametrize("smooth", [True, False])
def test_pictures_are_what_the_recipe_says(smooth: bool) -> None:
    weights, maps = example()
    expected = torch.stack(
        [torch.from_numpy(slow_rgba(w.numpy(), m.numpy(), smooth)) for w, m in zip(weights, maps, strict=True)]
    )
    torch.testing.assert_close(rgba(weights, maps, smooth), expected)
    torch.testing.assert_close(alpha(weights, maps, smooth), expected[:, 3])


def test_images_of_a_batch_are_scaled_alone() -> None:
    weights, maps = example()
    scaled = torch.cat([weights[:1], 100 * weights[1:]])
    torch.testing.assert_close(rgba(scaled, maps), rgba(weights, maps))


def test_a_weight_in_the_direction_of_a_colour_shows_that_colour() -> None:
    torch.manual_seed(1)
    images = torch.rand(2, 3, 8, 8)
    strength = torch.rand(2, 1, 8, 8) + 0.1
    weights = strength * encode_colours(images)
    picture = rgba(weights, (weights * encode_colours(images)).sum(dim=1))
    torch.testing.assert_close(picture[:, :3], images)


def test_negative_weights_lend_no_colour() -> None:
    weights = torch.tensor([-5.0, 0.5, 2.0, 1.0, -3.0, 2.0]).view(1, 6, 1, 1)
    assert rgba(weights, torch.ones(1, 1, 1), smooth=False).flatten().tolist() == [0, 1, 0.5, 1]


def test_negative_contributions_are_transparent() -> None:
    weights, maps = example()
    opacity = alpha(weights, maps, smooth=False)
    assert (opacity[maps < 0] == 0).all()
    assert (opacity[maps > 0] > 0).all()


@pytest.mark.parametrize("weights", [example()[0], torch.zeros(2, 6, 13, 17), 1e6 * example()[0], -example()[0].abs()])
@pytest.mark.parametrize("smooth", [True, False])
def test_values_lie_between_zero_and_one(weights: Tensor, smooth: bool) -> None:
    picture = rgba(weights, weights.sum(dim=1), smooth)
    assert picture.shape == (2, 4, 13, 17)
    assert picture.isfinite().all()
    assert picture.min() >= 0
    assert picture.max() <= 1


def test_transparent_pixels_are_white_on_white() -> None:
    picture = torch.tensor([[0.2, 0.2, 0.2], [0.4, 0.4, 0.4], [1.0, 1.0, 1.0], [0.0, 1.0, 0.5]]).view(4, 1, 3)
    expected = [[[1, 1, 1], [0.2, 0.4, 1], [0.6, 0.7, 1]]]
    np.testing.assert_allclose(over_white(picture), expected, rtol=1e-6)


def test_smoothing_for_drawing_is_a_mean_over_what_is_there() -> None:
    _, maps = example()
    for got, own in zip(smoothed(maps), maps, strict=True):
        torch.testing.assert_close(got, torch.from_numpy(slow_box(own.numpy(), 5, count_outside=False)))
    flat = torch.full((1, 6, 7), -2.5)
    torch.testing.assert_close(smoothed(flat), flat)


def test_the_colour_scale_ends_at_a_high_percentile_of_the_size() -> None:
    maps = torch.linspace(-1, 0.5, 1001).view(7, 143)
    assert symmetric_limit(maps) == pytest.approx(np.quantile(maps.abs().numpy(), 0.995), rel=1e-5)
    assert symmetric_limit(torch.zeros(3, 3)) > 0
