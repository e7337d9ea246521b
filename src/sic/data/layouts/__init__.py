"""The layouts of datasets on disk, one file each.

To add a layout, write a module with a function that recognises a folder and one that reads it, and add it to `LAYOUTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sic.data.dataset import ImageData
from sic.data.layouts.cub import is_cub, open_cub
from sic.data.layouts.dogs import is_dogs, open_dogs
from sic.data.layouts.folders import open_folders
from sic.data.layouts.funnybirds import is_funnybirds, open_funnybirds
from sic.data.layouts.manifest import is_manifest, open_manifest
from sic.data.layouts.rsna import is_rsna, open_rsna
from sic.data.layouts.shards import is_shards, open_shards
from sic.data.layouts.voc import is_voc, open_voc


@dataclass(frozen=True)
class Layout:
    """How to recognise a folder of a layout, and how to read it."""

    recognises: Callable[[Path], bool]
    read: Callable[[Path], ImageData]


LAYOUTS: dict[str, Layout] = {
    "funnybirds": Layout(is_funnybirds, open_funnybirds),
    "voc": Layout(is_voc, open_voc),
    "cub": Layout(is_cub, open_cub),
    "dogs": Layout(is_dogs, open_dogs),
    "rsna": Layout(is_rsna, open_rsna),
    "manifest": Layout(is_manifest, open_manifest),
    "shards": Layout(is_shards, open_shards),
    "folders": Layout(Path.is_dir, open_folders),
}
"""By the name that `--layout` takes. The first layout that recognises a folder reads it."""
