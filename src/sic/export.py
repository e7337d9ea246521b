"""A model as one file for other programs (ONNX or torch.export): answers and, if wanted, their explanation.

The classifier becomes a graph of plain operators that takes batches of any size. A file is read back before it is kept:
it must answer as the model does.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from sic.errors import SicError
from sic.files import write_atomically
from sic.methods import METHODS, SIC, Classifier
from sic.model import Model
from sic.version import __version__

aten = torch.ops.aten
MAPS = ("top_class", "contributions", "constant")
"""The further outputs of an explaining graph."""
TOLERANCE = 1e-4
"""The largest allowed difference from the model, relative to the largest value of an output."""
METADATA = "sic"
"""The key (ONNX) or the name without .json (pt2) of the metadata."""
SMALL = 1e-7
ONNX, PT2 = ".onnx", ".pt2"

Run = Callable[[Tensor], Sequence[Tensor]]
"""Runs a file: images → outputs."""


class Answering(nn.Module):
    """Images N×3×H×W → logits N×C and, for methods with supports, evidence N×S."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier
        self.names: tuple[str, ...] = ("logits", "evidence") if classifier.with_supports else ("logits",)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.classifier.answer(images)[: len(self.names)]


class Explaining(Answering):
    """Also the class of the highest logit, N, its contributions, N×H×W, and the part that comes from no pixel, N."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier)
        if not classifier.traceable:
            able = " or ".join(name for name, kind in METHODS.items() if kind.traceable)
            raise SicError(f"--explain is for models whose forward pass can be traced back: --method {able}.")
        self.answers = len(self.names)
        self.names = (*self.names, *MAPS)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        answered = self.classifier.answered(images)
        top = answered.logits.argmax(dim=1)
        found = answered.explain(top, weights=False)
        return *(answered.logits, answered.evidence)[: self.answers], top, found.maps, found.constant


@dataclass(frozen=True)
class Exported:
    """The file that was written."""

    file: Path
    outputs: list[str]
    difference: float
    """The largest difference from the model, relative to the largest value of an output."""


def export(model: Model, to: Path, explain: bool = False) -> Exported:
    """Write `model` to an .onnx or .pt2 file; with `explain` it also explains the highest logit.

    A file whose answers differ from the model's is not kept.
    """
    if to.suffix not in WRITERS:
        raise SicError(f"--to {to} must end in {' or '.join(WRITERS)}.")
    if model.device.type != "cpu":
        raise SicError("Models are exported on the CPU; load the model there.")
    to.parent.mkdir(parents=True, exist_ok=True)
    module = (Explaining if explain else Answering)(model.classifier).eval()
    size = model.config.preprocessing.size
    program = exported(module, size)
    text = json.dumps(metadata(model, module.names), ensure_ascii=False)
    differences: list[float] = []

    def write(temporary: Path) -> None:
        run = WRITERS[to.suffix](program, module.names, text, temporary)
        differences.append(_difference(module, run, size))
        if not differences[0] <= TOLERANCE:
            raise SicError(
                f"{to} was not written: its answers would differ from the model's by {differences[0]:.1g} of the "
                f"largest value, and {TOLERANCE:g} is allowed; try {' or '.join(s for s in WRITERS if s != to.suffix)}."
            )

    write_atomically(to, write)
    return Exported(to, list(module.names), differences[0])


def metadata(model: Model, outputs: Sequence[str]) -> dict[str, Any]:
    """What a program needs to use the file: preprocessing, and the meaning of the outputs."""
    config, classifier = model.config, model.classifier
    about = {
        "sic": __version__,
        "method": config.method,
        "backbone": config.backbone,
        "task": config.task,
        "classes": model.classes,
        "bias": classifier.bias,
        "image_size": config.preprocessing.size,
        "input": "images: N×3×H×W, float32 RGB in [0, 1]. Colour encoding or normalisation is part of the graph.",
        "preprocessing": {
            "resize_short_side": config.preprocessing.resize,
            "size": config.preprocessing.size,
            "fit": config.preprocessing.fit,
            "filter": "bilinear, antialiased (Pillow)",
        },
        "outputs": {name: MEANINGS[name] for name in outputs},
        "probabilities": classifier.calibration.formula(classifier.loss),
        "probabilities_of_other_classes": classifier.calibration.formula(classifier.loss, nearest=False),
    }
    if isinstance(classifier, SIC):
        about |= {"temperature": classifier.temperature, "b": classifier.b}
    if model.supports:
        about["supports"] = [
            {"class": model.classes[support.label], "source": support.source} for support in model.supports
        ]
    return about


MEANINGS = {
    "logits": "N×C, in the order of classes",
    "evidence": "N×S, the contribution of each support to the logit of its class, in the order of supports",
    "top_class": "N, the class of the highest logit, which is explained",
    "contributions": "N×H×W, the contribution of each pixel to that logit: signed, not scaled",
    "constant": "N, the part that comes from no pixel; logit = constant + sum of contributions",
}


def _difference(module: Answering, run: Run, size: int) -> float:
    """The largest difference of any output, for a batch of noise and a batch of noise, black and white."""
    noise = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    largest = 0.0
    for images in (noise, torch.cat([noise, torch.zeros_like(noise), torch.ones_like(noise)])):
        with torch.no_grad():
            expected = module(images)
        for one, other in zip(run(images), expected, strict=True):
            scale = other.abs().max().clamp_min(1e-12)
            gap = (one - other).abs().max() / scale if one.shape == other.shape else torch.tensor(torch.inf)
            largest = max(largest, gap.nan_to_num(torch.inf).item())
    return largest


def _write_onnx(program: ExportedProgram, names: Sequence[str], about: str, path: Path) -> Run:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - what torch exports with
    except ImportError as error:
        raise SicError(f"ONNX files need {error.name}; install it with: pip install 'sic[export]'.") from None
    _keep_small_numbers(program)
    found = torch.onnx.export(program, input_names=["images"], output_names=list(names), verbose=False)
    assert found is not None
    content = found.model_proto
    for value in (*content.graph.input, *content.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.helper.set_model_props(content, {METADATA: about})
    path.write_bytes(content.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: [torch.from_numpy(each) for each in session.run(None, {"images": images.numpy()})]


def _keep_small_numbers(program: ExportedProgram) -> None:
    """Replace `norm + 1e-12` by `max(norm, 1e-12)`. The exporter would treat such a small number as zero, and an image
    whose latents are all zero would get NaN."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.add.Tensor and isinstance(node.args[1], float) and 0 < node.args[1] < SMALL:
            node.target = torch.ops.aten.clamp_min.default


def _write_pt2(program: ExportedProgram, names: Sequence[str], about: str, path: Path) -> Run:
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{METADATA}.json": about})
    with path.open("rb") as file:
        return torch.export.load(file).module()


WRITERS: dict[str, Callable[[ExportedProgram, Sequence[str], str, Path], Run]] = {ONNX: _write_onnx, PT2: _write_pt2}


def exported(module: Answering, size: int) -> ExportedProgram:
    """The graph for images of `size`×`size` and batches of any length."""
    example = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    plain: nn.Module = _traced(module, example) if isinstance(module, Explaining) else module
    with torch.no_grad():
        return torch.export.export(plain, (example,), dynamic_shapes=({0: Dim("batch", min=1)},), strict=False)


def _traced(module: Explaining, example: Tensor) -> nn.Module:
    """The forward and backward pass of `module` as one graph; exporters do not support backward passes."""
    sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fake = mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    backwards: dict[Any, Callable[..., Any]] = {
        aten.convolution_backward.default: _convolution_backward,
        aten.avg_pool2d_backward.default: _avg_pool2d_backward,
        aten.constant_pad_nd.default: _constant_pad_nd,
    }
    with mode:
        graph = make_fx(module, backwards)(fake)

    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.traced = graph

        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.traced(images))

    return Traced()


def _convolution_backward(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    bias_sizes: object,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    mask: list[bool],
) -> tuple[Tensor, None, None]:
    """For the input only, as a transposed convolution: ONNX has no operator for the backward pass."""
    assert not transposed and mask == [True, False, False]
    rest = [
        images.shape[2 + i]
        - ((gradient.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight.shape[2 + i] - 1) + 1)
        for i in range(2)
    ]
    return aten.convolution(gradient, weight, None, stride, padding, dilation, True, rest, groups), None, None


def _constant_pad_nd(images: Tensor, pads: list[int], value: float = 0) -> Tensor:
    """By concatenation; negative padding crops. The implementation of torch would fix the length of the batch."""
    for dim, before, after in zip(range(images.dim() - 1, -1, -1), pads[::2], pads[1::2], strict=False):
        shape, start, end = list(images.shape), max(0, -before), images.shape[dim] - max(0, -after)
        first, last = (
            [images.new_full([*shape[:dim], length, *shape[dim + 1 :]], value)] if length > 0 else []
            for length in (before, after)
        )
        images = torch.cat([*first, images.narrow(dim, start, end - start), *last], dim)
    return images


def _avg_pool2d_backward(
    gradient: Tensor,
    images: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Tensor:
    """As a transposed convolution with ones, of the share of each pixel of a window."""
    stride = stride or kernel
    height, width = images.shape[2:]
    if divisor is None:
        rows = _window_sizes(gradient.shape[2], kernel[0], stride[0], padding[0], height, count_padding)
        columns = _window_sizes(gradient.shape[3], kernel[1], stride[1], padding[1], width, count_padding)
        shares = gradient / (gradient.new_tensor(rows)[:, None] * gradient.new_tensor(columns))
    else:
        shares = gradient / divisor
    ones = gradient.new_ones(images.shape[1], 1, *kernel)
    # Without padding: windows beyond the border (`ceil_mode`) are cropped, and pixels without a window are zero.
    reached = [(gradient.shape[2 + i] - 1) * stride[i] + kernel[i] - padding[i] for i in range(2)]
    rest = [max(0, images.shape[2 + i] - reached[i]) for i in range(2)]
    spread = aten.convolution(shares, ones, None, stride, [0, 0], [1, 1], True, rest, images.shape[1])
    return spread[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]


def _window_sizes(
    windows: int, kernel: int, stride: int, padding: int, length: int, count_padding: bool
) -> Sequence[float]:
    """The divisors of the windows along one direction."""
    sizes = []
    for window in range(windows):
        start = window * stride - padding
        end = min(start + kernel, length + padding)
        sizes.append(float(end - start if count_padding else min(end, length) - max(start, 0)))
    return sizes
