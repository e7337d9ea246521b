"""Checks of explanations: their results, and the six axioms that the paper proves."""

import copy
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sic.data.dataset import Progress
from sic.methods import SIC, Classifier, Contributions

FLOAT32, FLOAT64 = 1e-4, 1e-10
"""Largest completeness residual: in float32 relative to max(1, |logit|), in float64 absolute."""


@dataclass
class Check:
    """The result of one check: the worst value, and the limit that it must not exceed."""

    name: str
    statement: str
    worst: float
    limit: float
    checks: int
    wrong: tuple[str, float]
    """A wrong explanation, and the worst value that it would have given."""
    details: dict[str, Any] = field(default_factory=dict)
    decided: bool = True
    """Whether there were enough images to tell."""

    @property
    def passed(self) -> bool:
        return self.checks > 0 and (self.worst <= self.limit or not self.decided)

    @property
    def verdict(self) -> str:
        return "FAIL" if not self.passed else "pass" if self.decided else "undecided"


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as JSON; scripts rely on these keys."""
    return {
        "passed": all(check.passed for check in checks),
        "failed": [check.name for check in checks if not check.passed],
        "undecided": [check.name for check in checks if check.passed and not check.decided],
        "axioms": {
            check.name.replace(" ", "_"): {
                "passed": check.passed,
                "worst": check.worst,
                "limit": check.limit,
                "checks": check.checks,
                "wrong_explanation": check.wrong[0],
                "wrong_value": check.wrong[1],
                **check.details,
            }
            for check in checks
        },
    }


def explained(classifier: Classifier, images: Tensor, targets: Tensor) -> Contributions:
    """The explanation that users get: `Model.explain` takes the same path."""
    return classifier.answered(images).explain(targets)


def largest(errors: Tensor) -> float:
    """The largest error; NaN counts as infinite."""
    return errors.nan_to_num(nan=torch.inf).max().item() if errors.numel() else 0.0


def relative(maps: Tensor, reference: Tensor) -> Tensor:
    """…×H×W: errors relative to the largest value of each reference map."""
    return (maps - reference).abs() / reference.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12)


def uniform(maps: Tensor) -> Tensor:
    """The wrong maps that give every pixel the same share of the same sum."""
    return maps.mean(dim=(-2, -1), keepdim=True).expand_as(maps)


@torch.no_grad()
def predicted(classifier: Classifier, images: Tensor) -> Tensor:
    """The class with the highest score, N."""
    return classifier(images).argmax(dim=1)


def seen_through(classifier: Classifier, change: Callable[[Tensor], Tensor]) -> Classifier:
    """A copy of the classifier whose network sees the encoded images after a linear `change`."""
    twin = copy.deepcopy(classifier)
    prepared = twin.backbone.prepared
    twin.backbone.prepared = lambda images: change(prepared(images))  # type: ignore[method-assign]
    return twin


def _all_classes(classifier: Classifier, images: Tensor) -> Tensor:
    return torch.arange(classifier.classes, device=images.device).expand(len(images), -1)


def completeness(single: Classifier, double: Classifier, images: Tensor, progress: Progress | None = None) -> Check:
    """logit = b + Σ pixels + input-independent terms, for every image and every class, in both precisions.

    The logit is that of the forward pass; `Contributions.value` is not trusted.
    """
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    evidence: list[float] = []
    apart: list[float] = []
    louder = 0.0
    batch = max(1, min(32, 2**25 // (single.classes * 6 * images.shape[2] * images.shape[3])))  # bounds the memory
    for start in range(0, len(images), batch):
        for classifier, kind in ((single, torch.float32), (double, torch.float64)):
            views = images[start : start + batch].to(kind)
            with torch.no_grad():
                logits = classifier(views)
            found = explained(classifier, views, _all_classes(classifier, views))
            scale = logits.abs().clamp_min(1) if kind == torch.float32 else 1.0
            missing = logits - found.maps.sum(dim=(-2, -1)) - found.constant
            worst[kind] = max(
                worst[kind], largest(missing.abs() / scale), largest((found.value - logits).abs() / scale)
            )
        louder = max(louder, largest((found.maps.sum(dim=(-2, -1)) / 2).abs()))
        evidence += (logits - double.bias).abs().flatten().tolist()
        apart += _share_apart(found, double.bias)
        if progress is not None:
            progress(min(start + batch, len(images)), len(images))
    return Check(
        "completeness",
        "pixels, bias and input-independent terms add up to the logit",
        max(worst[torch.float32] / FLOAT32, worst[torch.float64] / FLOAT64),
        1.0,
        len(images) * single.classes,
        ("maps times 1.5", louder / FLOAT64),
        {
            "residual_float32": worst[torch.float32],
            "residual_float64": worst[torch.float64],
            "mean_evidence": sum(evidence) / max(len(evidence), 1),
            "input_independent_share": sum(apart) / max(len(apart), 1),
        },
    )


def _share_apart(found: Contributions, bias: float) -> list[float]:
    """For each image's highest score, the share of the evidence that belongs to no pixel (a transformer's positional
    code); the bias does not count."""
    best = found.value.argmax(dim=1, keepdim=True)
    evidence = found.value.gather(1, best) - bias
    share = (found.constant.gather(1, best) - bias) / evidence
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


def sensitivity(classifier: Classifier, images: Tensor, generator: torch.Generator, rounds: int = 12) -> Check:
    """If changing a pixel changes a logit, that pixel has a non-zero attribution before or after the change."""
    failures = checks = without = 0
    index = torch.arange(len(images))
    targets = predicted(classifier, images)
    before = explained(classifier, images, targets)
    with torch.no_grad():
        scores = classifier(images)
    for _ in range(rounds):
        rows, columns = _random_pixels(images, generator)
        other = _perturbed(images, rows, columns, generator)
        after = explained(classifier, other, targets)
        with torch.no_grad():
            changed = (classifier(other) - scores).gather(1, targets[:, None])[:, 0].abs() > 1e-12
        attributed = (before.maps[index, rows, columns].abs() + after.maps[index, rows, columns].abs()) > 0
        checks += int(changed.sum())
        failures += int((changed & ~attributed).sum())
        without += int((changed & (columns % 2 == 1).to(changed.device)).sum())
    return Check(
        "sensitivity",
        "a pixel that changes the logit has a non-zero attribution",
        failures / max(checks, 1),
        0.0,
        checks,
        ("a map without every second column", without / max(checks, 1)),
    )


def dummy(classifier: Classifier, images: Tensor, generator: torch.Generator) -> Check:
    """Pixels that are hidden from the network get no attribution; perturbing them verifies that they are hidden."""
    targets = predicted(classifier, images)
    seen = (torch.rand(images.shape[2:], generator=generator) > 0.1).to(images)
    blinkered = seen_through(classifier, lambda encoded: encoded * seen)
    maps = explained(blinkered, images, targets).maps
    noise = torch.rand(images.shape, generator=generator, dtype=images.dtype).to(images)
    with torch.no_grad():
        unmoved = largest((blinkered(images) - blinkered(images * seen + noise * (1 - seen))).abs())
    hidden = maps[:, seen == 0]
    return Check(
        "dummy",
        "a pixel that the model does not depend on has attribution zero",
        max(largest(hidden.abs()), unmoved),
        0.0,
        hidden.numel(),
        ("a uniform map", largest(uniform(maps).abs())),
    )


def linearity(classifier: SIC, images: Tensor) -> Check:
    """The maps of a class's evidences add up to the map of its logit, for every class."""
    supports = torch.arange(len(classifier.support_classes), device=images.device)[None]
    worst = wrong = 0.0
    for image in images.split(1):
        answered = classifier.answered(image)
        logits = answered.explain(_all_classes(classifier, image)).maps
        for found in (answered.explain_evidence(supports), classifier.explain_evidence(image, supports)):
            sums = torch.zeros_like(logits).index_add(1, classifier.support_classes, found.maps)
            worst = max(worst, largest(relative(sums, logits)))
        wrong = max(wrong, largest(relative(sums.abs(), logits)))
    return Check(
        "linearity",
        "evidence maps add up to the logit's map",
        worst,
        1e-9,
        len(images) * classifier.classes,
        ("absolute values", wrong),
    )


def symmetry(classifier: Classifier, images: Tensor, generator: torch.Generator) -> Check:
    """Two pixels that the model treats alike get equal attributions: the model sees the mean of a pair of equal
    pixels."""
    targets = predicted(classifier, images)
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

    maps = explained(seen_through(classifier, tie), equal, targets).maps
    scale = maps.abs().amax(dim=(1, 2)).clamp_min(1e-12)

    def difference(maps: Tensor) -> float:
        return largest((maps[index, row_a, column_a] - maps[index, row_b, column_b]).abs() / scale)

    return Check(
        "symmetry",
        "interchangeable pixels have equal attributions",
        difference(maps),
        1e-9,
        len(images),
        ("each pixel moved to its neighbour", difference(maps.roll(1, -1))),
    )


def implementation_invariance(
    classifier: Classifier, reloaded: Classifier, images: Tensor, compiled: bool = True
) -> Check:
    """The channels-last, the reloaded and the float64 model, `Classifier.explain` and explanations without weights (as
    of whole folders) give the same maps, and the compiled model gives the same logits."""
    targets = predicted(classifier, images)
    found = explained(classifier, images, targets)
    lasting = copy.deepcopy(classifier).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    others: dict[str, Tensor] = {
        "reloaded": explained(reloaded, images, targets).maps,
        "channels-last": explained(lasting, images.contiguous(memory_format=torch.channels_last), targets).maps,
        "explained alone": classifier.explain(images, targets).maps,
        "without weights": classifier.answered(images).explain(targets, weights=False).maps,
        "float64": explained(copy.deepcopy(classifier).double(), images.double(), targets).maps,
    }
    worst = {name: largest(relative(maps, found.maps)) for name, maps in others.items()}
    if compiled:
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns if there is no GPU
        twin = copy.deepcopy(classifier)
        twin.backbone.compile(backend=_compiler())
        with torch.no_grad():
            answers = twin(images).gather(1, targets[:, None])[:, 0]
        worst[f"compiled ({_compiler()})"] = largest((answers - found.value).abs() / found.value.abs().clamp_min(1))
    return Check(
        "implementation invariance",
        "other implementations of the same model give the same maps and answers",
        max(worst.values()),
        1e-2,  # rounding errors in single precision grow in deep networks
        len(images) * len(worst),
        ("a mirrored map", largest(relative(found.maps.flip(-1), found.maps))),
        worst,
    )


def _compiler() -> str:
    """Inductor if the machine has a C++ compiler or a GPU for Triton, else the tracing backend."""
    return "inductor" if torch.cuda.is_available() or shutil.which("g++") or shutil.which("clang++") else "aot_eager"
