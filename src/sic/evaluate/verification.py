"""All checks of a model's explanations: the axioms, and maps, weights and constants against the network itself."""

import copy
import functools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from sic.data.dataset import Watch, nobody
from sic.errors import SicError
from sic.evaluate import axioms
from sic.evaluate.axioms import (
    NOTHING,
    Check,
    amount,
    evident,
    explained,
    largest,
    predicted,
    relative,
    seen_through,
    some_classes,
    uniform,
)
from sic.evaluate.deletion import deletion
from sic.evaluate.implementations import implementation_invariance
from sic.evaluate.linearised import Linearised, encoded_colours
from sic.evaluate.returned import returned
from sic.evaluate.verified_matches import matches
from sic.methods import SIC, Classifier, device_of
from sic.model import Model

SINGLE, DOUBLE = 1e-5, 1e-9
"""Largest errors of a map as the product of weights and colours, relative to its largest value."""
IMPULSES, DIRECTIONS = 12, 4
DELETED = 64
"""Images for the deletion check, at most."""


def require_promise(classifier: Classifier) -> None:
    """Refuse a method whose explanations are not exact by construction."""
    if not (classifier.complete and classifier.traceable):
        raise SicError(f"sic verify is for SIC and B-cos models; this one was trained with --method {classifier.name}.")


def measure(
    model: Model,
    reloaded: Model,
    images: Tensor,
    *,
    probes: int = 8,
    seed: int = 0,
    compiled: bool = False,
    watch: Watch = nobody,
) -> list[Check]:
    """Run every check on `images`, n×3×S×S: completeness on every image, deletion on up to 64, the others on `probes`
    images. Contributions are what `explain` returns. `reloaded`: the same model, read again."""
    generator = torch.Generator().manual_seed(seed)
    images = images.to(device_of(model.classifier))
    shuffled = images[torch.randperm(len(images), generator=generator).to(images.device)]
    few = shuffled[:probes].float()
    single, double = copy.deepcopy(model.classifier).float(), copy.deepcopy(model.classifier).double()
    exact = few.double()
    as_used = few.to(next(model.classifier.parameters()))
    again = copy.deepcopy(reloaded.classifier).float()
    steps: list[Callable[[], Iterable[Check]]] = [
        lambda: [weights_times_input(single, double, exact, generator)],
        lambda: weights_and_constant(double, exact, generator),
        lambda: [axioms.sensitivity(double, exact, generator)],
        lambda: [axioms.dummy(double, exact, generator)],
        lambda: [axioms.symmetry(double, exact, generator)],
        lambda: [equivariance(double, exact, generator)],
        lambda: [implementation_invariance(single, again, few, compiled)],
        lambda: [deletion(single, shuffled[:DELETED].float(), generator)],
        lambda: returned(model, double, as_used, generator),
    ]
    if isinstance(double, SIC):
        steps.append(lambda: [axioms.linearity(double, exact, generator)])
        steps.append(lambda: matches(model, double, as_used))
    found = [axioms.completeness(single, double, images, functools.partial(watch, "completeness"), generator)]
    for done, step in enumerate(steps, 1):
        found += step()
        watch("other checks", done, len(steps))
    return found


def weights_times_input(single: Classifier, double: Classifier, images: Tensor, generator: torch.Generator) -> Check:
    """The map is `Σ_channels W ⊙ [x, 1 - x]` at every pixel, in both precisions."""
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    wrong = most = 0.0
    checks = 0
    for image in images.split(1):
        targets = some_classes(double, image, generator)
        for classifier, kind in ((single, torch.float32), (double, torch.float64)):
            found = explained(classifier, image.to(kind), targets)
            # The product is in double precision: only that of the map is on trial.
            expected = (found.weights.double() * encoded_colours(image)[:, None]).sum(dim=2)
            worst[kind] = max(worst[kind], largest(relative(found.maps, expected)))
            most = max(most, largest(amount(found.maps)), largest(amount(expected)))
        wrong = max(wrong, largest(relative(uniform(expected), expected)))
        checks += expected.numel()
    return Check(
        "weights times input",
        "a pixel's contribution is its weights times its colours",
        max(worst[torch.float32] / SINGLE, worst[torch.float64] / DOUBLE),
        1.0,
        checks,
        ("a uniform map", wrong / DOUBLE),
        {"float32": worst[torch.float32], "float64": worst[torch.float64]},
        decided=most > NOTHING,
    )


def weights_and_constant(classifier: Classifier, images: Tensor, generator: torch.Generator) -> tuple[Check, Check]:
    """Dynamic weights and constants against a network that is linear by construction (see `Linearised`).

    Its answers to impulses in random channels of random pixels are single weights, its answers to noise test all
    weights at once, its answer to zero is the constant. B-cos networks of either form promise that nothing but the bias
    of the class is in the constant, and with positions their code: a bias that is left in a layer is an error.
    """
    worst = wrong = apart = moved = spread = most = 0.0
    checks = outputs = 0
    constants: list[Tensor] = []
    positional = False
    for image in images.split(1):
        targets = some_classes(classifier, image, generator)
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
        # Next to the bias, the slopes of a class with hardly any evidence are rounded.
        rounding = 1e-14 * answers.abs().amax(dim=0).clamp_min(1)
        bent = ((slopes[-1] - slopes[IMPULSES:-1].sum(dim=0)).abs() - rounding).clamp_min(0) / size
        strayed = (reference.logits[0, targets[0]] - found.value[0]).abs()
        expected = found.weights[0].flatten(1) @ probes[1:].flatten(1).T
        top = found.weights[0].flatten(1).abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        error = ((expected - slopes.T).abs() - rounding[:, None]).clamp_min(0)
        errors = error[:, :IMPULSES] / top, error[:, IMPULSES:] / size[:, None], bent, strayed
        worst = max(worst, *map(largest, errors))
        plain = _gradient(classifier, image, targets[0, 0])
        wrong = max(wrong, largest((plain - found.weights[0, 0]).norm() / size[0]))
        checks += slopes.numel()
        scale = (amount(found.maps)[0] + zero.abs()).clamp_min(1e-300)
        biases = reference.biases()[targets[0]] - classifier.bias
        apart = max(apart, largest((found.constant[0] - zero).abs() / scale), largest(biases.abs() / scale))
        moved = max(moved, largest((found.maps.sum(dim=(-2, -1))[0] / 2).abs() / scale))
        most = max(most, largest(amount(found.maps)), largest((reference.logits - classifier.bias).abs()))
        positional = reference.positional
        constants.append(found.constant[0])
        outputs += zero.numel()
    if not positional:
        values = torch.cat(constants)
        spread = (values.max() - values.min()).item()
    return Check(
        "weights",
        "each weight is the response of the linearised network to its pixel",
        worst,
        1e-4,  # of the largest weight; untrained deep networks magnify rounding
        checks,
        ("the plain gradient", wrong),
        decided=most > NOTHING,
    ), Check(
        "constant",
        "the constant is the bias of the class and the share of the positional code, which the linearised network "
        "gives an empty image"
        if positional
        else "the constant is the bias of the class, the same for every image",
        max(apart, spread),
        1e-6,
        outputs,
        ("half of the map in the constant", moved),
        {"bias_only": not positional},
        decided=most > NOTHING,
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
    fails as well if its image did not: it does not follow the pixels.
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
        stays = relative(after.maps, before.maps).flatten(1).amax(dim=1) < 1e-6
        other = (_moved(images, order) != images).flatten(1).any(dim=1)
        if (stays & other & (amount(before.maps) > NOTHING)).any():
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
        decided=evident(before.maps),
    )


def _moved(images: Tensor, order: Tensor) -> Tensor:
    """…×H×W with its pixels in another order."""
    return images.flatten(-2)[..., order].view_as(images)
