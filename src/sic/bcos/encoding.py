"""The 6-channel colour encoding `[x, 1 - x]`: the first step of every B-cos model."""

import torch
from torch import Tensor

from sic.bcos.explanation import source


def encode_colours(images: Tensor) -> Tensor:
    """RGB in [0, 1], N×3×H×W → N×6×H×W; the point that explanations trace back to."""
    return source(torch.cat([images, 1 - images], dim=1))
