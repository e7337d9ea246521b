"""Whether all implementations of a model give the same contributions and answers."""

import copy
import functools
import logging
import shutil

import torch
from torch import Tensor

from sic.evaluate.axioms import Check, explained, predicted
from sic.evaluate.reference import ROUNDING, Compared, Reference, apart, distance, part, score, shows, worst_by_way
from sic.methods import Classifier, Contributions


def implementation_invariance(
    classifier: Classifier, reloaded: Classifier, images: Tensor, compiled: bool = True
) -> Check:
    """The channels-last, the reloaded and the float64 model, `Classifier.explain` and explanations without weights (as
    of whole folders) give the same contributions, and the compiled model gives the same logits."""
    targets = predicted(classifier, images)
    found = explained(classifier, images, targets)
    lasting = copy.deepcopy(classifier).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    double = copy.deepcopy(classifier).double()
    others = {
        "reloaded": explained(reloaded, images, targets),
        "channels-last": explained(lasting, images.contiguous(memory_format=torch.channels_last), targets),
        "explained alone": classifier.explain(images, targets),
        "without weights": classifier.answered(images).explain(targets, weights=False),
        "float64": explained(double, images.double(), targets),
    }
    exact = others["float64"]
    quantities = [score(label) for label in targets.tolist()]
    references = [Reference(double, image) for image in images]

    def moved(place: int) -> float:
        return references[place].moved(quantities[place], part(exact, place))

    items = [
        Compared(
            name,
            distance(part(other, place), _as_double(part(found, place))),
            functools.partial(moved, place),
            shows(part(exact, place)),
        )
        for name, other in others.items()
        for place in range(len(images))
    ]
    if compiled:
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns if there is no GPU
        twin = copy.deepcopy(classifier)
        twin.backbone.compile(backend=_compiler())
        with torch.no_grad():
            answers = twin(images).gather(1, targets[:, None])[:, 0].tolist()
        items += [
            Compared(
                f"compiled ({_compiler()})",
                apart(answer, part(exact, place)),
                functools.partial(moved, place),
                shows(part(exact, place)),
            )
            for place, answer in enumerate(answers)
        ]
    worst = worst_by_way(items)
    mirrored = Contributions(found.maps.flip(-1), found.weights, found.value, found.constant)
    return Check(
        "implementation invariance",
        "other implementations of the same model give the same contributions and answers",
        max(worst.values(), default=0.0),
        ROUNDING,
        len(items),
        ("a mirrored map", max(distance(part(mirrored, n), _as_double(part(found, n))) for n in range(len(images)))),
        worst,
        decided=bool(worst),
    )


def _as_double(found: Contributions) -> Contributions:
    return Contributions(*(each.double() for each in (found.maps, found.weights, found.value, found.constant)))


def _compiler() -> str:
    """Inductor if the machine has a C++ compiler or a GPU for Triton, else the tracing backend."""
    return "inductor" if torch.cuda.is_available() or shutil.which("g++") or shutil.which("clang++") else "aot_eager"
