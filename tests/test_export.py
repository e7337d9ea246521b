"""Exported models answer and explain as the model does, in other programs and for batches of any size."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame
from torch import Tensor, nn

from sic import backbones
from sic import export as exporting
from sic.backbones import registry
from sic.backbones.networks import ConvStemViT, small_resnet
from sic.backbones.registry import Body
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.errors import SicError
from sic.export import (
    Explaining,
    Exported,
    _avg_pool2d_backward,
    _constant_pad_nd,
    _convolution_backward,
    export,
    exported,
)
from sic.methods import SIC, BlackBox
from sic.model import Model
from sic.supports import Support
from tests.cli.conftest import Sic, sic  # noqa: F401
from tests.models import settle

SIZE, CLASSES = 32, ["möwe", "spatz 2", "c"]
LABELS = [0, 0, 1, 2, 2]
SMALLEST, STRIDED, ATTENTION, PADDED = "one_block", "two_blocks", "one_encoder_layer", "padded"
"""Networks of few layers: tracing takes a time for each of them."""


@pytest.fixture(autouse=True)
def short_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    body = nn.Sequential(Conv2dSame(3, 8, 3, 2), nn.ReLU6(), Conv2dSame(8, 8, 3, 2, groups=8), nn.BatchNorm2d(8))
    monkeypatch.setitem(registry._builders, SMALLEST, lambda: small_resnet((8,)))
    monkeypatch.setitem(registry._builders, STRIDED, lambda: small_resnet((8, 16)))
    monkeypatch.setitem(registry._builders, ATTENTION, lambda: Body(ConvStemViT((8, 16), 16, depth=1, heads=2), 16))
    monkeypatch.setitem(registry._builders, PADDED, lambda: Body(body, 8))


def images(number: int, seed: int = 5) -> Tensor:
    coarse = torch.rand(number, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, (SIZE, SIZE), mode="bilinear")


def model(backbone: str, **settings: Any) -> Model:
    torch.manual_seed(0)
    config = Config(backbone, CLASSES, "single", Preprocessing(SIZE, SIZE + 4), 2, 0.5, latent=8, **settings)
    classifier = build(config, len(LABELS))
    settle(classifier, images(8))
    supports = []
    if classifier.with_supports:
        with torch.no_grad():
            classifier.set_supports(classifier.encoder(images(5, 1)), torch.tensor(LABELS))
        supports = [Support(label, f"{i}.png", None) for i, label in enumerate(LABELS)]
    return Model(classifier, config, supports)


def run(file: Path, batch: Tensor) -> dict[str, Tensor]:
    if file.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = session.run(None, {"images": batch.numpy()})
        return {name: torch.from_numpy(each) for name, each in zip(names, found, strict=True)}
    program = torch.export.load(file, extra_files=(extra := {"sic.json": ""}))
    return dict(zip(json.loads(extra["sic.json"])["outputs"], program.module()(batch), strict=True))


def agrees(written: Exported, exported: Model, number: int) -> None:
    """Against the model's own answers and explanations; not the module that was exported."""
    batch = images(number, seed=number)
    found = run(written.file, batch)
    assert list(found) == written.outputs
    with torch.no_grad():
        logits, evidence = exported.classifier.answer(batch)
    torch.testing.assert_close(found["logits"], logits, rtol=1e-4, atol=1e-4)
    if "evidence" in found:
        torch.testing.assert_close(found["evidence"], evidence, rtol=1e-4, atol=1e-4)
    if "contributions" not in found:
        return
    assert found["top_class"].tolist() == logits.argmax(dim=1).tolist()
    expected = exported.classifier.explain(batch, logits.argmax(dim=1))
    scale = expected.maps.abs().max().item()
    torch.testing.assert_close(found["contributions"], expected.maps, rtol=1e-4, atol=1e-4 * scale)
    torch.testing.assert_close(found["constant"], expected.constant, rtol=1e-4, atol=1e-4)
    total = found["contributions"].sum(dim=(1, 2)) + found["constant"]
    torch.testing.assert_close(total, logits.amax(dim=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("backbone", "explain", "suffix"),
    [
        ("resnet_tiny", True, ".onnx"),
        pytest.param(SMALLEST, True, ".pt2", marks=pytest.mark.slow),
        pytest.param(ATTENTION, False, ".onnx", marks=pytest.mark.slow),
        pytest.param(ATTENTION, True, ".onnx", marks=pytest.mark.slow),
    ],
)
def test_a_file_answers_as_the_model(backbone: str, explain: bool, suffix: str, tmp_path: Path) -> None:
    exported = model(backbone)
    written = export(exported, tmp_path / "new" / f"a model{suffix}", explain)
    assert written.difference <= 1e-4
    assert written.outputs[:2] == ["logits", "evidence"] and ("contributions" in written.outputs) == explain
    assert [file.name for file in written.file.parent.iterdir()] == [written.file.name]
    for number in (1, 2, 17):
        agrees(written, exported, number)


def test_an_image_that_is_like_nothing_and_what_the_file_says(tmp_path: Path) -> None:
    """All latents are zero: evidence is zero, and not a number that is none."""
    exported = model(SMALLEST)
    encoder = exported.sic.encoder
    with torch.no_grad():
        encoder.projection.weight.copy_(-encoder.features(images(1)))
        assert not encoder(images(1)).any()
    file = export(exported, tmp_path / "model.onnx").file
    found = run(file, images(1))
    assert torch.equal(found["evidence"], torch.zeros(1, len(LABELS)))
    torch.testing.assert_close(found["logits"], torch.full((1, 3), exported.sic.bias))
    content = onnx.load(file)
    about = json.loads({entry.key: entry.value for entry in content.metadata_props}["sic"])
    assert about["classes"] == CLASSES
    assert (about["temperature"], about["b"], about["image_size"]) == (0.5, 2, SIZE)
    assert about["bias"] == pytest.approx(-np.log(2))
    assert about["preprocessing"]["resize_short_side"] == SIZE + 4
    assert about["supports"][2] == {"class": "spatz 2", "source": "2.png"}
    assert set(about["outputs"]) == {"logits", "evidence"}
    assert content.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize(
    ("settings", "explain"),
    [({"method": "bcos"}, True), ({"method": "blackbox", "form": "conventional", "attribution": "grad-cam"}, False)],
)
def test_other_methods(settings: dict[str, str], explain: bool, tmp_path: Path) -> None:
    exported = model(SMALLEST, **settings)
    written = export(exported, tmp_path / "model.pt2", explain)
    assert "evidence" not in written.outputs
    agrees(written, exported, 3)


def test_a_file_that_differs_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = exporting._write_pt2

    def wrong(*args: Any) -> Any:
        run = write(*args)
        return lambda images: [each + 0.01 for each in run(images)]

    monkeypatch.setitem(exporting.WRITERS, ".pt2", wrong)
    (tmp_path / "model.pt2").write_text("what was there before")
    with pytest.raises(SicError, match="was not written: its answers would differ"):
        export(model(SMALLEST), tmp_path / "model.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    assert (tmp_path / "model.pt2").read_text() == "what was there before"


def test_the_command(sic: Sic, tmp_path: Path) -> None:  # noqa: F811
    exported = model(SMALLEST)
    exported.save(tmp_path / "model")
    said = sic.json("export", tmp_path / "model", "--to", tmp_path / "model.pt2")
    assert said["outputs"] == ["logits", "evidence"] and said["bytes"] == (tmp_path / "model.pt2").stat().st_size
    agrees(Exported(Path(said["file"]), said["outputs"], said["difference"]), exported, 2)
    assert "must end in .onnx or .pt2" in sic.refuse("export", tmp_path / "model", "--to", tmp_path / "model.txt")


@pytest.mark.slow
def test_a_bcosified_network(tmp_path: Path) -> None:
    exported = model(STRIDED, form="bcosified")
    agrees(export(exported, tmp_path / "model.onnx", explain=True), exported, 3)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 1), (2, 0, 1, 2), (3, 2, 2, 4)],
)
@pytest.mark.parametrize("size", [(13, 10), (12, 15)])
def test_convolutions(stride: int, padding: int, dilation: int, groups: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 4, *size, dtype=torch.double, requires_grad=True)
    weight = torch.rand(8, 4 // groups, 3, 2, dtype=torch.double)
    out = F.conv2d(images, weight, None, stride, padding, dilation, groups)
    gradient = torch.rand_like(out)
    (expected,) = torch.autograd.grad(out, images, gradient)
    pairs = [[stride] * 2, [padding] * 2, [dilation] * 2]
    found, *others = _convolution_backward(
        gradient, images, weight, [0], *pairs, False, [0, 0], groups, [True, False, False]
    )
    torch.testing.assert_close(found, expected)
    assert others == [None, None]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(2, None, 0), (3, 2, 1), (2, 3, 0), (3, 1, 1), (4, 3, 2), ([2, 3], [1, 2], [0, 1])],
)
@pytest.mark.parametrize(
    ("ceil", "count", "divisor"), [*itertools.product([False, True], [False, True], [None]), (True, True, 5)]
)
def test_poolings(
    kernel: int | list[int],
    stride: int | list[int] | None,
    padding: int | list[int],
    ceil: bool,
    count: bool,
    divisor: int,
) -> None:
    def pair(value: int | list[int]) -> list[int]:
        return value if isinstance(value, list) else [value, value]

    for size in [(9, 12), (10, 7), (11, 11)]:
        images = torch.rand(2, 3, *size, dtype=torch.double, requires_grad=True)
        out = F.avg_pool2d(images, kernel, stride, padding, ceil, count, divisor)
        gradient = torch.rand_like(out)
        (expected,) = torch.autograd.grad(out, images, gradient)
        strides = [] if stride is None else pair(stride)
        found = _avg_pool2d_backward(gradient, images, pair(kernel), strides, pair(padding), ceil, count, divisor)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "pads", [[1, 2], [0, 1, 0, 1], [2, 0, 3, 1], [-1, -2, 0, -1], [-1, 2, 0, 0], [1, 1, 0, 0, 2, 1]]
)
def test_paddings(pads: list[int]) -> None:
    images = torch.rand(2, 3, 6, 5)
    assert torch.equal(_constant_pad_nd(images, pads, 0.5), F.pad(images, pads, value=0.5))


@pytest.mark.slow
def test_padding_leaves_the_length_of_batches_open() -> None:
    """Networks that pad as TensorFlow does."""
    classifier = SIC(backbones.create(PADDED, "bcosified"), 2, 2)
    program = exported(Explaining(classifier).eval(), 32)
    assert program.module()(torch.rand(3, 3, 32, 32))[0].shape == (3, 2)


def test_what_cannot_be_traced_back_is_refused() -> None:
    with pytest.raises(SicError, match="--explain is for models"):
        Explaining(BlackBox(backbones.create("resnet_tiny", "conventional"), 3))
