"""Read DICOM files as 8-bit RGB, with the default window of a viewer (needs the extra `dicom`)."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sic.data.images import UnreadableImage, reasons

if TYPE_CHECKING:
    from pydicom import Dataset

Values = NDArray[Any]
"""Numbers of any kind, H×W or H×W×3."""

SIZE = ["Rows", "Columns"]
PIXELS = ["PixelData", "FloatPixelData", "DoubleFloatPixelData"]
PALETTE = [f"{{}}PaletteColorLookupTable{name}" for name in ("Descriptor", "Data")]
PALETTE += ["Segmented{}PaletteColorLookupTableData"]
PICTURE = [
    *SIZE, *PIXELS, "SOPClassUID", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation",
    "PlanarConfiguration", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue",
    "ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "VOILUTSequence", "VOILUTFunction", "WindowCenter",
    "WindowWidth", *(name.format(colour) for name in PALETTE for colour in ("Red", "Green", "Blue")),
]  # fmt: skip
"""The only elements that are read; patient data is skipped and cannot leak."""

DECODERS = "pip install 'pylibjpeg[all]'"


def read_dicom(file: Path | BinaryIO) -> Image.Image:
    """Read one image: modality table or rescaling, VOI table or window, MONOCHROME1 inverted, scaled to 8 bits.

    The first of several windows is used. Without a window, grey values of more than 8 bits are scaled to their range.
    """
    with reasons(_path(file)), _own_words():
        dataset = _read(file, PICTURE)
        _refuse_what_is_no_picture(dataset)
        stored = _decode(dataset)
        photometric = dataset.PhotometricInterpretation
        if photometric == "PALETTE COLOR":
            return _rgb(_palette(stored, dataset))
        if stored.ndim == 3:
            return _rgb(stored / _highest(dataset.BitsStored))
        grey = _grey(stored, dataset)
        return _rgb(1 - grey if photometric == "MONOCHROME1" else grey)


def dicom_size(file: Path | BinaryIO) -> tuple[int, int]:
    """(width, height), from the header."""
    with reasons(_path(file)), _own_words():
        dataset = _read(file, SIZE)
        if not (dataset.get("Rows") and dataset.get("Columns")):
            raise UnreadableImage("a DICOM file without an image")
        return int(dataset.Columns), int(dataset.Rows)


def _path(file: Path | BinaryIO) -> Path | None:
    return file if isinstance(file, Path) else None


@contextmanager
def _own_words() -> Iterator[None]:
    """Hide the warnings and errors of pydicom, because they quote the file."""
    try:
        import pydicom  # noqa: F401
    except ImportError:
        raise UnreadableImage("a DICOM file, which needs pydicom: pip install 'sic[dicom]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (UnreadableImage, FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except Exception:  # a damaged file can raise any exception in pydicom
            raise UnreadableImage("not a DICOM file, or a damaged one") from None


def _read(file: Path | BinaryIO, elements: list[str]) -> "Dataset":
    from pydicom import dcmread
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    if isinstance(file, Path) and file.stat().st_size == 0:
        raise UnreadableImage("empty file")
    # Forced: old files lack the preamble, and some of them the name of the transfer syntax.
    dataset = dcmread(file, force=True, specific_tags=elements)
    if "TransferSyntaxUID" not in dataset.file_meta:
        implicit, little = dataset.original_encoding
        explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else explicit
    return dataset


def _refuse_what_is_no_picture(dataset: "Dataset") -> None:
    if not any(dataset.get(name) for name in PIXELS):
        if any(name in dataset for name in (*SIZE, *PIXELS)):
            raise UnreadableImage("a DICOM file with missing pixel data")
        if "SOPClassUID" not in dataset:
            raise UnreadableImage("not a DICOM file, or a damaged one")
        raise UnreadableImage(f"a DICOM file without an image ({dataset.SOPClassUID.name})")
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1:
        raise UnreadableImage(f"a DICOM file of {frames} frames; save one frame as a separate file")
    photometric = dataset.PhotometricInterpretation
    if not photometric.startswith(("MONOCHROME", "RGB", "YBR", "PALETTE")):
        raise UnreadableImage(f"a DICOM file with unusual colours ({photometric})")
    if dataset.Columns * dataset.Rows > 2 * (Image.MAX_IMAGE_PIXELS or np.inf):  # Pillow's own limit
        raise UnreadableImage("too many pixels to decode safely")


def _decode(dataset: "Dataset") -> Values:
    """The stored values, H×W, or RGB, H×W×3."""
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.utils import pixel_array

    syntax = dataset.file_meta.TransferSyntaxUID
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise UnreadableImage(f"a DICOM file compressed as {syntax.name}, for which there is no decoder") from None
    if not decoder.is_available:
        raise UnreadableImage(f"a DICOM file compressed as {syntax.name}, which needs a decoder: {DECODERS}")
    try:
        return pixel_array(dataset, index=0)
    except Exception as error:  # decoders raise any exception
        if syntax.is_encapsulated:
            more = f"; another decoder may help: {DECODERS}" if decoder.missing_dependencies else ""
            raise UnreadableImage(f"a DICOM file that cannot be decoded as {syntax.name}{more}") from None
        if "less than expected" in str(error):
            raise UnreadableImage("truncated file") from None
        raise


def _palette(stored: Values, dataset: "Dataset") -> Values:
    """Palette indices H×W as colours H×W×3 in [0, 1]."""
    from pydicom.pixels.processing import apply_color_lut

    entries, first, bits = dataset.RedPaletteColorLookupTableDescriptor
    # Clipped here, because pydicom computes in the type of the table's entries, which can overflow at 255.
    colours = apply_color_lut(np.clip(stored, first, first + (entries or 1 << 16) - 1), dataset)
    return colours[..., :3] / _highest(bits)


def _grey(stored: Values, dataset: "Dataset") -> Values:
    """Stored values as brightness in [0, 1]."""
    values = np.nan_to_num(_modality(stored, dataset), posinf=0, neginf=0)
    if dataset.get("VOILUTSequence"):
        table = dataset.VOILUTSequence[0]
        return _look_up(values, table, dataset) / _highest(table.LUTDescriptor[2])
    window = _first(dataset, "WindowCenter"), _first(dataset, "WindowWidth")
    if window[0] is not None and window[1] is not None and window[1] > 0:
        return _window(values, window[0], window[1], dataset.get("VOILUTFunction") or "LINEAR")
    if dataset.get("BitsStored", 32) <= 8:
        lowest = -(1 << dataset.BitsStored - 1) if dataset.PixelRepresentation else 0
        span = _modality(np.array([lowest, lowest + _highest(dataset.BitsStored)]), dataset)
    else:
        inside = values[stored != dataset.get("PixelPaddingValue")]
        span = inside if inside.size else values
    return np.clip((values - span.min()) / max(float(np.ptp(span)), 1e-12), 0, 1)


def _modality(stored: Values, dataset: "Dataset") -> Values:
    """The measured values in the unit of the device."""
    if dataset.get("ModalityLUTSequence"):
        return _look_up(stored, dataset.ModalityLUTSequence[0], dataset)
    slope, intercept = dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")
    return stored.astype(np.float64) * float(1 if slope is None else slope) + float(intercept or 0)


def _look_up(values: Values, table: "Dataset", dataset: "Dataset") -> Values:
    # Unlike pydicom, which computes in the type of the entries and so ends at the 256th of 8-bit entries.
    entries, first, _ = table.LUTDescriptor
    data = table.LUTData
    if isinstance(data, bytes):
        wide = "<u2" if dataset.original_encoding[1] else ">u2"
        data = np.frombuffer(data, wide if len(data) >= 2 * (entries or 1 << 16) else np.uint8)
    numbers = np.asarray(data, np.float64)
    return numbers[np.clip(np.rint(values) - first, 0, len(numbers) - 1).astype(np.int64)]


def _first(dataset: "Dataset", name: str) -> float | None:
    value = dataset.get(name)
    if value is None or isinstance(value, str):
        return None
    return float(value[0] if hasattr(value, "__len__") else value)


def _window(values: Values, centre: float, width: float, function: str) -> Values:
    """DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3, to [0, 1]."""
    if function == "SIGMOID":
        return (1 + np.tanh(2 * (values - centre) / width)) / 2
    if function == "LINEAR":  # from the middle of the first value to the middle of the last
        centre, width = centre - 0.5, width - 1
    return np.clip((values - centre) / max(width, 1e-12) + 0.5, 0, 1)


def _highest(bits: int) -> int:
    return (1 << bits) - 1


def _rgb(values: Values) -> Image.Image:
    """Values in [0, 1], H×W or H×W×3, as 8 bits."""
    return Image.fromarray(np.rint(values * 255).clip(0, 255).astype(np.uint8)).convert("RGB")
