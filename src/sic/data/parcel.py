"""Tensors on their way from a loader process."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALL = 2**20
"""Bytes."""


class Parcel:
    """A dataclass whose small tensors are copied from process to process.

    torch shares tensors instead. To receive one takes a connection to its process: half a millisecond of Python, for
    each of them in every step.
    """

    def __getstate__(self) -> dict[str, Any]:
        small = {name: part for name, part in vars(self).items() if isinstance(part, Tensor) and part.nbytes <= SMALL}
        return {**vars(self), **{name: part.numpy() for name, part in small.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, part in state.items():
            object.__setattr__(self, name, torch.from_numpy(part) if isinstance(part, np.ndarray) else part)
