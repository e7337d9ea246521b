"""Untrained models with data of their own, saved as `sic train` saves them."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sic import directory
from sic.data import open as open_data
from sic.data.dataset import ImageData
from sic.data.images import Preprocessing, read_image
from sic.directory import Config
from sic.model import Model, load
from sic.report import Page, gather
from sic.run import held_out
from sic.supports import Support
from tests.models import settle

ODD = 'kite <b> & "co"'
"""A class name that HTML must not take for its own."""
VOID = {"img", "meta", "br", "wbr", "path", "circle", "line", "polygon"}


def save_model(
    folder: Path, data: ImageData, size: int, temperature: float, *, images: bool = True, figures: bool = True
) -> Model:
    """An untrained network whose supports are the first three images of each class alone."""
    torch.manual_seed(0)
    preprocessing = Preprocessing(size=size, resize=size, fit="squash")
    chosen = []
    for label in range(len(data.classes)):
        chosen += [sample for sample in data.splits["train"] if sample.labels == (label,)][:3]
    pixels = [preprocessing(read_image(sample.path)) for sample in chosen]
    views = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    card = {"name": data.name, "layout": data.layout, "images": {"train": len(data.splits["train"])}}
    recorded = {"validation": {"accuracy": 0.5, "images": 8, "similar_case": 1.0, "note": "a note"}} if figures else {}
    config = Config("resnet_tiny", list(data.classes), data.task, preprocessing, 3, temperature, latent=16)
    config.data, config.figures = card, recorded
    classifier = directory.build(config, len(chosen))
    settle(classifier, views[:32])
    with torch.no_grad():
        latents = torch.cat([classifier.encoder(batch) for batch in views.split(32)])
    classifier.set_supports(latents, torch.tensor([sample.labels[0] for sample in chosen]))
    kept = [
        Support(sample.labels[0], sample.id, own if images else None)
        for sample, own in zip(chosen, pixels, strict=True)
    ]
    Model(classifier.eval(), config, kept).save(folder)
    validation = [s.id for s in data.splits["train"][::5]]
    train = [s.id for s in data.splits["train"] if s.id not in validation or s in chosen]
    run = {"data": {"opened_with": data.opened_with}, "train": train, "validation": validation}
    (folder / "run.json").write_text(json.dumps(run))
    return load(folder)


def make_page(folder: Path, data: ImageData, examples: int = 2) -> Page:
    """What `sic report` shows of a model directory."""
    model = load(folder)
    images = held_out(data, model.classes)
    predictions = model.predictions(images.samples, name=images.name, caution=images.caution)
    return gather(model, folder, predictions, examples=examples)


@dataclass
class Saved:
    """A model directory and the data it belongs to."""

    folder: Path
    data: ImageData
    model: Model


@pytest.fixture(scope="session")
def single(bird_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Four classes, one with an odd name, in train and test folders."""
    root = tmp_path_factory.mktemp("report data") / "birds"
    for number, folder in enumerate(sorted(bird_folders.iterdir())):
        for position, file in enumerate(sorted(folder.iterdir())):
            split = "train" if position < 12 else "test"
            own = root / split / (ODD if number == 2 else folder.name)
            own.mkdir(parents=True, exist_ok=True)
            (own / file.name).write_bytes(file.read_bytes())
    data = open_data(root)
    folder = tmp_path_factory.mktemp("report models") / "single"
    return Saved(folder, data, save_model(folder, data, 40, 0.02))


@pytest.fixture(scope="session")
def multi(bird_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Two birds beside each other have two labels."""
    root = tmp_path_factory.mktemp("report table")
    files = [sorted(folder.iterdir()) for folder in sorted(bird_folders.iterdir())[:3]]
    lines = ["path,labels,split"]
    for number in range(24):
        split = "train" if number < 12 else "test"
        for label in range(3):
            name = f"{label}-{number}.png"
            shown = [label] if number % 3 else [label, (label + 1) % 3]
            halves = [Image.open(files[own][number]).convert("RGB") for own in shown]
            picture = Image.new("RGB", (40 * len(halves), 40))
            for position, half in enumerate(halves):
                picture.paste(half, (40 * position, 0))
            picture.save(root / name)
            lines.append(f"{name},{'|'.join(f'bird {own}' for own in shown)},{split}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    data = open_data(root / "table.csv")
    folder = tmp_path_factory.mktemp("report models") / "multi"
    return Saved(folder, data, save_model(folder, data, 40, 0.02))


@dataclass
class Element:
    """A tag of the page with everything in it."""

    tag: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """As read: words of different elements apart, but not where a line may only be broken."""
        if self.tag == "wbr":
            return "\0"
        words = " ".join(child if isinstance(child, str) else child.text for child in self.children)
        return re.sub(r"\s+", " ", re.sub(r"\s*\0\s*", "", words)).strip()

    def all(self, tag: str | None = None, **attributes: str) -> list["Element"]:
        """Elements below, by tag and attributes (`class_` for one of the classes)."""
        wanted = attributes.pop("class_", None)
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            fits = tag in (None, child.tag) and attributes.items() <= child.attributes.items()
            if fits and (wanted is None or wanted in child.attributes.get("class", "").split()):
                found.append(child)
            found += child.all(tag, **attributes, **({} if wanted is None else {"class_": wanted}))
        return found

    def one(self, tag: str | None = None, **attributes: str) -> "Element":
        (found,) = self.all(tag, **attributes)
        return found


class Tree(HTMLParser):
    """A strict reader: every tag must be closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} comes twice"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(text: str) -> Element:
    tree = Tree()
    tree.feed(text)
    tree.close()
    assert tree.open == [tree.root]
    return tree.root


Parse = Callable[[str], Element]
