"""`sic.data.open`: recognises what it is given."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from sic.data.dataset import ImageData
from sic.data.folders import open_folders
from sic.data.funnybirds import is_funnybirds, open_funnybirds
from sic.data.pixels import Progress
from sic.errors import SicError

BUILT_IN = "birds"


def open(where: str | Path, progress: Progress | None = None) -> ImageData:
    """Class folders, train/val/test folders of them, the FunnyBirds layout, or the built-in `birds`.

    A folder of that name is opened as `./birds`, or as a `Path`.
    """
    root = Path(where)
    if where == BUILT_IN:
        return replace(open_funnybirds(built_in_birds(progress)), name=BUILT_IN)
    if not root.exists():
        raise SicError(f"{root} does not exist; give a folder of class folders, or {BUILT_IN} for the built-in data.")
    if not root.is_dir():
        raise SicError(f"{root} is a file; give the folder that holds one folder of images per class.")
    return open_funnybirds(root) if is_funnybirds(root) else open_folders(root)


def cache_folder() -> Path:
    """Where rendered data is kept between runs: `$SIC_CACHE`, or sic's place in the user's cache."""
    if "SIC_CACHE" in os.environ:
        return Path(os.environ["SIC_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sic"


def built_in_birds(progress: Progress | None = None) -> Path:
    """The built-in birds, rendered on first use; the folder's name changes when their drawing does."""
    from sic.data import birds, birds_layout

    drawing = b"".join(Path(str(module.__file__)).read_bytes() for module in (birds, birds_layout))
    folder = cache_folder() / f"birds-{hashlib.sha256(drawing).hexdigest()[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            birds_layout.write(folder, progress=progress)
        except OSError:
            if not folder.is_dir():  # else another process has finished drawing the same birds
                raise
    return folder
