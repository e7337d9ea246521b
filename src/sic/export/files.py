"""Writing the graph to a file, and reading it back before anybody else does: it must answer as the model does."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from sic.errors import SicError
from sic.export.graph import Answering, Explaining, exported
from sic.files import write_atomically
from sic.methods import SIC
from sic.model import Model
from sic.version import __version__

TOLERANCE = 1e-4
"""Largest difference from the model, as a share of an output's largest value."""
METADATA = "sic"
"""The key (ONNX) or the name without .json (pt2) of what the file says about itself."""
SMALL = 1e-7
ONNX, PT2 = ".onnx", ".pt2"

Run = Callable[[Tensor], Sequence[Tensor]]
"""Images → outputs, by what is in a file."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    file: Path
    outputs: list[str]
    difference: float
    """The largest from the model, as a share of an output's largest value."""


def export(model: Model, to: Path, explain: bool = False) -> Exported:
    """Write `model` to an .onnx or .pt2 file; with `explain` it also says where the best class's logit comes from.

    A file that differs from the model is not left there.
    """
    if to.suffix not in WRITERS:
        raise SicError(f"--to {to} must end in {' or '.join(WRITERS)}.")
    if model.device.type != "cpu":
        raise SicError("A model is exported on the CPU: load it there.")
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
    """What a program needs to know to use the file: how an image is prepared and what the outputs mean."""
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
        "probabilities": "sigmoid of the logits" if classifier.loss == "bce" else "softmax of the logits",
    }
    if isinstance(classifier, SIC):
        about |= {"temperature": classifier.temperature, "b": classifier.b}
    if model.supports:
        about["supports"] = [{"class": model.classes[case.label], "source": case.source} for case in model.supports]
    return about


MEANINGS = {
    "logits": "N×C, in the order of classes",
    "evidence": "N×S, what each case adds to its class's logit, in the order of supports",
    "top_class": "N, the class of the highest logit, which is explained",
    "contributions": "N×H×W, what each pixel adds to that logit: signed, not scaled",
    "constant": "N, what no pixel adds to it; logit = constant + sum of contributions",
}


def _difference(module: Answering, run: Run, size: int) -> float:
    """The largest difference of any output: of noise, and of noise, black and white together."""
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
    """`norm + 1e-12` becomes `max(norm, 1e-12)`. The exporter takes so small a number for zero and leaves it out; an
    image that is like nothing, whose latents are all zero, would then get NaN."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.add.Tensor and isinstance(node.args[1], float) and 0 < node.args[1] < SMALL:
            node.target = torch.ops.aten.clamp_min.default


def _write_pt2(program: ExportedProgram, names: Sequence[str], about: str, path: Path) -> Run:
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{METADATA}.json": about})
    with path.open("rb") as file:
        return torch.export.load(file).module()


WRITERS: dict[str, Callable[[ExportedProgram, Sequence[str], str, Path], Run]] = {ONNX: _write_onnx, PT2: _write_pt2}
