"""Which image files a user means."""

from collections.abc import Sequence
from pathlib import Path

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
