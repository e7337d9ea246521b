import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from sic.data import images
from sic.data.boxes import size_of
from sic.data.dataset import Box
from sic.data.images import SCANS, Preprocessing, UnreadableImage, image_size, read_image, to_tensor


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture that JPEG keeps well: H×W×3."""
    y, x = np.mgrid[:height, :width]
    return np.stack([255 * y / height, 255 * x / width, np.full(y.shape, 90)], 2).astype(np.uint8)


def over_white(rgba: np.ndarray) -> np.ndarray:
    alpha = rgba[..., 3:].astype(float) / 255
    return rgba[..., :3] * alpha + 255 * (1 - alpha)


def read(path: Path) -> np.ndarray:
    image = read_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".ppm", ".tga"])
def test_lossless_rgb_comes_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    pixels = noise(7, 5)
    Image.fromarray(pixels).save(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(read(tmp_path / f"a{suffix}"), pixels)


@pytest.mark.parametrize("name", ["a b.jpg", "Müller größe.JPG", "日本.jpeg"])
def test_jpeg_with_any_file_name(tmp_path: Path, name: str) -> None:
    pixels = smooth(32, 48)
    Image.fromarray(pixels).save(tmp_path / name, quality=95)
    assert np.abs(read(tmp_path / name).astype(int) - pixels).max() <= 8


def test_cmyk_jpeg_shows_its_colours(tmp_path: Path) -> None:
    """Full cyan ink is (0, 255, 255), no ink is white."""
    cmyk = np.zeros((16, 32, 4), np.uint8)
    cmyk[:, 16:, 0] = 255
    Image.fromarray(cmyk, "CMYK").save(tmp_path / "a.jpg", quality=95)
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.mode == "CMYK"
    pixels = read(tmp_path / "a.jpg").astype(int)
    assert np.abs(pixels[8, 4] - [255, 255, 255]).max() <= 6
    assert np.abs(pixels[8, 28] - [0, 255, 255]).max() <= 6


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 1, 255, 256], [1000, 32768, 65534, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a{suffix}")
    expected = np.round(values / 257).astype(np.uint8)
    np.testing.assert_array_equal(read(tmp_path / f"a{suffix}"), np.stack([expected] * 3, 2))


def test_floating_point_images_span_their_own_range(tmp_path: Path) -> None:
    values = np.linspace(-3, 5, 12, dtype=np.float32).reshape(3, 4)
    Image.fromarray(values).save(tmp_path / "a.tif")
    expected = np.round((values + 3) / 8 * 255)
    np.testing.assert_allclose(read(tmp_path / "a.tif")[..., 1], expected, atol=1)


def test_values_that_are_not_numbers_are_readable(tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [np.nan, np.inf, -np.inf]], np.float32)
    Image.fromarray(values).save(tmp_path / "a.tif")
    np.testing.assert_array_equal(read(tmp_path / "a.tif")[..., 0], [[0, 128, 255], [0, 0, 0]])


def test_integers_beyond_sixteen_bits_span_their_own_range(tmp_path: Path) -> None:
    values = np.array([[0, 100_000, 200_000]], np.int32)
    Image.fromarray(values).save(tmp_path / "a.tif")
    np.testing.assert_array_equal(read(tmp_path / "a.tif")[..., 0], [[0, 128, 255]])


def test_a_constant_floating_point_image_is_readable(tmp_path: Path) -> None:
    Image.fromarray(np.full((3, 4), 7, np.float32)).save(tmp_path / "a.tif")
    assert len(np.unique(read(tmp_path / "a.tif"))) == 1


def test_palette_with_a_transparent_colour_lies_over_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 0, 250])
    image.save(tmp_path / "a.png", transparency=1)
    expected = [[[10, 20, 30], [255, 255, 255]], [[0, 0, 250], [255, 255, 255]]]
    np.testing.assert_array_equal(read(tmp_path / "a.png"), expected)


def test_palette_with_an_alpha_for_each_colour_lies_over_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 0, 250])
    image.save(tmp_path / "a.png", transparency=bytes([255, 128, 0]))
    rgba = np.array([[[10, 20, 30, 255], [200, 0, 0, 128], [0, 0, 250, 0]]], np.uint8)
    np.testing.assert_allclose(read(tmp_path / "a.png"), over_white(rgba), atol=1)


def test_rgba_lies_over_white(tmp_path: Path) -> None:
    rgba = noise(9, 6, 4)
    Image.fromarray(rgba, "RGBA").save(tmp_path / "a.png")
    np.testing.assert_allclose(read(tmp_path / "a.png"), over_white(rgba), atol=1)


def test_grey_with_alpha_lies_over_white(tmp_path: Path) -> None:
    la = noise(9, 6, 2)
    Image.fromarray(la, "LA").save(tmp_path / "a.png")
    expected = over_white(la[..., [0, 0, 0, 1]])
    np.testing.assert_allclose(read(tmp_path / "a.png"), expected, atol=1)


def test_grey_and_one_bit_images_become_rgb(tmp_path: Path) -> None:
    grey = noise(5, 8, 1)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(read(tmp_path / "grey.png"), np.stack([grey] * 3, 2))
    bits = grey > 127
    Image.fromarray(bits).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read(tmp_path / "bits.png"), np.stack([bits * 255] * 3, 2))


# What a camera stores (EXIF orientation) is this of the upright picture; from the EXIF standard's table.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("orientation", sorted(STORED))
def test_exif_rotation_is_undone(tmp_path: Path, orientation: int) -> None:
    upright = np.full((24, 40, 3), 20, np.uint8)
    upright[:8, :8] = (250, 10, 10)  # the top left corner is red,
    upright[:8, -8:] = (10, 10, 250)  # the top right one blue
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95, subsampling=0)
    pixels = read(tmp_path / "a.jpg").astype(int)
    assert pixels.shape == upright.shape
    for row, column in ((3, 3), (3, 36), (20, 3), (20, 36)):
        assert np.abs(pixels[row, column] - upright[row, column]).max() <= 20


@pytest.mark.parametrize(("tag", "kind"), [(0x0100, 2), (0x011A, 2), (0x010E, 5)])
def test_exif_of_a_wrong_type_costs_nothing(tmp_path: Path, tag: int, kind: int) -> None:
    """Text where a number belongs, or a number for text, in a file that is to be rotated."""
    tags = [(tag, kind, 1 if kind == 5 else 6, 38), (0x0112, 3, 1, 6 << 16)]
    entries = b"".join(struct.pack(">HHII", *entry) for entry in sorted(tags))
    exif = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + entries + struct.pack(">I", 0) + b"hello\0\0\0"
    Image.fromarray(smooth(16, 24)).save(tmp_path / "a.jpg", exif=exif)
    assert read(tmp_path / "a.jpg").shape == (24, 16, 3)


def test_gif_shows_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(read(tmp_path / "a.gif"), np.broadcast_to([255, 0, 0], (4, 6, 3)))


def reason(path: Path) -> str:
    with pytest.raises(UnreadableImage) as caught:
        read_image(path)
    return str(caught.value)


def test_missing_empty_and_other_files_say_why(tmp_path: Path) -> None:
    assert reason(tmp_path / "none.jpg") == "no such file"
    (tmp_path / "empty.jpg").touch()
    assert reason(tmp_path / "empty.jpg") == "empty file"
    (tmp_path / "text.jpg").write_text("this is not a picture")
    assert reason(tmp_path / "text.jpg") == "not an image"
    (tmp_path / "folder.jpg").mkdir()
    assert "directory" in reason(tmp_path / "folder.jpg").lower()


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".webp", ".ppm"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(noise(64, 64)).save(tmp_path / f"whole{suffix}")
    data = (tmp_path / f"whole{suffix}").read_bytes()
    (tmp_path / f"half{suffix}").write_bytes(data[: len(data) // 2])
    assert reason(tmp_path / f"half{suffix}")


def test_a_truncated_jpeg_is_called_truncated(tmp_path: Path) -> None:
    Image.fromarray(noise(64, 64)).save(tmp_path / "whole.jpg")
    (tmp_path / "half.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:1500])
    assert reason(tmp_path / "half.jpg") == "truncated file"


def test_a_damaged_avif_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL._avif")
    Image.fromarray(smooth(16, 16)).save(tmp_path / "a.avif")
    data = bytearray((tmp_path / "a.avif").read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = bytes(len(data) - start)
    (tmp_path / "a.avif").write_bytes(data)
    assert reason(tmp_path / "a.avif")


def test_a_decompression_bomb_is_not_decoded(tmp_path: Path) -> None:
    """A PNG of a few bytes that says that it is 100,000 × 100,000."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(png)
    assert reason(tmp_path / "bomb.png") == "too many pixels to decode safely"


SHAPES = [(40, 40), (90, 30), (30, 90), (41, 67), (7, 5), (3, 50)]


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("resize", [24, 31])
def test_crop_is_the_central_square_of_the_resized_image(height: int, width: int, resize: int) -> None:
    """For the pixels, the reference is Pillow scaling the central box at once."""
    image = Image.fromarray(smooth(height, width))
    preprocessing = Preprocessing(24, resize)
    reduced = preprocessing.reduce(image)
    assert min(reduced.shape[:2]) == resize
    assert reduced.shape[0] / reduced.shape[1] == pytest.approx(max(height / width, 1 / 4), rel=0.05)
    view = preprocessing(image)
    assert view.shape == (24, 24, 3) and view.dtype == np.uint8
    top, left = (reduced.shape[0] - 24) // 2, (reduced.shape[1] - 24) // 2
    np.testing.assert_array_equal(view, reduced[top : top + 24, left : left + 24])
    # The view shows the central 24/resize of the short side.
    side = min(height, width) * 24 / resize
    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    expected = np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR, box=box)).astype(int)
    step = 255 / min(24, min(height, width))  # grey levels a pixel of the view or of the image
    assert np.abs(view.astype(int) - expected).max() <= step + 2


@pytest.mark.parametrize("upright", [False, True])
def test_long_images_are_cut_at_both_ends(upright: bool) -> None:
    pixels = noise(10, 101)
    left = (101 - 40) // 2
    kept = pixels[:, left : left + 40]
    if upright:
        pixels, kept = pixels.swapaxes(0, 1), kept.swapaxes(0, 1)
    np.testing.assert_array_equal(Preprocessing(8, 10).reduce(Image.fromarray(pixels)), kept)
    preprocessing = Preprocessing(8, 20)
    expected = preprocessing.reduce(Image.fromarray(kept))
    np.testing.assert_array_equal(preprocessing.reduce(Image.fromarray(pixels)), expected)


def test_images_of_four_to_one_are_whole() -> None:
    pixels = noise(10, 40)
    np.testing.assert_array_equal(Preprocessing(10, 10).reduce(Image.fromarray(pixels)), pixels)


def test_a_strip_does_not_fill_the_memory() -> None:
    strip = Image.new("RGB", (20_000, 1), "red")
    assert Preprocessing(100, 100).reduce(strip).shape == (100, 400, 3)
    assert Preprocessing(100, 100, "squash").reduce(strip).shape == (100, 100, 3)


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="crop of 24 px from an image of 20 px"):
        Preprocessing(24, 20)


def test_label_pictures_keep_their_labels() -> None:
    labels = (noise(40, 60) // 64) * 64
    view = Preprocessing(24, 30)(Image.fromarray(labels), Image.Resampling.NEAREST)
    assert view.shape == (24, 24, 3) and set(np.unique(view)) <= {0, 64, 128, 192}


def test_crop_agrees_with_pillows_own_fit() -> None:
    image = Image.fromarray(smooth(60, 120))
    expected = np.asarray(ImageOps.fit(image, (30, 30), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(Preprocessing(30, 30)(image).astype(int) - expected).max() <= 2


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_squash_shows_the_whole_image(height: int, width: int) -> None:
    image = Image.fromarray(smooth(height, width))
    view = Preprocessing(20, 20, "squash")(image)
    np.testing.assert_array_equal(view, np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR)))


def test_an_image_of_the_right_size_is_left_alone() -> None:
    pixels = noise(16, 16)
    for fit in ("crop", "squash"):
        np.testing.assert_array_equal(Preprocessing(16, 16, fit)(Image.fromarray(pixels)), pixels)


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_a_stored_view_comes_back_bit_for_bit(tmp_path: Path, fit: str, height: int, width: int) -> None:
    preprocessing = Preprocessing(12, 12, fit)  # type: ignore[arg-type]
    view = preprocessing(Image.fromarray(noise(height, width)))
    Image.fromarray(view).save(tmp_path / "view.png")
    np.testing.assert_array_equal(preprocessing(read_image(tmp_path / "view.png")), view)


VIEWS = [
    Preprocessing(64, 64),
    Preprocessing(56, 64),
    Preprocessing(63, 71),
    Preprocessing(64, 64, "squash"),
    Preprocessing(57, 64, "squash"),
]


def drawn(size: tuple[int, int], box: Box) -> np.ndarray:
    """A black image of (width, height) that is white inside a box."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[int(box.top) : int(box.bottom), int(box.left) : int(box.right)] = 255
    return pixels


def edges(light: np.ndarray) -> tuple[float, float]:
    """Where a row of pixels crosses ½ upwards and downwards, between their centres; its ends where it never does."""
    centres = np.arange(len(light)) + 0.5
    lit = np.flatnonzero(light >= 0.5)
    found = []
    for inner, outer, end in ((lit[0], lit[0] - 1, 0.0), (lit[-1], lit[-1] + 1, float(len(light)))):
        if not 0 <= outer < len(light):
            found.append(end)
            continue
        found.append(np.interp(0.5, [light[outer], light[inner]], [centres[outer], centres[inner]]))
    return found[0], found[1]


def assert_at(box: Box, light: np.ndarray) -> None:
    """Half a pixel at the edge of the view cannot be told from none."""
    size = len(light)
    found = *edges(light.max(axis=0)), *edges(light.max(axis=1))
    for place, expected in zip(found, (box.left, box.right, box.top, box.bottom), strict=True):
        assert abs(place - expected) <= (0.2 if 1 <= expected <= size - 1 else 0.5)


@pytest.mark.parametrize("preprocessing", VIEWS, ids=str)
@pytest.mark.parametrize("size", [(200, 200), (301, 173), (97, 240), (900, 101), (75, 800), (41, 37)], ids=str)
def test_boxes_go_where_the_pixels_go(preprocessing: Preprocessing, size: tuple[int, int]) -> None:
    """A rectangle is drawn, seen by the model and found again, wherever it still has a few pixels."""
    width, height = size
    compared = 0
    for left, top, right, bottom in (
        (0.45, 0.4, 0.6, 0.65),
        (0.1, 0.2, 0.55, 0.9),
        (0.3, 0.1, 1, 0.5),
        (0, 0, 1, 1),
        (0.4, 0, 0.52, 1),
        (0, 0.45, 0.1, 0.6),
    ):
        corners = round(left * width), round(top * height), round(right * width), round(bottom * height)
        box = Box(2, *corners, difficult=True)
        moved = preprocessing.box(box, size)
        light = preprocessing(Image.fromarray(drawn(size, box)))[..., 0] / 255
        if moved is None:
            assert light.max() < 0.5
            continue
        assert (moved.label, moved.difficult) == (2, True)
        if min(moved.right - moved.left, moved.bottom - moved.top) < 4:
            continue
        compared += 1
        assert_at(moved, light)
    assert compared >= 3


def test_boxes_of_an_image_that_fits_stay_where_they_are() -> None:
    box = Box(0, 1.5, 2, 7.25, 9)
    for fit in ("crop", "squash"):
        assert Preprocessing(16, 16, fit).box(box, (16, 16)) == box  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "corners", [(0, 0, 30, 60), (130, 0, 160, 60), (-9, -9, -2, -2), (80, 20, 80, 40), (0, 0, 50, 60)]
)
def test_boxes_outside_of_the_crop_are_none(corners: tuple[int, int, int, int]) -> None:
    assert Preprocessing(60, 60).box(Box(0, *corners), (160, 60)) is None


def test_boxes_are_cut_at_the_edges_of_the_view() -> None:
    assert Preprocessing(30, 30).box(Box(0, -5, 10, 90, 300), (160, 60)) == Box(0, 0, 5, 20, 30)
    assert Preprocessing(30, 30, "squash").box(Box(0, -8, 10, 80, 300), (160, 60)) == Box(0, 0, 5, 15, 30)


@pytest.mark.parametrize("orientation", sorted(STORED))
def test_boxes_are_those_of_the_upright_image(tmp_path: Path, orientation: int) -> None:
    box = Box(0, 30, 10, 50, 25)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](drawn((80, 48), box))))
    stored.save(tmp_path / "a.png", exif=exif)
    for preprocessing in VIEWS:
        size = size_of(tmp_path / "a.png")
        assert size == (80, 48)
        moved = preprocessing.box(box, size)
        assert moved is not None
        light = preprocessing(read_image(tmp_path / "a.png"))[..., 0] / 255
        assert_at(moved, light)


@pytest.mark.parametrize("preprocessing", VIEWS, ids=str)
@pytest.mark.parametrize("size", [(200, 200), (301, 173), (900, 101)], ids=str)
def test_part_maps_and_boxes_agree(preprocessing: Preprocessing, size: tuple[int, int]) -> None:
    """Nearest resampling takes the pixel at the centre, so a part covers the pixels whose centres its box holds."""
    width, height = size
    box = Box(0, round(0.44 * width), round(0.3 * height), round(0.55 * width), round(0.8 * height))
    moved = preprocessing.box(box, size)
    assert moved is not None
    view = preprocessing(Image.fromarray(drawn(size, box)), Image.Resampling.NEAREST)[..., 0] > 0
    centres = np.arange(preprocessing.size) + 0.5
    columns = (centres >= moved.left) & (centres < moved.right)
    rows = (centres >= moved.top) & (centres < moved.bottom)
    np.testing.assert_array_equal(view, rows[:, None] & columns)


def test_tensors_are_channels_first_in_the_unit_interval() -> None:
    pixels = noise(5, 4)
    tensor = to_tensor(pixels)
    assert tensor.shape == (3, 5, 4) and tensor.dtype == torch.float32
    np.testing.assert_array_equal(tensor.numpy(), (pixels / np.float32(255)).transpose(2, 0, 1).astype(np.float32))
    tensor.zero_()
    np.testing.assert_array_equal(pixels, noise(5, 4))  # a copy, not a view


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "teal").save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - data[:last].count(b"\xff\xda")) + data[-2:]


def test_jpegs_of_many_scans_are_not_decoded(tmp_path: Path) -> None:
    """They are small as files and go over the picture as often as they like."""
    (tmp_path / "usual.jpg").write_bytes(many_scans(64, SCANS))
    assert read(tmp_path / "usual.jpg").shape == (64, 64, 3)
    data = many_scans(64, 24_000)
    assert len(data) < 400_000
    (tmp_path / "slow.jpg").write_bytes(data)
    with pytest.raises(UnreadableImage, match="more than 200 scans"):
        read_image(tmp_path / "slow.jpg")


@pytest.mark.parametrize("format", ["EPS", "PCX", "SGI", "ICO", "XBM", "DDS"])
def test_other_formats_are_not_tried_whatever_the_name(tmp_path: Path, format: str) -> None:
    image = Image.new("1" if format == "XBM" else "RGB", (32, 32))
    image.save(tmp_path / "a.png", format)
    for function in (read_image, image_size):
        with pytest.raises(UnreadableImage, match="not an image"):
            function(tmp_path / "a.png")


def test_no_program_is_started_for_postscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript draw EPS files."""
    started: list[object] = []
    monkeypatch.setattr("subprocess.check_call", lambda *arguments, **_: started.append(arguments))
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png", "EPS")
    with pytest.raises(UnreadableImage):
        read_image(tmp_path / "a.png")
    assert not started


def heic(path: Path, pixels: np.ndarray, orientation: int | None = None) -> Path:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, "HEIF", quality=-1, chroma=444, exif=exif)
    return path


def test_photographs_of_phones(tmp_path: Path) -> None:
    pixels = smooth(48, 64)
    path = heic(tmp_path / "IMG_0001.HEIC", pixels)
    assert np.abs(read(path).astype(int) - pixels).max() <= 1  # colours are stored as luminance and two differences
    assert image_size(path) == (64, 48)


def test_photographs_of_phones_are_not_turned_twice(tmp_path: Path) -> None:
    """HEIC has a rotation of its own, which its decoder applies; the one in EXIF says the same and must be ignored."""
    pixels = smooth(48, 64)
    path = heic(tmp_path / "turned.heic", pixels, orientation=6)
    assert np.abs(read(path).astype(int) - pixels).max() <= 1
    assert image_size(path) == (64, 48)


def test_without_pillow_heif_the_reason_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = heic(tmp_path / "photo.heic", smooth(48, 64))
    monkeypatch.setattr(images, "_formats", lambda: ("JPEG", "PNG"))
    with pytest.raises(UnreadableImage, match=r"HEIC, which needs pip install 'sic\[heif\]'; or convert it to JPEG"):
        read_image(path)
    path.write_bytes(b"words")
    with pytest.raises(UnreadableImage, match="not an image"):
        read_image(path)
