"""All checks of a model's explanations: the axioms, and maps, weights and constants against the network itself."""

import copy
import functools
import math

import torch
from torch import Tensor

from sic.data.dataset import Watch, nobody
from sic.errors import SicError
from sic.evaluate.axioms import Completeness, completeness, dummy, linearity, sensitivity, symmetry
from sic.evaluate.checks import NOTHING, Check, amount, evident, largest, pooled, relative, together, uniform
from sic.evaluate.deletion import deletion
from sic.evaluate.implementations import Implementations
from sic.evaluate.linearised import encoded_colours
from sic.evaluate.probe import PROBES, Probe, Said, seen_through
from sic.evaluate.returned import Pictures, Returned
from sic.evaluate.verified_matches import Matching
from sic.methods import SIC, Classifier, device_of
from sic.model import Model

SINGLE, DOUBLE = 1e-5, 1e-9
"""Largest errors of a map as the product of weights and colours, relative to its largest value."""
IMPULSES, DIRECTIONS = 4, 2
SHARES = {"sensitivity"}
"""Checks whose values are shares."""
ORDER = (
    *("completeness", "weights times input", "weights", "constant", "sensitivity", "dummy", "symmetry", "equivariance"),
    *("implementation invariance", "deletion", "maps as returned", "cases as returned", "support contributions"),
    *("linearity", "matches", "partners"),
)
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
    probes: int = PROBES,
    seed: int = 0,
    compiled: bool = False,
    watch: Watch = nobody,
) -> list[Check]:
    """Run every check on `images`, n×3×S×S: completeness on every image, deletion on up to 64, the others on `probes`
    images, one after the other. Contributions are what `explain` returns. `reloaded`: the same model, read again."""
    generator = torch.Generator().manual_seed(seed)
    images = images.to(device_of(model.classifier))
    shuffled = images[torch.randperm(len(images), generator=generator).to(images.device)]
    few = shuffled[:probes].float()
    single, double = copy.deepcopy(model.classifier).float(), copy.deepcopy(model.classifier).double()
    as_used = few.to(next(model.classifier.parameters()))
    complete = Completeness()
    implementations = Implementations(single, copy.deepcopy(reloaded.classifier).float(), compiled)
    returned = Returned(model, as_used, generator)
    pictures = Pictures(model, double, returned.chosen) if isinstance(double, SIC) else None
    matching = None if pictures is None else Matching(model, pictures, as_used)

    def look(place: int) -> list[Check]:
        probe = Probe(single, double, few[place : place + 1], generator)
        complete.look(probe.targets, probe.single, probe.in_single, probe.double, probe.in_double)
        checks = [
            weights_times_input(probe),
            *weights_and_constant(probe, generator),
            sensitivity(probe, generator),
            dummy(probe, generator),
            symmetry(probe, generator),
            equivariance(probe, generator),
            implementations.check(probe),
            returned.maps(place, probe.reference),
        ]
        if matching is not None:
            checks += [
                linearity(probe),
                returned.cases(place, probe.reference),
                matching.check(place, probe.reference),
            ]
        return checks

    seen: dict[str, list[Check]] = {}
    for place in range(len(few)):
        for check in look(place):
            seen.setdefault(check.name, []).append(check)
        watch("all checks", place + 1, len(few))
    found = [(pooled if name in SHARES else together)(checks) for name, checks in seen.items()]
    if pictures is not None and matching is not None:
        found += [returned.supports(pictures), matching.partners()]
    found.append(deletion(single, shuffled[:DELETED].float(), generator))
    progress = functools.partial(watch, "completeness")
    found.append(completeness(single, double, shuffled[probes:], progress, generator, exact=1, begun=complete))
    return sorted(found, key=lambda check: ORDER.index(check.name))


def weights_times_input(probe: Probe) -> Check:
    """The map is `Σ_channels W ⊙ [x, 1 - x]` at every pixel, in both precisions."""
    worst = []
    most = 0.0
    for found in (probe.in_single, probe.in_double):
        # The product is in double precision: only that of the map is on trial.
        expected = (found.weights.double() * encoded_colours(probe.double.images)[:, None]).sum(dim=2)
        worst.append(largest(relative(found.maps, expected)))
        most = max(most, largest(amount(found.maps)), largest(amount(expected)))
    return Check(
        "weights times input",
        "a pixel's contribution is its weights times its colours",
        max(worst[0] / SINGLE, worst[1] / DOUBLE),
        1.0,
        expected.numel(),
        ("a uniform map", largest(relative(uniform(expected), expected)) / DOUBLE),
        {"float32": worst[0], "float64": worst[1]},
        decided=most > NOTHING,
    )


def weights_and_constant(probe: Probe, generator: torch.Generator) -> tuple[Check, Check]:
    """Dynamic weights and constants against a network that is linear by construction (see `Linearised`).

    Its answers to impulses in random channels of random pixels are single weights, its answers to noise test all
    weights at once, its answer to zero is the constant. B-cos networks of either form promise that nothing but the bias
    of the class is in the constant, and with positions their code: a bias that is left in a layer is an error.
    """
    found, targets, bias = probe.in_double, probe.targets[0], probe.double.classifier.bias
    linear = probe.reference.linear
    places = torch.randint(linear.encoded[0].numel(), (IMPULSES,), generator=generator)
    impulses = torch.zeros(IMPULSES, *linear.encoded.shape[1:], dtype=torch.float64)
    impulses.flatten(1)[torch.arange(IMPULSES), places] = 1
    noise = torch.randn(DIRECTIONS, *linear.encoded.shape[1:], generator=generator, dtype=torch.float64)
    # The last one is the sum of the directions: its slope must be the sum of theirs if the reference is linear.
    asked = torch.cat([impulses, noise, noise.sum(dim=0, keepdim=True)]).to(linear.encoded)
    zero = linear.scores(linear.empty)[0, targets]
    answers = linear.answer(asked)[:, targets]
    slopes = answers - zero
    weights = found.weights[0].flatten(1)
    size = weights.norm(dim=1).clamp_min(1e-12)
    # Next to the bias, the slopes of a class with hardly any evidence are rounded.
    rounding = 1e-14 * torch.cat([answers, zero[None]]).abs().amax(dim=0).clamp_min(1)
    bent = ((slopes[-1] - slopes[IMPULSES:-1].sum(dim=0)).abs() - rounding).clamp_min(0) / size
    strayed = (linear.logits[0, targets] - found.value[0]).abs()
    error = ((weights @ asked.flatten(1).T - slopes.T).abs() - rounding[:, None]).clamp_min(0)
    top = weights.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
    errors = error[:, :IMPULSES] / top, error[:, IMPULSES:] / size[:, None], bent, strayed
    plain = _gradient(probe.single, probe.best)
    scale = (amount(found.maps)[0] + zero.abs()).clamp_min(1e-300)
    apart = [(found.constant[0] - zero).abs() / scale, (linear.biases()[targets] - bias).abs() / scale]
    if not linear.positional:
        apart.append(2 * (found.constant - bias).abs())  # so two images differ by no more than the limit
    decided = max(largest(amount(found.maps)), largest((linear.logits - bias).abs())) > NOTHING
    return Check(
        "weights",
        "each weight is the response of the linearised network to its pixel",
        max(map(largest, errors)),
        1e-4,  # of the largest weight; untrained deep networks magnify rounding
        slopes.numel(),
        ("the plain gradient", largest((plain.double() - found.weights[0, 0]).norm() / size[0])),
        decided=decided,
    ), Check(
        "constant",
        "the constant is the bias of the class and the share of the positional code, which the linearised network "
        "gives an empty image"
        if linear.positional
        else "the constant is the bias of the class, the same for every image",
        max(map(largest, apart)),
        1e-6,
        zero.numel(),
        ("half of the map in the constant", largest((found.maps.sum(dim=(-2, -1))[0] / 2).abs() / scale)),
        {"bias_only": not linear.positional},
        decided=decided,
    )


def _gradient(said: Said, target: Tensor) -> Tensor:
    """6×H×W: the gradient of a logit as training sees it, in which scales are not constant."""
    source: list[Tensor] = []

    def leaf(encoded: Tensor) -> Tensor:
        source.append(encoded.detach().clone().requires_grad_())
        return source[0]

    with torch.enable_grad():
        logit = seen_through(said.classifier, leaf)(said.images)[0, target]
        return torch.autograd.grad(logit, source[0])[0][0]


def equivariance(probe: Probe, generator: torch.Generator) -> Check:
    """A network that undoes a rearrangement of the pixels answers alike, and its map is rearranged alike.

    Pixels are mirrored and shuffled. The answers tell whether the network undoes it. A map that stays where it was
    fails as well if its image did not: it does not follow the pixels.
    """
    said, before = probe.double, probe.in_double.maps[:, 0]
    images = said.images
    pixels = images.shape[-2] * images.shape[-1]
    straight = torch.arange(pixels).view(images.shape[-2:])
    orders = {"mirrored": straight.flip(-1).flatten(), "shuffled": torch.randperm(pixels, generator=generator)}
    found: dict[str, float] = {}
    wrong = 0.0
    for name, order in orders.items():
        order = order.to(images.device)
        inverse = order.argsort()
        twin = seen_through(said.classifier, lambda encoded, back=inverse: _moved(encoded, back))  # type: ignore[misc]
        answered = twin.answered(_moved(images, order))
        maps = answered.explain(probe.best).maps
        alike = largest((answered.logits - probe.answered.logits).abs()) < 1e-9
        expected = _moved(before, order)
        found[name] = largest(relative(maps, expected)) if alike else math.inf
        stays = largest(relative(maps, before)) < 1e-6
        if stays and not torch.equal(_moved(images, order), images) and evident(before):
            found[name] = math.inf
        wrong = max(wrong, largest(relative(before, expected)))
    return Check(
        "equivariance",
        "if pixels move, their contributions move with them",
        max(found.values()),
        1e-9,
        len(orders),
        ("a map that stays where it was", wrong),
        found,
        decided=evident(before),
    )


def _moved(images: Tensor, order: Tensor) -> Tensor:
    """…×H×W with its pixels in another order."""
    return images.flatten(-2)[..., order].view_as(images)
