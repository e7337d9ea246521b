"""Processes that load images: no more than a machine can bear, and none that outlives the one it works for."""

import os
import threading
import time
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset

from sic.errors import SicError


def most_workers() -> int:
    """Loader processes that are allowed here: four for each core, or 16."""
    return max(16, 4 * (os.cpu_count() or 1))


def loader(data: Dataset[Any], batch_size: int | None = None, workers: int = 0, **options: Any) -> DataLoader[Any]:
    """torch's `DataLoader` with so many processes; one batch, or one item where there is no `batch_size`, at a time."""
    if not 0 <= workers <= most_workers():
        raise SicError(f"--workers {workers} is not possible; this machine takes 0 to {most_workers()}.")
    ending = partial(_end_with, os.getpid()) if workers else None
    return DataLoader(data, batch_size, num_workers=workers, worker_init_fn=ending, **options)


def _end_with(parent: int, _: int) -> None:
    """End this process when its parent is gone. torch's own look at the parent waits behind a full queue for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
