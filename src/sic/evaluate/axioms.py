"""The axioms that the paper proves, but for implementation invariance; completeness is the claim of the method."""

import torch
from torch import Tensor

from sic.data.dataset import Progress
from sic.evaluate.checks import NOTHING, Check, amount, evident, largest, relative, uniform
from sic.evaluate.probe import OUTPUTS, Probe, Said, explained, seen_through, some_classes
from sic.explain import in_chunks
from sic.methods import SIC, Classifier, Contributions
from sic.methods.sic import AnsweredSIC

FLOAT32, FLOAT64 = 1e-4, 1e-10
"""Largest completeness residual, relative to the sum of all absolute contributions."""
CLASSES, CASES = 3, 64
"""Classes and cases per image whose maps are added up, at most."""


class Completeness:
    """logit = b + Σ pixels + input-independent terms, in both precisions.

    The logit is that of the forward pass; `Contributions.value` is not trusted. Residuals are relative to the sum of
    the absolute contributions.
    """

    def __init__(self) -> None:
        self.worst = {torch.float32: 0.0, torch.float64: 0.0}
        self.evidence: list[float] = []
        self.apart: list[float] = []
        self.louder = self.most = 0.0
        self.checks = self.images = self.answers = 0

    def look(
        self, targets: Tensor, single: Said, in_single: Contributions, double: Said, in_double: Contributions
    ) -> None:
        """At explanations of classes `targets`, N×K; in double precision they may be of the first of these only."""
        for said, found, least in ((single, in_single, 1e-30), (double, in_double, 1e-300)):
            logits = said.logits.gather(1, targets[:, : found.value.shape[1]])
            sums = found.maps.sum(dim=(-2, -1))
            scale = (amount(found.maps) + found.constant.abs()).clamp_min(least)
            kind = logits.dtype
            for missing in (logits - sums - found.constant, found.value - logits):
                self.worst[kind] = max(self.worst[kind], largest(missing.abs() / scale))
        self.louder = max(self.louder, largest((sums / 2).abs() / scale))
        bias = double.classifier.bias
        evidence = (double.logits.gather(1, targets) - bias).abs()
        self.most = max(self.most, largest(amount(found.maps)), largest(evidence))
        self.evidence += evidence.flatten().tolist()
        self.apart += _share_apart(in_double, bias)
        self.checks += targets.numel()
        self.images += len(targets)
        self.answers += len(targets) * (in_double.value.shape[1] < targets.shape[1])

    def check(self) -> Check:
        statement = "pixels, bias and input-independent terms add up to the logit"
        if self.answers:
            statement += f" (for {self.answers} of {self.images} images, in 64 bit to that of the answer only)"
        return Check(
            "completeness",
            statement,
            max(self.worst[torch.float32] / FLOAT32, self.worst[torch.float64] / FLOAT64),
            1.0,
            self.checks,
            ("maps times 1.5", self.louder / FLOAT64),
            {
                "residual_float32": self.worst[torch.float32],
                "residual_float64": self.worst[torch.float64],
                "mean_evidence": sum(self.evidence) / max(len(self.evidence), 1),
                "input_independent_share": sum(self.apart) / max(len(self.apart), 1),
            },
            decided=self.most > NOTHING,
        )


def completeness(
    single: Classifier,
    double: Classifier,
    images: Tensor,
    progress: Progress | None = None,
    generator: torch.Generator | None = None,
    exact: int = OUTPUTS,
    begun: Completeness | None = None,
) -> Check:
    """Completeness for every image and up to 16 classes of each, in double precision for the first `exact` of these;
    `begun` has looked at other images."""
    found = begun or Completeness()
    generator = generator or torch.Generator().manual_seed(0)
    done = 0
    for batch in in_chunks(double, images.double(), OUTPUTS):
        ours, theirs = Said(single, batch.float()), Said(double, batch)
        targets = some_classes(theirs.logits, generator)
        in_single = explained(single, ours.images, targets, weights=False)
        in_double = explained(double, theirs.images, targets[:, :exact], weights=False)
        found.look(targets, ours, in_single, theirs, in_double)
        done += len(batch)
        if progress is not None:
            progress(done, len(images))
    return found.check()


def _share_apart(found: Contributions, bias: float) -> list[float]:
    """For each image's highest score, the share of the evidence that belongs to no pixel (a transformer's positional
    code); the bias does not count."""
    best = found.value.argmax(dim=1, keepdim=True)
    evidence = found.value.gather(1, best) - bias
    share = (found.constant.gather(1, best) - bias) / evidence
    return share[evidence > NOTHING].tolist()


def _random_pixels(number: int, image: Tensor, generator: torch.Generator) -> list[tuple[int, int]]:
    rows, columns = (torch.randint(side, (number,), generator=generator).tolist() for side in image.shape[-2:])
    return list(zip(rows, columns, strict=True))


def sensitivity(probe: Probe, generator: torch.Generator, rounds: int = 12) -> Check:
    """If changing a pixel changes a logit, that pixel has a non-zero attribution before or after the change.

    Double precision decides about pixels without an attribution before. The others cannot fail; single precision shows
    whether they change the logit at all.
    """
    failures = checks = without = 0
    before = probe.in_double.maps[0, 0].abs()
    for row, column in _random_pixels(rounds, before, generator):
        colour = torch.rand(3, generator=generator)
        attributed = before[row, column].item() > 0
        said = probe.single if attributed else probe.double
        other = said.images.clone()
        other[0, :, row, column] = colour.to(other)
        with torch.no_grad():
            gap = (said.classifier(other) - said.logits)[0, probe.best].abs().item()
        changed = gap > (0 if attributed else 1e-12)
        if changed and not attributed:
            after = explained(probe.double.classifier, other, probe.best).maps[0, row, column].abs().item()
            failures += not after > 0
        checks += changed
        without += changed and column % 2 == 1
    return Check(
        "sensitivity",
        "a pixel that changes the logit has a non-zero attribution",
        failures / max(checks, 1),
        0.0,
        checks,
        ("a map without every second column", without / max(checks, 1)),
    )


def dummy(probe: Probe, generator: torch.Generator) -> Check:
    """Pixels that are hidden from the network get no attribution; perturbing them verifies that they are hidden."""
    image = probe.double.images
    seen = (torch.rand(image.shape[2:], generator=generator) > 0.1).to(image)
    blinkered = Said(seen_through(probe.double.classifier, lambda encoded: encoded * seen), image)
    maps = explained(blinkered.classifier, image, probe.best).maps
    noise = torch.rand(image.shape, generator=generator, dtype=image.dtype).to(image)
    with torch.no_grad():
        other = blinkered.classifier(image * seen + noise * (1 - seen))
        unmoved = largest((blinkered.logits - other).abs())
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


def linearity(probe: Probe) -> Check:
    """The maps of a class's evidences add up to the map of its logit. Those of the answer are asked of the classifier,
    those of other classes of its answers."""
    said, targets = probe.double, probe.targets[0, :CLASSES]
    classifier, answered = said.classifier, probe.answered
    assert isinstance(classifier, SIC) and isinstance(answered, AnsweredSIC)
    owners = classifier.support_classes
    while len(targets) > 1 and torch.isin(owners, targets).sum() > CASES:
        targets = targets[:-1]
    logits = probe.in_double.maps[0, : len(targets)]
    sums = torch.zeros_like(logits)
    most = 0.0
    for some in (targets[:1], targets[1:]):
        supports = torch.isin(owners, some).nonzero()[:, 0]
        if len(supports):
            alone = some[0] == targets[0]
            asked = supports[None]
            found = classifier.explain_evidence(said.images, asked) if alone else answered.explain_evidence(asked)
            columns = (owners[supports, None] == targets).int().argmax(dim=1)
            sums.index_add_(0, columns, found.maps[0])
            most = max(most, largest(amount(found.maps)))
    return Check(
        "linearity",
        f"evidence maps add up to the logit's map, for up to {CLASSES} classes of an image",
        largest(relative(sums, logits)),
        1e-9,
        len(targets),
        ("absolute values", largest(relative(sums.abs(), logits))),
        decided=most > NOTHING,
    )


def symmetry(probe: Probe, generator: torch.Generator) -> Check:
    """Two pixels that the model treats alike get equal attributions: the model sees the mean of a pair of equal
    pixels."""
    image = probe.double.images
    (row_a, column_a), (row_b, column_b) = _random_pixels(2, image, generator)
    equal = image.clone()
    equal[..., row_b, column_b] = equal[..., row_a, column_a]

    def tie(encoded: Tensor) -> Tensor:
        mean = (encoded[..., row_a, column_a] + encoded[..., row_b, column_b]) / 2
        tied = encoded.clone()
        tied[..., row_a, column_a] = mean
        tied[..., row_b, column_b] = mean
        return tied

    maps = explained(seen_through(probe.double.classifier, tie), equal, probe.best).maps
    scale = maps.abs().amax(dim=(1, 2)).clamp_min(1e-12)

    def difference(maps: Tensor) -> float:
        return largest((maps[:, row_a, column_a] - maps[:, row_b, column_b]).abs() / scale)

    return Check(
        "symmetry",
        "interchangeable pixels have equal attributions",
        difference(maps),
        1e-9,
        1,
        ("each pixel moved to its neighbour", difference(maps.roll(1, -1))),
        decided=evident(maps),
    )
