"""All checks of a model's explanations: the axioms, and maps, weights and constants against the network itself."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sic.data.dataset import Progress
from sic.errors import SicError
from sic.evaluate import axioms
from sic.evaluate.axioms import Check, explained, largest, predicted, relative, seen_through, uniform
from sic.evaluate.deletion import deletion
from sic.evaluate.linearised import Linearised, encoded_colours
from sic.explain.matches import find_matches
from sic.methods import SIC, Classifier
from sic.supports import Support

OUTPUTS = 16
"""Explained classes per image, at most: weights of hundreds would fill the memory."""
IMPULSES, DIRECTIONS = 12, 4
DELETED = 64
"""Images for the deletion check, at most."""


def require_promise(classifier: Classifier) -> None:
    """Refuse a method whose explanations are not exact by construction."""
    if not (classifier.complete and classifier.traceable):
        raise SicError(f"sic verify is for SIC and B-cos models; this one was trained with --method {classifier.name}.")


def measure(
    classifier: Classifier,
    reloaded: Classifier,
    images: Tensor,
    *,
    supports: Sequence[Support] = (),
    probes: int = 8,
    seed: int = 0,
    compiled: bool = True,
    progress: Progress | None = None,
) -> list[Check]:
    """Run every check on `images`, n×3×S×S: completeness on every image and class, deletion on up to 64 images, the
    others on `probes` images. Everything is measured on what `explain` returns. `supports`: the cases of a SIC model;
    with them, matches are checked, too."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = images[torch.randperm(len(images), generator=generator)]
    few = shuffled[:probes].float()
    single, double = copy.deepcopy(classifier).float(), copy.deepcopy(classifier).double()
    exact = few.double()
    weights, constant = weights_and_constant(double, exact, generator)
    found = [
        axioms.completeness(single, double, images, progress),
        weights_times_input(double, exact, generator),
        weights,
        constant,
        axioms.sensitivity(double, exact, generator),
        axioms.dummy(double, exact, generator),
        axioms.symmetry(double, exact, generator),
        equivariance(double, exact, generator),
        axioms.implementation_invariance(single, copy.deepcopy(reloaded).float(), few, compiled),
        deletion(single, shuffled[:DELETED].float(), generator),
    ]
    if isinstance(double, SIC):
        found.append(axioms.linearity(double, exact))
        if supports:
            found.append(matches(double, supports, exact))
    return found


def _some_classes(classifier: Classifier, image: Tensor, generator: torch.Generator) -> Tensor:
    """The predicted class and random others, 1×K."""
    best = predicted(classifier, image).cpu()
    order = torch.randperm(classifier.classes, generator=generator)
    return torch.cat([best, order[order != best]])[None, :OUTPUTS].to(image.device)


def weights_times_input(classifier: Classifier, images: Tensor, generator: torch.Generator) -> Check:
    """The map is `Σ_channels W ⊙ [x, 1 - x]` at every pixel."""
    worst = wrong = 0.0
    checks = 0
    for image in images.split(1):
        found = explained(classifier, image, _some_classes(classifier, image, generator))
        expected = (found.weights * encoded_colours(image)[:, None]).sum(dim=2)
        worst = max(worst, largest(relative(found.maps, expected)))
        wrong = max(wrong, largest(relative(uniform(expected), expected)))
        checks += expected.numel()
    return Check(
        "weights times input",
        "a pixel's contribution is its weights times its colours",
        worst,
        1e-9,
        checks,
        ("a uniform map", wrong),
    )


def weights_and_constant(classifier: Classifier, images: Tensor, generator: torch.Generator) -> tuple[Check, Check]:
    """Dynamic weights and constants against a network that is linear by construction (see `Linearised`).

    Its answers to impulses in random channels of random pixels are single weights, its answers to noise test all
    weights at once, its answer to zero is the constant.
    """
    worst = wrong = apart = moved = spread = 0.0
    checks = outputs = 0
    constants: list[Tensor] = []
    promised = True
    for image in images.split(1):
        targets = _some_classes(classifier, image, generator)
        found = explained(classifier, image, targets)
        encoded = encoded_colours(image)
        probes = torch.zeros(2 + IMPULSES + DIRECTIONS, *encoded.shape[1:], dtype=encoded.dtype)
        places = torch.randint(encoded[0].numel(), (IMPULSES,), generator=generator)
        probes.flatten(1)[1 + torch.arange(IMPULSES), places] = 1
        noise = torch.randn(DIRECTIONS, *encoded.shape[1:], generator=generator, dtype=encoded.dtype)
        probes[1 + IMPULSES : -1], probes[-1] = noise, noise.sum(dim=0)
        probes = probes.to(encoded)
        reference = Linearised(classifier, encoded)
        answers = reference.answer(probes)[:, targets[0]]
        zero, slopes = answers[0], answers[1:] - answers[0]
        # The last probe is the sum of the directions: its slope must be the sum of theirs if the reference is linear.
        size = found.weights[0].flatten(1).norm(dim=1).clamp_min(1e-12)
        bent = (slopes[-1] - slopes[IMPULSES:-1].sum(dim=0)).abs() / size
        strayed = (reference.logits[0, targets[0]] - found.value[0]).abs()
        expected = found.weights[0].flatten(1) @ probes[1:].flatten(1).T
        top = found.weights[0].flatten(1).abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        error = (expected - slopes.T).abs()
        errors = error[:, :IMPULSES] / top, error[:, IMPULSES:] / size[:, None], bent, strayed
        worst = max(worst, *map(largest, errors))
        plain = _gradient(classifier, image, targets[0, 0])
        wrong = max(wrong, largest((plain - found.weights[0, 0]).norm() / size[0]))
        checks += slopes.numel()
        amount = found.maps.abs().sum(dim=(-2, -1))[0].clamp_min(1e-12)
        apart = max(apart, largest((found.constant[0] - zero).abs() / amount))
        moved = max(moved, largest((found.maps.sum(dim=(-2, -1))[0] / 2).abs() / amount))
        promised = promised and largest((zero - classifier.bias).abs() / amount) < 1e-9
        constants.append(found.constant[0])
        outputs += zero.numel()
    if promised:
        values = torch.cat(constants)
        spread = (values.max() - values.min()).item()
    return Check(
        "weights",
        "each weight is the response of the linearised network to its pixel",
        worst,
        1e-4,  # of the largest weight; untrained deep networks magnify rounding
        checks,
        ("the plain gradient", wrong),
    ), Check(
        "constant",
        "the constant is the bias, the same for every image"
        if promised
        else "the constant is the output of the linearised network for an empty image",
        max(apart, spread),
        1e-6,
        outputs,
        ("half of the map in the constant", moved),
        {"bias_only": promised},
    )


def _gradient(classifier: Classifier, image: Tensor, target: Tensor) -> Tensor:
    """6×H×W: the gradient of a logit as training sees it, in which scales are not constant."""
    source: list[Tensor] = []

    def leaf(encoded: Tensor) -> Tensor:
        source.append(encoded.detach().clone().requires_grad_())
        return source[0]

    with torch.enable_grad():
        logit = seen_through(classifier, leaf)(image)[0, target]
        return torch.autograd.grad(logit, source[0])[0][0]


def equivariance(classifier: Classifier, images: Tensor, generator: torch.Generator) -> Check:
    """A network that undoes a rearrangement of the pixels answers alike, and its map is rearranged alike.

    Pixels are mirrored and shuffled. The answers tell whether the network undoes it. A map that stays where it was
    fails as well: it does not follow the pixels.
    """
    targets = predicted(classifier, images)
    before = explained(classifier, images, targets)
    pixels = images.shape[-2] * images.shape[-1]
    straight = torch.arange(pixels).view(images.shape[-2:])
    orders = {"mirrored": straight.flip(-1).flatten(), "shuffled": torch.randperm(pixels, generator=generator)}
    found: dict[str, float] = {}
    wrong = 0.0
    for name, order in orders.items():
        order = order.to(images.device)
        inverse = order.argsort()
        twin = seen_through(classifier, lambda encoded, back=inverse: _moved(encoded, back))  # type: ignore[misc]
        after = explained(twin, _moved(images, order), targets)
        with torch.no_grad():
            alike = largest((twin(_moved(images, order)) - classifier(images)).abs()) < 1e-9
        expected = _moved(before.maps, order)
        found[name] = largest(relative(after.maps, expected)) if alike else math.inf
        stays = relative(after.maps, before.maps).flatten(1).amax(dim=1)
        if (stays < 1e-6).any():
            found[name] = math.inf
        wrong = max(wrong, largest(relative(before.maps, expected)))
    return Check(
        "equivariance",
        "if pixels move, their contributions move with them",
        max(found.values()),
        1e-9,
        len(images) * len(orders),
        ("a map that stays where it was", wrong),
        found,
    )


def _moved(images: Tensor, order: Tensor) -> Tensor:
    """…×H×W with its pixels in another order."""
    return images.flatten(-2)[..., order].view_as(images)


def matches(classifier: SIC, supports: Sequence[Support], images: Tensor) -> Check:
    """For the cases of the predicted class of each image.

    Evidence and whole maps are computed without matches. Errors are relative to the evidence and to the largest
    contribution of the whole map.
    """
    worst = wrong = 0.0
    checks = 0
    owners = classifier.support_classes.tolist()
    for image, best in zip(images.split(1), predicted(classifier, images).tolist(), strict=True):
        cases = [case for case, owner in enumerate(owners) if owner == best]
        with torch.no_grad():
            evidence = classifier.answer(image)[1][0]
        whole = classifier.explain_evidence(image, torch.tensor([cases], device=image.device)).maps[0]
        found = find_matches(classifier.answered(image), supports, [cases])[0]
        for case, expected in zip(cases, whole, strict=True):
            parts, value = found[case].parts, evidence[case].item()
            total = torch.stack([part.image.map for part in parts]).sum(dim=0)
            sides = [part.support.value for part in parts if part.support is not None]
            sums = [sum(part.evidence for part in parts), sum(part.image.value for part in parts)]
            sums += [sum(sides)] if sides else []
            errors = [abs(each - value) / max(abs(value), 1e-12) for each in sums]
            worst = max(worst, *errors, largest(relative(total, expected)))
            wrong = max(wrong, largest(relative(uniform(expected), expected)))
            checks += 1 + len(errors)
    return Check(
        "matches",
        "matched regions add up to the evidence of their case, on both sides",
        worst,
        1e-9,
        checks,
        ("a uniform map", wrong),
    )
