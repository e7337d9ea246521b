"""A contact sheet: a few images of every class, with labels and boxes."""

import math
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from sic.data.dataset import ImageData, Sample
from sic.data.images import UnreadableImage, read_image

TILE, GAP, HEADING, CAPTION = 160, 8, 24, 16
PAPER, INK, FAINT, OWN, OTHER = "#ffffff", "#1c1c1c", "#e6e6e6", "#d55e00", "#56b4e9"


def contact_sheet(data: ImageData, per_class: int = 4, seed: int = 0) -> Image.Image:
    """A row of training images per class. Boxes of the class are orange, others blue, difficult ones thin."""
    rng = random.Random(seed)
    width, height = per_class * (TILE + GAP) + GAP, HEADING + TILE + CAPTION + GAP
    columns = max(1, round(math.sqrt(len(data.classes) * height / width)))
    rows = math.ceil(len(data.classes) / columns)
    sheet = Image.new("RGB", (columns * width, rows * height + GAP), PAPER)
    for label in range(len(data.classes)):
        left, top = label // rows * width + GAP, label % rows * height + GAP
        _strip(sheet, (left, top), data, label, per_class, rng)
    return sheet


def _strip(
    sheet: Image.Image, at: tuple[int, int], data: ImageData, label: int, per_class: int, rng: random.Random
) -> None:
    """The name of a class, its number of images, and some of them."""
    left, top = at
    shown = [sample for sample in data.splits["train"] if label in sample.labels]
    draw = ImageDraw.Draw(sheet)
    draw.text((left, top), _short(f"{data.classes[label]} ({len(shown)})", per_class * TILE, 15), INK, _font(15))
    chosen = rng.sample(shown, min(per_class, len(shown)))
    for number, sample in enumerate(sorted(chosen, key=lambda sample: sample.id)):
        x, y = left + number * (TILE + GAP), top + HEADING
        sheet.paste(_tile(sample, label), (x, y))
        names = (
            ", ".join(data.classes[other] for other in sample.labels) if len(sample.labels) > 1 else sample.path.name
        )
        draw.text((x, y + TILE), _short(names, TILE, 10), INK, _font(10))


def _tile(sample: Sample, label: int) -> Image.Image:
    """The image in a square with its boxes, or the reason why it cannot be read."""
    tile = Image.new("RGB", (TILE, TILE), FAINT)
    try:
        image = read_image(sample.path)
    except UnreadableImage as reason:
        ImageDraw.Draw(tile).text((4, 4), _short(str(reason), TILE - 8, 10), INK, _font(10))
        return tile
    scale = TILE / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    left, top = (TILE - width) // 2, (TILE - height) // 2
    tile.paste(image.resize((width, height), Image.Resampling.BILINEAR), (left, top))
    draw = ImageDraw.Draw(tile)
    for box in sorted(sample.boxes, key=lambda box: box.label == label):
        corners = [
            (left + scale * box.left, top + scale * box.top),
            (left + scale * box.right - 1, top + scale * box.bottom - 1),
        ]
        if corners[0][0] <= corners[1][0] and corners[0][1] <= corners[1][1]:
            draw.rectangle(corners, outline=OWN if box.label == label else OTHER, width=1 if box.difficult else 2)
    return tile


def _font(size: int) -> ImageFont.FreeTypeFont:
    import matplotlib  # has a font with more than Latin letters

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


def _short(text: str, width: int, size: int) -> str:
    """The text, shortened to fit."""
    font = _font(size)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"
