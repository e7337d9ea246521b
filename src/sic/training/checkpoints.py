"""Checkpoints of a fit: written whole, and read from the next best file where one is damaged."""

import io
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from sic.errors import SicError
from sic.files import real_folder, write_atomically
from sic.training.history import Reporter

CHECKPOINTS = "checkpoints"
LAST, BEST = "last", "best"


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the target and renames. Lightning's own writes to TMPDIR, and from another file system only a copy
    leads to the target: whoever is killed then leaves half a checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomically(target, lambda file: file.write_bytes(content.getbuffer()))


def checkpoint_folder(run: Path) -> Path:
    """Where a run keeps its checkpoints, without what killed processes left half written."""
    folder = real_folder(run / CHECKPOINTS)
    for unfinished in folder.glob(".*.ckpt.*.tmp"):
        unfinished.unlink(missing_ok=True)
    return folder


def read_checkpoint(folder: Path, names: Sequence[str], reporter: Reporter) -> tuple[Path, dict[str, Any]] | None:
    """The first checkpoint of these names that can be read, None if there is none; says which of them are damaged."""
    damaged = []
    for name in names:
        file = folder / f"{name}.ckpt"
        if not file.is_file():
            continue
        try:
            content = dict(torch.load(file, map_location="cpu", weights_only=True))
            epoch = int(content["epoch"]) + 1
        except (RuntimeError, EOFError, UnpicklingError, ValueError, KeyError, TypeError):
            damaged.append(file)
            continue
        if damaged:
            reporter.warn(f"{damaged[0]} is damaged; {file.name} of epoch {epoch} is used instead.")
        return file, content
    if damaged:
        raise SicError(f"{' and '.join(map(str, damaged))} cannot be read any more; start anew with another --out.")
    return None


def starting_point(folder: Path, reporter: Reporter) -> tuple[Path | None, int]:
    """The checkpoint that a resumed run goes on from, and how many epochs are done by then."""
    found = read_checkpoint(folder, (LAST, BEST), reporter)
    return (None, 0) if found is None else (found[0], found[1]["epoch"] + 1)
