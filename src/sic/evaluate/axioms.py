"""Checks of explanations: their results, and the six axioms that the paper proves."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sic.data.dataset import Progress
from sic.explain import in_chunks
from sic.methods import SIC, Classifier, Contributions

FLOAT32, FLOAT64 = 1e-4, 1e-10
"""Largest completeness residual, relative to the sum of all absolute contributions."""
NOTHING = 1e-9
"""Absolute contributions to a score that add up to less are no evidence."""
OUTPUTS = 16
"""Explained classes per image, at most: there may be thousands."""
CASES = 64
"""Explained cases per image, at most."""


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
    """Whether there were enough images, and evidence, to tell. Without a check nothing is decided."""

    def __post_init__(self) -> None:
        self.decided = self.decided and self.checks > 0

    @property
    def passed(self) -> bool:
        return self.worst <= self.limit or not self.decided

    @property
    def verdict(self) -> str:
        return "FAIL" if not self.passed else "pass" if self.decided else "undecided"


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as JSON; scripts rely on these keys."""
    return {
        "passed": all(check.passed for check in checks) and any(check.decided for check in checks),
        "failed": [check.name for check in checks if not check.passed],
        "undecided": [check.name for check in checks if check.passed and not check.decided],
        "axioms": {
            check.name.replace(" ", "_"): {
                "passed": check.passed,
                "verdict": check.verdict,
                "worst": _finite(check.worst),
                "limit": check.limit,
                "checks": check.checks,
                "wrong_explanation": check.wrong[0],
                "wrong_value": _finite(check.wrong[1]),
                **{name: _finite(value) for name, value in check.details.items()},
            }
            for check in checks
        },
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity, the error of what is wrong by its form: null instead."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def explained(classifier: Classifier, images: Tensor, targets: Tensor) -> Contributions:
    """The explanation that users get: `Model.explain` takes the same path."""
    return classifier.answered(images).explain(targets)


def largest(errors: Tensor) -> float:
    """The largest error; NaN counts as infinite."""
    return errors.nan_to_num(nan=torch.inf).max().item() if errors.numel() else 0.0


def relative(maps: Tensor, reference: Tensor) -> Tensor:
    """…×H×W: errors relative to the largest value of each reference map."""
    return (maps - reference).abs() / reference.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12)


def amount(maps: Tensor) -> Tensor:
    """…: the sum of all absolute contributions of maps …×H×W."""
    return maps.abs().sum(dim=(-2, -1))


def evident(*maps: Tensor) -> bool:
    """Whether any of these maps shows evidence."""
    return any(largest(amount(each)) > NOTHING for each in maps)


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


@torch.no_grad()
def some_classes(classifier: Classifier, images: Tensor, generator: torch.Generator) -> Tensor:
    """The predicted class of each image and random others, N×K with at most `OUTPUTS`."""
    best = predicted(classifier, images).cpu()
    order = torch.randperm(classifier.classes, generator=generator)
    rows = [torch.cat([one, order[order != one]])[:OUTPUTS] for one in best.split(1)]
    return torch.stack(rows).to(images.device)


def completeness(
    single: Classifier,
    double: Classifier,
    images: Tensor,
    progress: Progress | None = None,
    generator: torch.Generator | None = None,
) -> Check:
    """logit = b + Σ pixels + input-independent terms, for every image and up to 16 classes of each, in both precisions.

    The logit is that of the forward pass; `Contributions.value` is not trusted. Residuals are relative to the sum of
    the absolute contributions.
    """
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    evidence: list[float] = []
    apart: list[float] = []
    louder = most = 0.0
    checks = done = 0
    generator = generator or torch.Generator().manual_seed(0)
    for batch in in_chunks(double, images.double(), OUTPUTS):
        targets = some_classes(double, batch, generator)
        for classifier, kind in ((single, torch.float32), (double, torch.float64)):
            views = batch.to(kind)
            with torch.no_grad():
                logits = classifier(views).gather(1, targets)
            found = classifier.answered(views).explain(targets, weights=False)
            sums = found.maps.sum(dim=(-2, -1))
            scale = (amount(found.maps) + found.constant.abs()).clamp_min(1e-300 if kind == torch.float64 else 1e-30)
            for missing in (logits - sums - found.constant, found.value - logits):
                worst[kind] = max(worst[kind], largest(missing.abs() / scale))
        louder = max(louder, largest((sums / 2).abs() / scale))
        most = max(most, largest(amount(found.maps)), largest((logits - double.bias).abs()))
        evidence += (logits - double.bias).abs().flatten().tolist()
        apart += _share_apart(found, double.bias)
        checks += targets.numel()
        done += len(batch)
        if progress is not None:
            progress(done, len(images))
    return Check(
        "completeness",
        "pixels, bias and input-independent terms add up to the logit",
        max(worst[torch.float32] / FLOAT32, worst[torch.float64] / FLOAT64),
        1.0,
        checks,
        ("maps times 1.5", louder / FLOAT64),
        {
            "residual_float32": worst[torch.float32],
            "residual_float64": worst[torch.float64],
            "mean_evidence": sum(evidence) / max(len(evidence), 1),
            "input_independent_share": sum(apart) / max(len(apart), 1),
        },
        decided=most > NOTHING,
    )


def _share_apart(found: Contributions, bias: float) -> list[float]:
    """For each image's highest score, the share of the evidence that belongs to no pixel (a transformer's positional
    code); the bias does not count."""
    best = found.value.argmax(dim=1, keepdim=True)
    evidence = found.value.gather(1, best) - bias
    share = (found.constant.gather(1, best) - bias) / evidence
    return share[evidence > NOTHING].tolist()


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
        decided=evident(maps) or unmoved > 0,
    )


def linearity(classifier: SIC, images: Tensor, generator: torch.Generator) -> Check:
    """The maps of a class's evidences add up to the map of its logit, for up to 16 classes of each image."""
    worst = wrong = most = 0.0
    checks = 0
    owners = classifier.support_classes
    for image in images.split(1):
        targets = some_classes(classifier, image, generator)[0]
        while len(targets) > 1 and torch.isin(owners, targets).sum() > CASES:
            targets = targets[:-1]
        supports = torch.isin(owners, targets).nonzero()[:, 0]
        answered = classifier.answered(image)
        logits = answered.explain(targets[None], weights=False).maps[0]
        columns = (owners[supports, None] == targets).int().argmax(dim=1)
        for found in (answered.explain_evidence(supports[None]), classifier.explain_evidence(image, supports[None])):
            sums = torch.zeros_like(logits).index_add(0, columns, found.maps[0])
            worst = max(worst, largest(relative(sums, logits)))
            most = max(most, largest(amount(found.maps)))
        wrong = max(wrong, largest(relative(sums.abs(), logits)))
        checks += len(targets)
    return Check(
        "linearity",
        "evidence maps add up to the logit's map",
        worst,
        1e-9,
        checks,
        ("absolute values", wrong),
        decided=most > NOTHING,
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
        decided=evident(maps),
    )
