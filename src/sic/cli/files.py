"""Which image files a user means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sic.cli.console import Talker
from sic.data.images import SUFFIXES
from sic.errors import SicError


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


def as_trained(files: list[Path], model: Path, card: dict[str, Any], talker: Talker) -> list[Path]:
    """The files; for a model whose data (`card`) was cut to boxes, the cut ones of those that are in that data."""
    if not card.get("roi"):
        return files
    from sic.data import open as open_data
    from sic.directory import read_run

    cut: dict[Path, Path] = {}
    try:
        arguments = read_run(model)["data"]["opened_with"]
        whole, parts = (open_data(**{**arguments, "roi": roi}) for roi in (False, True))
        known = {sample.id: sample.path for samples in parts.splits.values() for sample in samples}
        everything = [sample for samples in whole.splits.values() for sample in samples]
        cut = {sample.path.resolve(): known[sample.id] for sample in everything if sample.id in known}
    except SicError:
        pass  # without its run or its data there are no boxes, which is said below
    unknown = [file for file in files if file.resolve() not in cut]
    if unknown:
        talker.warn(
            f"{model} was trained on images cut to their boxes, and there is no box for {unknown[0]}"
            + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
            + ": cut such images yourself, or expect worse answers."
        )
    return [cut.get(file.resolve(), file) for file in files]
