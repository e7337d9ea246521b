"""The six axioms that the paper proves, measured on a trained model and real images."""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sic.bcos import encode_colours, explaining, linear_maps
from sic.data.dataset import Progress
from sic.methods import SIC, Contributions

FLOAT32, FLOAT64 = 1e-4, 1e-10
"""Largest completeness residual: in float32 relative to max(1, |logit|), in float64 absolute."""


@dataclass
class Axiom:
    """The result of measuring one axiom: the worst value, and the limit that it must not exceed."""

    name: str
    statement: str
    worst: float
    limit: float
    checks: int
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.checks > 0 and self.worst <= self.limit


def measure(
    classifier: SIC,
    reloaded: SIC,
    images: Tensor,
    *,
    probes: int = 8,
    seed: int = 0,
    compiled: bool = True,
    progress: Progress | None = None,
) -> list[Axiom]:
    """Measure all six axioms on `images`, n×3×S×S: completeness on every image and class, the others on `probes`
    images."""
    generator = torch.Generator().manual_seed(seed)
    few = images[torch.randperm(len(images), generator=generator)[:probes]]
    double = copy.deepcopy(classifier).double()
    return [
        completeness(classifier, double, images, progress),
        sensitivity(double, few.double(), generator),
        implementation_invariance(classifier, reloaded, few, compiled),
        dummy(double, few.double(), generator),
        linearity(double, few.double()),
        symmetry(double, few.double(), generator),
    ]


def _largest(errors: Tensor) -> float:
    """The largest error; NaN counts as infinite."""
    return errors.nan_to_num(nan=torch.inf).max().item()


def _all_classes(classifier: SIC, images: Tensor) -> Tensor:
    return torch.arange(classifier.classes, device=images.device).expand(len(images), -1)


def completeness(single: SIC, double: SIC, images: Tensor, progress: Progress | None = None) -> Axiom:
    """logit = b + Σ pixels + input-independent terms, for every image and every class, in both precisions."""
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    evidence: list[float] = []
    apart: list[float] = []
    batch = max(1, min(32, 2**25 // (single.classes * 6 * images.shape[2] * images.shape[3])))  # bounds the memory
    for start in range(0, len(images), batch):
        for classifier, kind in ((single, torch.float32), (double, torch.float64)):
            views = images[start : start + batch].to(kind)
            explained = classifier.explain(views, _all_classes(classifier, views))
            scale = explained.value.abs().clamp_min(1) if kind == torch.float32 else 1.0
            worst[kind] = max(worst[kind], _largest(explained.residual.abs() / scale))
        evidence += (explained.value - double.bias).abs().flatten().tolist()
        apart += _share_apart(explained, double.bias)
        if progress is not None:
            progress(min(start + batch, len(images)), len(images))
    return Axiom(
        "completeness",
        "pixels, bias and input-independent terms add up to the logit",
        max(worst[torch.float32] / FLOAT32, worst[torch.float64] / FLOAT64),
        1.0,
        len(images) * single.classes,
        {
            "residual_float32": worst[torch.float32],
            "residual_float64": worst[torch.float64],
            "mean_evidence": sum(evidence) / max(len(evidence), 1),
            "input_independent_share": sum(apart) / max(len(apart), 1),
        },
    )


def _share_apart(explained: Contributions, bias: float) -> list[float]:
    """For each image's highest score, the share of the evidence that belongs to no pixel (a transformer's positional
    code); the bias does not count."""
    best = explained.value.argmax(dim=1, keepdim=True)
    evidence = explained.value.gather(1, best) - bias
    share = (explained.constant.gather(1, best) - bias) / evidence
    return share[evidence > 1e-9].tolist()


def _perturbed(images: Tensor, rows: Tensor, columns: Tensor, generator: torch.Generator) -> Tensor:
    """Copies of the images in which one pixel each has a random colour."""
    changed = images.clone()
    index = torch.arange(len(images))
    changed[index, :, rows, columns] = torch.rand(len(images), 3, generator=generator, dtype=images.dtype).to(images)
    return changed


def _random_pixels(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    rows, columns = (torch.randint(side, (len(images),), generator=generator) for side in images.shape[2:])
    return rows, columns


def sensitivity(classifier: SIC, images: Tensor, generator: torch.Generator, rounds: int = 12) -> Axiom:
    """If changing a pixel changes a logit, that pixel has a non-zero attribution before or after the change."""
    failures = checks = 0
    index = torch.arange(len(images))
    targets = classifier(images).argmax(dim=1)
    before = classifier.explain(images, targets)
    for _ in range(rounds):
        rows, columns = _random_pixels(images, generator)
        after = classifier.explain(_perturbed(images, rows, columns, generator), targets)
        changed = (after.value - before.value).abs() > 1e-12
        attributed = (before.maps[index, rows, columns].abs() + after.maps[index, rows, columns].abs()) > 0
        checks += int(changed.sum())
        failures += int((changed & ~attributed).sum())
    return Axiom(
        "sensitivity",
        "a pixel that changes the logit has a non-zero attribution",
        failures / max(checks, 1),
        0.0,
        checks,
    )


def _explain_through(classifier: SIC, images: Tensor, targets: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Maps N×H×W of the model with a linear `change` applied to the encoded input."""
    with explaining() as trace:
        encoded = change(encode_colours(images))
        pooled = classifier.encoder.backbone.pooled(encoded)
        logits = classifier.logits(classifier.evidence(classifier.encoder.project(pooled)))
        weights = linear_maps(logits.gather(1, targets[:, None]), trace).weights[:, 0]
    assert trace.source is not None
    return (weights * trace.source.detach()).sum(dim=1)


def dummy(classifier: SIC, images: Tensor, generator: torch.Generator) -> Axiom:
    """Hidden pixels get no attribution; perturbing them verifies that the model does not depend on them."""
    targets = classifier(images).argmax(dim=1)
    seen = (torch.rand(images.shape[2:], generator=generator) > 0.1).to(images)

    def hide(encoded: Tensor) -> Tensor:
        return encoded * seen

    maps = _explain_through(classifier, images, targets, hide)
    noise = torch.rand(images.shape, generator=generator, dtype=images.dtype).to(images)
    others = images * seen + noise * (1 - seen)
    unmoved = _largest((_through(classifier, images, hide) - _through(classifier, others, hide)).abs())
    hidden = maps[:, seen == 0]
    return Axiom(
        "dummy",
        "a pixel that the model does not depend on has attribution zero",
        max(_largest(hidden.abs()), unmoved),
        0.0,
        hidden.numel(),
    )


@torch.no_grad()
def _through(classifier: SIC, images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    pooled = classifier.encoder.backbone.pooled(change(encode_colours(images)))
    return classifier.logits(classifier.evidence(classifier.encoder.project(pooled)))


def linearity(classifier: SIC, images: Tensor) -> Axiom:
    """The maps of a class's evidences add up to the map of its logit, for every class."""
    supports = torch.arange(len(classifier.support_classes), device=images.device)[None]
    worst = 0.0
    for image in images.split(1):
        evidence = classifier.explain_evidence(image, supports).maps
        logits = classifier.explain(image, _all_classes(classifier, image)).maps
        sums = torch.zeros_like(logits).index_add(1, classifier.support_classes, evidence)
        scale = logits.abs().amax(dim=(2, 3), keepdim=True).clamp_min(1e-12)
        worst = max(worst, _largest((sums - logits).abs() / scale))
    return Axiom("linearity", "evidence maps add up to the logit's map", worst, 1e-9, len(images) * classifier.classes)


def symmetry(classifier: SIC, images: Tensor, generator: torch.Generator) -> Axiom:
    """Two pixels that the model treats alike get equal attributions: the model sees the mean of a pair of equal
    pixels."""
    targets = classifier(images).argmax(dim=1)
    (row_a, column_a), (row_b, column_b) = _random_pixels(images, generator), _random_pixels(images, generator)
    index = torch.arange(len(images))
    equal = images.clone()
    equal[index, :, row_b, column_b] = equal[index, :, row_a, column_a]

    def tie(encoded: Tensor) -> Tensor:
        mean = (encoded[index, :, row_a, column_a] + encoded[index, :, row_b, column_b]) / 2
        tied = encoded.clone()
        tied[index, :, row_a, column_a] = mean
        tied[index, :, row_b, column_b] = mean
        return tied

    maps = _explain_through(classifier, equal, targets, tie)
    scale = maps.abs().amax(dim=(1, 2)).clamp_min(1e-12)
    worst = _largest((maps[index, row_a, column_a] - maps[index, row_b, column_b]).abs() / scale)
    return Axiom("symmetry", "interchangeable pixels have equal attributions", worst, 1e-9, len(images))


def implementation_invariance(classifier: SIC, reloaded: SIC, images: Tensor, compiled: bool = True) -> Axiom:
    """The channels-last and the reloaded model give the same maps, and the compiled model gives the same logits."""
    targets = classifier(images).argmax(dim=1)
    explained = classifier.explain(images, targets)
    reference = explained.maps
    scale = reference.abs().amax(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    others: dict[str, Tensor] = {
        "reloaded": reloaded.explain(images, targets).maps,
        "channels-last": copy.deepcopy(classifier)
        .to(memory_format=torch.channels_last)
        .explain(images.contiguous(memory_format=torch.channels_last), targets)
        .maps,
    }
    worst = {name: _largest((maps - reference).abs() / scale) for name, maps in others.items()}
    if compiled:
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns if there is no GPU
        twin = copy.deepcopy(classifier)
        twin.encoder.backbone.compile(backend=_compiler())
        with torch.no_grad():
            answers = twin(images).gather(1, targets[:, None])[:, 0]
        worst[f"compiled ({_compiler()})"] = _largest(
            (answers - explained.value).abs() / explained.value.abs().clamp_min(1)
        )
    return Axiom(
        "implementation invariance",
        "other implementations of the same model give the same maps and answers",
        max(worst.values()),
        1e-3,
        len(images) * len(worst),
        worst,
    )


def _compiler() -> str:
    """Inductor if the machine has a C++ compiler or a GPU for Triton, else the tracing backend."""
    import shutil

    return "inductor" if torch.cuda.is_available() or shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def as_json(axioms: Sequence[Axiom]) -> dict[str, Any]:
    """The axioms as JSON; scripts rely on these keys."""
    return {
        "passed": all(axiom.passed for axiom in axioms),
        "axioms": {
            axiom.name.replace(" ", "_"): {
                "passed": axiom.passed,
                "worst": axiom.worst,
                "limit": axiom.limit,
                "checks": axiom.checks,
                **axiom.details,
            }
            for axiom in axioms
        },
    }
