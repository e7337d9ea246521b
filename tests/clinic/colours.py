"""A model directory that was never trained but answers rightly: the random network tells colours apart."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sic.data import Preprocessing, read_image, to_tensor
from sic.data import open as open_data
from sic.directory import RUN, Config, build
from sic.model import Model
from sic.supports import Support, select
from tests.models import settle

SIZE = 16
COLOURS = {"blue": (40, 60, 220), "green": (40, 200, 60), "red": (220, 50, 40), "yellow": (210, 200, 30)}
CASES = ["blue/08", "blue/11", "green/04", "green/07", "red/02", "red/05", "yellow/08", "yellow/10"]
"""Two for each colour that k-means chooses; named, because two choices for yellow are equally good but for rounding."""
HELD_OUT = 3
"""Every third image is for validation."""


def picture(rng: np.random.Generator, left: str, right: str) -> Image.Image:
    """Noise in two colours, of random brightness."""
    base = np.repeat(np.array([[COLOURS[left]] * (SIZE // 2) + [COLOURS[right]] * (SIZE // 2)]), SIZE, axis=0)
    pixels = base * rng.uniform(0.6, 1.1) + rng.normal(0, 20, (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def draw(root: Path, images: int = 12, seed: int = 0) -> Path:
    """Class folders of single-coloured images."""
    rng = np.random.default_rng(seed)
    for name in COLOURS:
        (root / name).mkdir(parents=True)
        for number in range(images):
            picture(rng, name, name).save(root / name / f"{number:02d}.png")
    return root


def draw_several(root: Path, images: int = 10) -> Path:
    """A table of images with one colour or two, which are their labels."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True)
    lines = ["path,labels"]
    names = [*COLOURS]
    for number in range(images):
        for place, name in enumerate(names):
            other = name if number % 2 else names[place - 1]
            file = f"{name}-{other}-{number}.png"
            picture(rng, name, other).save(root / file)
            lines.append(f"{file},{'|'.join(dict.fromkeys((name, other)))}")
    (root / "images.csv").write_text("\n".join(lines))
    return root / "images.csv"


def make(folder: Path, data: Path, *, per_class: int = 2, keep_images: bool = True) -> Path:
    """A model with supports that training could have chosen, and the record of its run."""
    torch.manual_seed(0)
    opened = open_data(data)
    samples = opened.splits["train"] + opened.splits.get("val", [])
    preprocessing = Preprocessing(SIZE, SIZE, "squash")
    config = Config(
        "resnet_tiny",
        list(opened.classes),
        opened.task,
        preprocessing,
        per_class,
        temperature=0.2,
        latent=16,
        training={"seed": 0},
    )
    classifier = build(config, per_class * len(opened.classes))
    images = torch.stack([to_tensor(preprocessing(read_image(sample.path))) for sample in samples])
    settle(classifier.encoder, images)
    train = [row for row in range(len(samples)) if row % HELD_OUT]
    with torch.no_grad():
        latents = classifier.encoder(images[train])
    candidates: dict[int, list[int]] = {}
    for position, row in enumerate(train):
        if len(samples[row].labels) == 1:
            candidates.setdefault(samples[row].labels[0], []).append(position)
    rows, labels = select(latents.numpy(), candidates, per_class)
    ids = [samples[row].id for row in train]
    if per_class == 2 and f"{CASES[0]}.png" in ids:
        rows = np.array([ids.index(f"{case}.png") for case in CASES])
    classifier.set_supports(latents[rows], torch.from_numpy(labels))
    supports = []
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        sample = samples[train[row]]
        supports.append(Support(label, sample.id, preprocessing(read_image(sample.path)) if keep_images else None))
    Model(classifier.eval(), config, supports).save(folder)
    record = {
        "data": {"opened_with": opened.opened_with},
        "train": [samples[row].id for row in train],
        "validation": [sample.id for row, sample in enumerate(samples) if row % HELD_OUT == 0],
        "skipped": [],
    }
    (folder / RUN).write_text(json.dumps(record))
    return folder
