"""Which image files a user means."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sic.cli.console import Talker
from sic.data.images import SUFFIXES
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.data import ImageData
    from sic.predictions import Predictions
    from sic.run import Run


def image_files(given: Sequence[Path]) -> list[Path]:
    """Files as given; folders stand for all images below them, in order."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
            if not inside:
                raise SicError(f"There are no images in {path}.")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise SicError(f"{path} does not exist.")
    return found


def as_trained(files: list[Path], run: "Run", talker: Talker) -> list[Path]:
    """The files; for a model of images that were cut to their boxes, the cut ones of those that are in its data."""
    cut = run.cut(files)
    unknown = [file for file, own in zip(files, cut, strict=True) if own is None]
    if unknown:
        talker.warn(
            f"{run.folder} was trained on images cut to their boxes, and there is no box for {unknown[0]}"
            + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
            + ": cut such images yourself, or expect worse answers."
        )
    return [own or file for file, own in zip(files, cut, strict=True)]


def labelled_images(run: "Run", data: str | None, talker: Talker) -> "ImageData":
    """The labelled images in `data`; without it, those that the model was trained on."""
    progress = talker.progress("preparing images")
    return run.open(progress) if data is None else run.open_other(data, progress, talker.warn)


def warn_of_unreadable(predictions: "Predictions", talker: Talker) -> None:
    """Say which images were left out; refuse if none is left."""
    for file, reason in predictions.unreadable.items():
        talker.warn(f"Skipped {file}: {reason}.")
    if not len(predictions):
        raise SicError(f"None of the {predictions.name} can be read.")
