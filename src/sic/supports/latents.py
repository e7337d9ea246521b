"""Room for the latents of a whole training set."""

import tempfile

import numpy as np
from numpy.typing import NDArray

IN_MEMORY = 4 << 30
"""Bytes up to which they stay in memory; more are in a file that is mapped into it."""


def room_for(rows: int, columns: int) -> NDArray[np.float32]:
    """Uninitialised, rows×columns; a file behind it has no name and goes when the array does."""
    if rows * columns * np.dtype(np.float32).itemsize <= IN_MEMORY:
        return np.empty((rows, columns), np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=(rows, columns))
