"""Deletion: does the score fall most where the map is highest?"""

from itertools import repeat

import torch
from torch import Tensor

from sic.evaluate.checks import Check, uniform
from sic.evaluate.faithfulness import cell_order
from sic.evaluate.linearised import Linearised, encoded_colours
from sic.methods import Classifier

BLOCKS = 8
"""Blocks of pixels along a side, which are removed as a whole."""
REMOVED = 0.2
"""Share of the blocks that are removed at once."""
RANDOM = 4
"""Random choices of blocks for each image: what they add to the interval is small beside what images differ by."""
AT_ONCE = 16
CONFIDENCE = 0.95
REFERENCES = 16
"""Images for the comparison with the linearised network, at most."""


def deletion(classifier: Classifier, images: Tensor, generator: torch.Generator) -> Check:
    """Removing the top of the map lowers the score more than removing as many pixels at random.

    Paired comparisons over images, with 95 % intervals by Student's t. The *gain* is the fall of the score beyond the
    mean of random removals. If it is above zero, the check passes; a random order does so in 2.5 % of all cases.
    Otherwise the *lag* decides (on up to 16 images): how much less the score falls than by the contributions of the
    blocks in the linearised network (`Linearised`). A right map orders the blocks as these do and has no lag, however
    the network reacts; the check fails if the lag is above zero. Without a lag it is undecided: the scores do not tell
    this map from a right one.
    """
    size = max(1, images.shape[-1] // BLOCKS)
    targets, maps = (torch.cat(each) for each in zip(*map(_answer, repeat(classifier), images.split(1)), strict=True))
    batches = list(zip(images.split(AT_ONCE), targets.split(AT_ONCE), strict=True))

    def left(order: Tensor) -> Tensor:
        orders = order.split(AT_ONCE)
        return torch.cat([scores_left(classifier, *b, o, size) for b, o in zip(batches, orders, strict=False)])

    noise = (torch.rand(maps.shape, generator=generator).to(maps) for _ in range(RANDOM))
    chance = torch.stack([left(each) for each in noise]).mean(dim=0)
    own = left(_without_ties(maps, generator))
    mean, low, high = interval(chance - own)
    flat, *flat_interval = interval(chance - left(_without_ties(uniform(maps), generator)))
    several = len(images) > 1
    lag: tuple[float, ...] | None = None
    if several and low <= 0:
        few = zip(images[:REFERENCES], targets[:REFERENCES], strict=True)
        right = torch.stack([linear_contributions(classifier, *each, size) for each in few])
        lag = interval(own[:REFERENCES] - left(_without_ties(right, generator)))
    wrong = lag is not None and lag[1] > 0
    return Check(
        "deletion",
        "removing the top of the map lowers the score more than removing random pixels",
        -low,
        0.0,
        len(images),
        ("a uniform map", -flat_interval[0]),
        {
            "drop_beyond_random": mean,
            "interval": [low, high],
            "uniform_map": flat,
            "uniform_interval": flat_interval,
            "lag": lag and lag[0],
            "lag_interval": lag and [*lag[1:]],
        },
        decided=wrong or (several and low > 0),
    )


def _answer(classifier: Classifier, image: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted class of one image, 1, and its map, 1×H×W."""
    answered = classifier.answered(image)
    target = answered.logits.argmax(dim=1)
    return target, answered.explain(target).maps


@torch.no_grad()
def scores_left(classifier: Classifier, images: Tensor, targets: Tensor, maps: Tensor, size: int) -> Tensor:
    """N: the scores of `targets` after the highest fifth of the blocks of `maps`, `size` pixels wide, got the mean
    colour of its image."""
    grey = images.mean(dim=(2, 3), keepdim=True)
    removed = torch.where((cell_order(maps, size) < REMOVED)[:, None], grey, images)
    return classifier(removed).gather(1, targets[:, None])[:, 0].double().cpu()


def _without_ties(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Noise below all that counts orders equal pixels at random: a uniform map has no top."""
    noise = torch.rand(maps.shape, generator=generator).to(maps)
    return maps + 1e-6 * noise * maps.abs().amax(dim=(1, 2), keepdim=True)


def linear_contributions(classifier: Classifier, image: Tensor, target: Tensor, size: int) -> Tensor:
    """H×W: what each block of an image adds to the score of `target` in the linearised network, shared evenly by its
    pixels. It does not use `explain`."""
    linear = Linearised(classifier, encoded_colours(image[None]))
    adds = linear.traced(lambda features: linear.scores(features)[:, target, None]).maps[0]
    height, width = adds.shape
    rows, columns = (torch.arange(side, device=adds.device) // size for side in (height, width))
    block = (rows[:, None] * (int(columns[-1]) + 1) + columns).flatten()
    sums = adds.new_zeros(int(block.max()) + 1).index_add(0, block, adds.flatten())
    return (sums / block.bincount())[block].view(height, width)


def interval(values: Tensor) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t; a single value has none."""
    from scipy.stats import t

    mean = values.mean().item()
    if len(values) < 2:
        return mean, mean, mean
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * (values.std() / len(values) ** 0.5).item()
    return mean, mean - reach, mean + reach
