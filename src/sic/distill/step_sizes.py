"""Steps relative to the size of a layer's weights, so that one learning rate serves all layers.

Layers of a pretrained network differ in size by a factor of 1,000. With the same steps for all, AdamW would leave some
layers as they are and overwrite others within a few steps.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

SMALLEST_SIZE = 2.0**-8
"""Of a layer's values, when steps are measured by them; values that start at 0 must be able to grow."""


def relative_sizes(network: nn.Module) -> dict[str, float]:
    """The size of the values of each parameter by its name: the root mean square, as a power of 2."""
    sizes = {}
    for name, parameter in network.named_parameters():
        size = float(parameter.detach().float().square().mean().sqrt())
        sizes[name] = 2.0 ** round(math.log2(max(size, SMALLEST_SIZE)))
    return sizes


def relative_groups(network: nn.Module, sizes: Mapping[str, float]) -> list[dict[str, Any]]:
    """The parameters grouped by `sizes`, as `relative_sizes` gives them; the smallest ones come first."""
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        groups.setdefault(sizes[name], []).append(parameter)
    return [{"params": found, "size": size} for size, found in sorted(groups.items())]
