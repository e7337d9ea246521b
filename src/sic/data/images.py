"""Decode image files to upright 8-bit RGB, and prepare them as input of a model."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from sic.data.dataset import Box, Point
from sic.settings import Fit, Settings

if TYPE_CHECKING:
    from torch import Tensor

DICOM_SUFFIXES = frozenset([".dcm", ".dicom"])
SUFFIXES = DICOM_SUFFIXES | {
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm",
    ".ppm", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
Pixels = NDArray[np.uint8]
# Pillow warns of the large images of scanners and microscopes. It refuses twice as many pixels, which we report.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
LONGEST = 4
"""Crops use at most this ratio of the sides of an image; the ends of longer images are cut off."""
HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of HEIC files, after `ftyp` in their first bytes. Phones take photographs in this format."""
FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
"""The formats that Pillow may decode. Some of its others start programs (EPS) or read other files."""
SCANS = 200
"""The most scans in a JPEG. Each scan decodes the whole image again and can be a few bytes long; cameras write ten."""
PLACE = re.compile(r"@\d+\+\d+")
"""The part of a path that holds the offset and size of an image inside a tar file."""


class UnreadableImage(Exception):
    """The reason why a file cannot be used, in a few words."""


def read_image(path: Path) -> Image.Image:
    """Decode one file to upright RGB: EXIF rotation applied, 16 bits scaled to 8, transparency laid over white."""
    if is_dicom(path):
        from sic.data.dicom import read_dicom

        return read_dicom(path)
    with reasons(path), _file(path) as file, open_picture(file) as image:
        return upright_rgb(image)


def _file(path: Path) -> BinaryIO:
    """The opened file, or the member of a tar file."""
    content = member_bytes(path)
    return path.open("rb") if content is None else BytesIO(content)


def open_picture(file: BinaryIO, unsigned: bool = True) -> ImageFile.ImageFile:
    """Read the header of a picture, if it is of a format in `FORMATS`; not of those without a signature (TGA), if not
    `unsigned`."""
    try:
        return Image.open(file, formats=[name for name in _formats() if unsigned or name != "TGA"])
    except UnidentifiedImageError:
        file.seek(0)
        start = file.read(12)
        if start[4:8] == b"ftyp" and start[8:] in HEIC and "HEIF" not in _formats():
            raise UnreadableImage("HEIC, which needs pip install 'sic[heif]'; or convert it to JPEG") from None
        raise


@cache
def _formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow was built with, and HEIF if pillow-heif is installed."""
    Image.init()
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def upright_rgb(image: ImageFile.ImageFile) -> Image.Image:
    """The picture of an opened file, as `read_image` gives it."""
    if image.format in ("JPEG", "MPO") and image.fp is not None and _scans(image.fp) > SCANS:
        raise UnreadableImage(f"a JPEG of more than {SCANS} scans")
    image.load()
    return as_rgb(image)


def as_rgb(image: Image.Image) -> Image.Image:
    """A picture of any mode in RGB: turned as its EXIF data says, transparent parts white, 16-bit values scaled."""
    with reasons():
        found = _to_rgb(_upright(image))
    found.info = {}  # or it would be turned again
    return found


def _scans(file: IO[bytes]) -> int:
    """The number of scans in a JPEG. Their marker cannot occur in compressed data."""
    place, found, last = file.tell(), 0, b""
    file.seek(0)
    while found <= SCANS and (chunk := file.read(1 << 20)):
        found += (last + chunk).count(b"\xff\xda")
        last = chunk[-1:]
    file.seek(place)
    return found


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of the upright picture, from the file's header alone."""
    if is_dicom(path):
        from sic.data.dicom import dicom_size

        return dicom_size(path)
    with reasons(path), _file(path) as file, open_picture(file) as image:
        width, height = image.size
        return (height, width) if _turn(image) in SIDEWAYS else (width, height)


def is_dicom(path: Path) -> bool:
    """By its suffix, or by the mark after the preamble."""
    if path.suffix.lower() in DICOM_SUFFIXES:
        return True
    if is_member(path):
        return False
    with reasons(path), path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def member_path(shard: Path, name: str, offset: int, size: int) -> Path:
    """The path of a member of a tar file.

    >>> member_path(Path("a.tar"), "x/1.jpg", 512, 99).as_posix()
    'a.tar/@512+99/1.jpg'
    """
    return shard / f"@{offset}+{size}" / Path(name).name


def is_member(path: Path) -> bool:
    """Whether a path was made by `member_path`."""
    return PLACE.fullmatch(path.parent.name) is not None and path.parent.parent.suffix == ".tar"


def member_bytes(path: Path) -> bytes | None:
    """The content of a member; None if the path is that of a file."""
    if not is_member(path):
        return None
    offset, size = map(int, path.parent.name[1:].split("+"))
    with path.parent.parent.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise OSError("the tar file is truncated")
    return content


@contextmanager
def reasons(path: Path | None = None) -> Iterator[None]:
    """Turn all errors of reading `path` (None: an image that is not on disk) into UnreadableImage."""
    try:
        yield
    except FileNotFoundError:
        raise UnreadableImage("no such file") from None
    except PermissionError:
        raise UnreadableImage("no permission to read it") from None
    except UnidentifiedImageError:
        empty = path is not None and not is_member(path) and path.stat().st_size == 0
        raise UnreadableImage("empty file" if empty else "not an image") from None
    except Image.DecompressionBombError:
        raise UnreadableImage("too many pixels to decode safely") from None
    except (OSError, SyntaxError, ValueError, RuntimeError, EOFError, MemoryError) as error:  # of Pillow's decoders
        reason = "truncated file" if "truncated" in str(error).lower() else f"cannot be decoded ({error})"
        raise UnreadableImage(reason) from None


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition for each EXIF orientation."""
SIDEWAYS = {TURNS[orientation] for orientation in (5, 6, 7, 8)}


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged EXIF block does not affect the pixels
        return None


def _upright(image: Image.Image) -> Image.Image:
    # Pillow's exif_transpose rewrites the EXIF and fails on the ill-typed tags of some cameras.
    turn = _turn(image)
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0, neginf=0)
        # 16-bit files span 0…65535; wider ones have no fixed range and are scaled to their own one.
        wide = image.mode == "F" or values.max() > 65535
        low, high = (float(values.min()), float(values.max())) if wide else (0.0, 65535.0)
        grey = np.clip((values - low) / max(high - low, 1e-12), 0, 1) * 255
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


@dataclass(frozen=True)
class Preprocessing:
    """How an RGB image becomes the model's square input."""

    size: int
    """Side of the model's input in pixels."""
    resize: int
    """Short side after resizing, before the centre crop; at least `size`."""
    fit: Fit = "crop"
    """crop: keep proportions and take the central square. squash: see the whole image, proportions changed."""

    def __post_init__(self) -> None:
        if self.resize < self.size:
            raise ValueError(f"cannot take a crop of {self.size} px from an image of {self.resize} px")

    @classmethod
    def of(cls, settings: Settings) -> "Preprocessing":
        """The preprocessing of a run."""
        return cls(settings.size, settings.resize, settings.fit)

    def reduce(self, image: Image.Image, resample: Image.Resampling = Image.Resampling.BILINEAR) -> Pixels:
        """H×W×3 at the resolution that crops are taken from."""
        left, top, width, height = self._kept(image.size)
        if (width, height) != image.size:
            image = image.crop((left, top, left + width, top + height))
        wanted = self._reduced((width, height))
        if wanted != image.size:
            image = image.resize(wanted, resample)
        return np.array(image)  # a copy: Pillow's own memory is read-only

    def _kept(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """(left, top, width, height) of the part that is used of an image of (width, height).

        It is at most `LONGEST` times as long as wide, because a strip would take gigabytes once its short side is
        enlarged.
        """
        if self.fit == "squash":
            return 0, 0, *size
        width, height = (min(side, LONGEST * min(size)) for side in size)
        return (size[0] - width) // 2, (size[1] - height) // 2, width, height

    def _reduced(self, size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) after resizing this part."""
        if self.fit == "squash":
            return self.resize, self.resize
        scale = self.resize / min(size)
        width, height = (max(self.resize, round(side * scale)) for side in size)
        return width, height

    def crop(self, pixels: Pixels) -> Pixels:
        """The central size×size×3 square of a reduced image."""
        top, left = ((side - self.size) // 2 for side in pixels.shape[:2])
        return pixels[top : top + self.size, left : left + self.size]

    def __call__(self, image: Image.Image, resample: Image.Resampling = Image.Resampling.BILINEAR) -> Pixels:
        """The model's view of an image, size×size×3; storing it as PNG is lossless."""
        return self.crop(self.reduce(image, resample))

    def box(self, box: Box, image_size: tuple[int, int]) -> Box | None:
        """A box of an upright image of (width, height), clipped to the model's view; None if it lies outside."""
        left, top = self._seen(box.left, box.top, image_size)
        right, bottom = self._seen(box.right, box.bottom, image_size)
        moved = replace(box, left=left, top=top, right=right, bottom=bottom).clipped(self.size, self.size)
        return None if moved.empty else moved

    def point(self, point: Point, image_size: tuple[int, int]) -> Point | None:
        """A point of an upright image of (width, height) in the model's view; None if it lies outside."""
        x, y = self._seen(point.x, point.y, image_size)
        return Point(point.part, x, y) if 0 <= x < self.size and 0 <= y < self.size else None

    def _seen(self, x: float, y: float, image_size: tuple[int, int]) -> tuple[float, float]:
        """The place (x, y) of an upright image of (width, height), in pixels of the model's view."""
        left, top, *kept = self._kept(image_size)
        reduced = self._reduced((kept[0], kept[1]))
        across, down = (
            (place - start) * (new / old) - (new - self.size) // 2
            for place, start, new, old in zip((x, y), (left, top), reduced, kept, strict=True)
        )
        return across, down


def to_tensor(pixels: Pixels) -> "Tensor":
    """H×W×3 bytes → 3×H×W float in [0, 1]."""
    import torch  # processes that only decode images do not need it

    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255
