import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sic.data.dicom import read_dicom
from sic.data.images import SUFFIXES, UnreadableImage, image_size, read_image

pydicom = pytest.importorskip("pydicom")
from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.pixels import set_pixel_data  # noqa: E402
from pydicom.sequence import Sequence  # noqa: E402
from pydicom.uid import (  # noqa: E402
    MPEG2MPML,
    BasicTextSRStorage,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLossless,
    JPEGLSLossless,
    RLELossless,
)

PATIENT = "Doe^Jane"
SYNTAXES = [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless]


def ramp(low: int, high: int, kind: Any, height: int = 24, width: int = 32) -> np.ndarray:
    """Values from `low` to `high`, both present."""
    return np.linspace(low, high, height * width).round().astype(kind).reshape(height, width)


def dicom(
    path: Path,
    values: np.ndarray | None,
    *,
    stored: int | None = None,
    syntax: Any = ExplicitVRLittleEndian,
    **more: Any,
) -> Path:
    """Write a real file of these stored values, H×W or H×W×3; `more` are further elements."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = "1.2.3.4"
    dataset.PatientName = PATIENT
    if values is not None:
        dataset.Rows, dataset.Columns = values.shape[:2]
        dataset.SamplesPerPixel = 3 if values.ndim == 3 else 1
        dataset.PhotometricInterpretation = "RGB" if values.ndim == 3 else "MONOCHROME2"
        if values.ndim == 3:
            dataset.PlanarConfiguration = 0
        dataset.BitsAllocated = values.dtype.itemsize * 8
        dataset.BitsStored = stored or dataset.BitsAllocated
        dataset.HighBit = dataset.BitsStored - 1
        dataset.PixelRepresentation = int(values.dtype.kind == "i")
        order = ">" if syntax == ExplicitVRBigEndian else "<"
        dataset.PixelData = values.astype(values.dtype.newbyteorder(order)).tobytes()
        dataset["PixelData"].VR = "OW" if values.dtype.itemsize > 1 else "OB"
    for name, value in more.items():
        setattr(dataset, name, value)
    if syntax == RLELossless:
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.compress(RLELossless, encoding_plugin="pydicom")
    dataset.save_as(path, enforce_file_format=True)
    return path


def grey(path: Path) -> np.ndarray:
    image = read_image(path)
    assert image.mode == "RGB"
    pixels = np.asarray(image)
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def to_bytes(share: np.ndarray) -> np.ndarray:
    return np.round(np.clip(share, 0, 1) * 255)


def linear(values: np.ndarray, centre: float, width: float) -> np.ndarray:
    """PS3.3 C.11.2.1.2.1, pixel by pixel as it is written there."""
    out = np.empty(values.shape)
    for place, x in np.ndenumerate(values):
        if x <= centre - 0.5 - (width - 1) / 2:
            out[place] = 0
        elif x > centre - 0.5 + (width - 1) / 2:
            out[place] = 1
        else:
            out[place] = (x - (centre - 0.5)) / (width - 1) + 0.5
    return out


def reason(path: Path) -> str:
    with pytest.raises(UnreadableImage) as caught:
        read_image(path)
    assert PATIENT not in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_eight_bits_are_as_they_are(tmp_path: Path, syntax: Any) -> None:
    """RSNA's chest X-rays are of this kind, and must look like their copies in PNG."""
    values = ramp(40, 200, np.uint8)
    path = dicom(tmp_path / "a.dcm", values, syntax=syntax)
    np.testing.assert_array_equal(grey(path), values)
    assert image_size(path) == (32, 24)


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_windows_are_applied_to_rescaled_values(tmp_path: Path, syntax: Any) -> None:
    """A CT of 12 bits in 16, signed, in Hounsfield units."""
    values = ramp(-1000, 2047, np.int16)
    path = dicom(
        tmp_path / "a.dcm",
        values,
        stored=12,
        syntax=syntax,
        RescaleSlope=2,
        RescaleIntercept=-24,
        WindowCenter=40,
        WindowWidth=400,
    )
    np.testing.assert_allclose(grey(path), to_bytes(linear(values * 2.0 - 24, 40, 400)), atol=0)


def test_the_window_agrees_with_pydicom(tmp_path: Path) -> None:
    values = ramp(0, 4095, np.uint16)
    for function in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        path = dicom(tmp_path / "a.dcm", values, stored=12, WindowCenter=1500, WindowWidth=900, VOILUTFunction=function)
        expected = pydicom.pixels.apply_windowing(values, pydicom.dcmread(path)) / 4095
        np.testing.assert_allclose(grey(path), to_bytes(expected), atol=1)


def test_of_several_windows_the_first_counts(tmp_path: Path) -> None:
    values = ramp(0, 4095, np.uint16)
    several = dicom(tmp_path / "a.dcm", values, stored=12, WindowCenter=[600, 2000], WindowWidth=[500, 4000])
    np.testing.assert_array_equal(grey(several), to_bytes(linear(values, 600, 500)))


@pytest.mark.parametrize("window", [{}, {"WindowCenter": 100, "WindowWidth": 0}, {"WindowCenter": None}])
@pytest.mark.parametrize(
    ("low", "high", "kind"), [(100, 3000, np.uint16), (-900, 1500, np.int16), (9, 65000, np.uint16)]
)
def test_without_a_window_values_span_their_own_range(
    tmp_path: Path, low: int, high: int, kind: Any, window: dict[str, Any]
) -> None:
    values = ramp(low, high, kind)
    path = dicom(tmp_path / "a.dcm", values, **window)
    np.testing.assert_array_equal(grey(path), to_bytes((values.astype(float) - low) / (high - low)))


def test_padding_does_not_count_for_the_range(tmp_path: Path) -> None:
    values = ramp(0, 1000, np.int16)
    padded = values.copy()
    padded[:4] = -2000
    path = dicom(tmp_path / "a.dcm", padded, PixelPaddingValue=-2000)
    low = values[4:].min()
    np.testing.assert_array_equal(grey(path), to_bytes((padded - float(low)) / (1000 - low)))


def test_falling_rescaling_turns_dark_and_bright(tmp_path: Path) -> None:
    values = ramp(0, 255, np.uint8)
    path = dicom(tmp_path / "a.dcm", values, RescaleSlope=-1, RescaleIntercept=255)
    np.testing.assert_array_equal(grey(path), 255 - values)


def test_a_constant_image_is_readable(tmp_path: Path) -> None:
    assert len(np.unique(grey(dicom(tmp_path / "a.dcm", np.full((8, 8), 700, np.uint16))))) == 1


@pytest.mark.parametrize("window", [{}, {"WindowCenter": 2000, "WindowWidth": 1500}])
def test_monochrome1_is_inverted(tmp_path: Path, window: dict[str, Any]) -> None:
    values = ramp(0, 4095, np.uint16)
    plain = grey(dicom(tmp_path / "a.dcm", values, stored=12, **window)).astype(int)
    path = dicom(tmp_path / "b.dcm", values, stored=12, PhotometricInterpretation="MONOCHROME1", **window)
    np.testing.assert_allclose(grey(path), 255 - plain, atol=1)


def table(first: int, bits: int, entries: np.ndarray) -> Any:
    item = Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(entries), first, bits])
    item.add_new("LUTData", "OW", entries.astype("<u2").tobytes())
    return Sequence([item])


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_voi_tables_win_over_windows(tmp_path: Path, bits: int) -> None:
    """Below the table its first entry counts, above it the last; 8-bit entries may number more than 256."""
    values = ramp(0, 4095, np.uint16)
    entries = np.round(np.linspace(0, 1, 2000) ** 2 * (2**bits - 1))
    path = dicom(
        tmp_path / "a.dcm",
        values,
        stored=12,
        VOILUTSequence=table(1000, bits, entries),
        WindowCenter=40,
        WindowWidth=80,
    )
    expected = [entries[min(max(int(value) - 1000, 0), 1999)] / (2**bits - 1) for value in values.ravel()]
    np.testing.assert_array_equal(grey(path), to_bytes(np.reshape(expected, values.shape)))


def test_modality_tables_come_before_the_window(tmp_path: Path) -> None:
    values = ramp(-100, 155, np.int16)
    entries = 3 * np.arange(256) + 7
    path = dicom(
        tmp_path / "a.dcm",
        values,
        ModalityLUTSequence=table(-100, 16, entries),
        WindowCenter=300,
        WindowWidth=500,
    )
    np.testing.assert_array_equal(grey(path), to_bytes(linear(entries[values + 100], 300, 500)))


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless], ids=lambda syntax: syntax.name)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_rgb_of_eight_and_sixteen_bits(tmp_path: Path, syntax: Any, kind: Any) -> None:
    highest = np.iinfo(kind).max
    values = np.random.default_rng(0).integers(0, highest, (12, 10, 3), endpoint=True, dtype=kind)
    path = dicom(tmp_path / "a.dcm", values, syntax=syntax)
    np.testing.assert_array_equal(np.asarray(read_image(path)), to_bytes(values / highest))


def test_ybr_becomes_rgb(tmp_path: Path) -> None:
    """JFIF's equations, as the standard's C.7.6.3.1.2 gives them."""
    rgb = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [200, 120, 40]]], float)
    ybr = rgb @ np.array([[0.299, -0.1687, 0.5], [0.587, -0.3313, -0.4187], [0.114, 0.5, -0.0813]]) + [0, 128, 128]
    path = dicom(tmp_path / "a.dcm", ybr.round().clip(0, 255).astype(np.uint8), PhotometricInterpretation="YBR_FULL")
    np.testing.assert_allclose(np.asarray(read_image(path)), rgb, atol=3)


@pytest.mark.parametrize("bits", [8, 16])
def test_palettes_are_looked_up(tmp_path: Path, bits: int) -> None:
    colours = np.random.default_rng(0).integers(0, 2**bits, (3, 256))
    kind = np.uint8 if bits == 8 else np.dtype("<u2")
    palette = {}
    for name, channel in zip(("Red", "Green", "Blue"), colours, strict=True):
        palette[f"{name}PaletteColorLookupTableDescriptor"] = [256, 0, bits]
        palette[f"{name}PaletteColorLookupTableData"] = channel.astype(kind).tobytes()
    values = ramp(0, 300, np.uint16)
    path = dicom(tmp_path / "a.dcm", values, PhotometricInterpretation="PALETTE COLOR", **palette)
    expected = colours.T[np.minimum(values, 255)] / (2**bits - 1)
    np.testing.assert_array_equal(np.asarray(read_image(path)), to_bytes(expected))


def test_floating_point_pixels_span_their_own_range(tmp_path: Path) -> None:
    values = np.linspace(-3, 5, 48, dtype=np.float32).reshape(6, 8)
    path = dicom(tmp_path / "a.dcm", np.zeros((6, 8), np.uint32))
    dataset = pydicom.dcmread(path)
    del dataset.PixelData, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation
    dataset.FloatPixelData = values.tobytes()
    dataset.save_as(path)
    np.testing.assert_allclose(grey(path), to_bytes((values + 3) / 8), atol=1)


def test_what_the_installed_decoders_can_is_read(tmp_path: Path) -> None:
    """JPEG 2000 by Pillow, as pydicom asks it to."""
    from io import BytesIO

    from PIL import Image, features

    if not features.check("jpg_2000"):
        pytest.skip("Pillow without JPEG 2000")
    values = ramp(0, 255, np.uint8)
    stream = BytesIO()
    Image.fromarray(values).save(stream, "JPEG2000", irreversible=False, no_jp2=True)
    path = dicom(tmp_path / "a.dcm", values)
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = JPEG2000Lossless
    dataset.PixelData = pydicom.encaps.encapsulate([stream.getvalue()])
    dataset["PixelData"].is_undefined_length = True
    dataset.save_as(path)
    np.testing.assert_array_equal(grey(path), values)


@pytest.mark.parametrize(
    ("syntax", "words"),
    [
        (
            JPEGLossless,
            "JPEG Lossless, Non-Hierarchical (Process 14), which needs a decoder: pip install 'pylibjpeg[all]'",
        ),
        (JPEGLSLossless, "JPEG-LS Lossless Image Compression, which needs a decoder: pip install 'pylibjpeg[all]'"),
        (MPEG2MPML, "MPEG2 Main Profile / Main Level, for which there is no decoder"),
        (JPEG2000Lossless, "cannot be decoded as JPEG 2000 Image Compression (Lossless Only)"),
    ],
    ids=["lossless", "ls", "video", "damaged"],
)
def test_compression_that_cannot_be_decoded_is_named(tmp_path: Path, syntax: Any, words: str) -> None:
    if "needs a decoder" in words and pydicom.pixels.get_decoder(syntax).is_available:
        pytest.skip("a decoder is installed")
    path = dicom(tmp_path / "a.dcm", ramp(0, 255, np.uint8))
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8 no picture \xff\xd9 "])
    dataset["PixelData"].is_undefined_length = True
    dataset.save_as(path)
    assert words in reason(path)
    assert image_size(path) == (32, 24)


def test_missing_pixel_data_is_named(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", ramp(0, 255, np.uint8))
    dataset = pydicom.dcmread(path)
    dataset.PixelData = b""
    dataset.save_as(tmp_path / "empty.dcm")
    assert reason(tmp_path / "empty.dcm") == "a DICOM file with missing pixel data"
    del dataset.PixelData
    dataset.save_as(tmp_path / "none.dcm")
    assert reason(tmp_path / "none.dcm") == "a DICOM file with missing pixel data"


def test_several_frames_are_refused(tmp_path: Path) -> None:
    values = np.stack([ramp(0, 255, np.uint8)] * 3)
    path = dicom(tmp_path / "a.dcm", values[0])
    dataset = pydicom.dcmread(path)
    set_pixel_data(dataset, values, "MONOCHROME2", 8)
    dataset.save_as(path)
    assert dataset.NumberOfFrames == 3
    assert reason(path).startswith("a DICOM file of 3 frames")
    dataset.NumberOfFrames, dataset.PixelData = 1, values[0].tobytes()
    dataset.save_as(path)
    np.testing.assert_array_equal(grey(path), values[0])


def test_a_file_without_an_image_says_what_it_is(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", None, SOPClassUID=BasicTextSRStorage)
    assert reason(path) == "a DICOM file without an image (Basic Text SR Storage)"
    with pytest.raises(UnreadableImage, match="without an image"):
        image_size(path)


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian], ids=lambda syntax: syntax.name)
def test_files_without_preamble_or_header_are_read(tmp_path: Path, syntax: Any) -> None:
    """As old machines wrote them: the elements of the data set, and nothing before."""
    values = ramp(0, 255, np.uint8)
    dataset = pydicom.dcmread(dicom(tmp_path / "a.dcm", values, syntax=syntax))
    del dataset.file_meta, dataset.preamble
    implicit = syntax == ImplicitVRLittleEndian
    dataset.save_as(tmp_path / "old.dcm", implicit_vr=implicit, little_endian=True, enforce_file_format=False)
    assert b"DICM" not in (tmp_path / "old.dcm").read_bytes()[:200]
    np.testing.assert_array_equal(grey(tmp_path / "old.dcm"), values)


def test_the_mark_makes_a_dicom_file_whatever_its_name(tmp_path: Path) -> None:
    values = ramp(0, 255, np.uint8)
    path = dicom(tmp_path / "IM0001", values)
    np.testing.assert_array_equal(grey(path), values)
    assert image_size(path) == (32, 24)
    assert {".dcm", ".dicom"} <= SUFFIXES


def test_other_and_damaged_files_say_so(tmp_path: Path) -> None:
    assert reason(tmp_path / "none.dcm") == "no such file"
    (tmp_path / "empty.dcm").touch()
    assert reason(tmp_path / "empty.dcm") == "empty file"
    (tmp_path / "text.dcm").write_text("this is not a picture, and not DICOM either" * 10)
    assert "DICOM" in reason(tmp_path / "text.dcm")
    whole = dicom(tmp_path / "a.dcm", ramp(0, 4095, np.uint16, 64, 64)).read_bytes()
    for share in (0.9, 0.5, 0.05):
        (tmp_path / "cut.dcm").write_bytes(whole[: int(len(whole) * share)])
        assert re.match("truncated file|.*(missing|damaged|without)", reason(tmp_path / "cut.dcm"))
    assert reason(dicom(tmp_path / "b.dcm", np.zeros((4, 4, 3), np.uint8), PhotometricInterpretation="HSV")) == (
        "a DICOM file with unusual colours (HSV)"
    )


def test_too_many_pixels_are_not_decoded(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", ramp(0, 255, np.uint8), Rows=60_000, Columns=60_000)
    assert reason(path) == "too many pixels to decode safely"


def test_without_pydicom_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dicom(tmp_path / "a.dcm", ramp(0, 255, np.uint8))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert reason(path) == "a DICOM file, which needs pydicom: pip install 'sic[dicom]'"


def test_nothing_about_the_patient_comes_along(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither with the picture, nor in warnings about ill-typed elements."""
    path = dicom(tmp_path / "a.dcm", ramp(0, 255, np.uint8))
    data = path.read_bytes()
    assert PATIENT.encode() in data
    path.write_bytes(data.replace(b"1.2.3.4\0", b"Doe Jane"))
    image = read_dicom(path)
    assert not image.info
    captured = capfd.readouterr()
    assert not captured.out and not captured.err
