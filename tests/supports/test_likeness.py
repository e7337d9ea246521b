"""Supports that resemble another class more than their own."""

import math

import torch

from sic.supports import resembling_others


def test_means_decide_and_not_single_images() -> None:
    likeness = torch.tensor([[0.9, 0.3, 0.6, 0.5], [0.0, 0.2, 0.1, 0.9]])
    [found] = resembling_others(likeness, [0, 0], [0, 0, 1, 1])
    assert (found.support, found.other) == (1, 1)  # the first: 0.6 in its own class, 0.55 in the other
    assert math.isclose(found.theirs, 0.5) and math.isclose(found.own, 0.1, rel_tol=1e-6)


def test_a_small_difference_is_not_told() -> None:
    labels = [0, 1]
    assert resembling_others(torch.tensor([[0.50, 0.55]]), [0], labels) == []
    assert len(resembling_others(torch.tensor([[0.50, 0.65]]), [0], labels)) == 1


def test_some_pairs_and_images_do_not_count() -> None:
    likeness = torch.tensor([[math.nan, 0.1, 0.2, 9.0]])
    [found] = resembling_others(likeness, [0], [0, 0, 1, None])
    assert math.isclose(found.own, 0.1, rel_tol=1e-6) and found.other == 1
    assert resembling_others(torch.tensor([[math.nan, 0.5]]), [0], [0, 1]) == []  # nothing is known about its own class
    assert resembling_others(torch.tensor([[0.1, 0.5]]), [0], [None, None]) == []
    assert resembling_others(torch.tensor([[0.1, 0.5]]), [2], [0, 1]) == []
