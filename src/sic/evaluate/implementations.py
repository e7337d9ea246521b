"""Whether all implementations of a model give the same contributions and answers."""

import copy
import logging
import shutil

import torch

from sic.evaluate.checks import Check
from sic.evaluate.probe import Probe, explained, seen_through
from sic.evaluate.reference import Compared, apart, as_check, distance, part, score, shows
from sic.methods import Classifier, Contributions


class Implementations:
    """The reloaded and the float64 model, both memory layouts (images are channels-last on a CPU, contiguous on a GPU),
    `Classifier.explain` and explanations without weights (as of whole folders) give the same contributions, and the
    compiled model gives the same logits."""

    def __init__(self, classifier: Classifier, reloaded: Classifier, compiled: bool = True) -> None:
        self.reloaded = reloaded
        self.lasting = copy.deepcopy(classifier).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.contiguous = seen_through(classifier, torch.Tensor.contiguous)
        self.compiled: Classifier | None = None
        if compiled:
            logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns if there is no GPU
            self.compiled = copy.deepcopy(classifier)
            self.compiled.backbone.compile(backend=_compiler())

    def check(self, probe: Probe) -> Check:
        """Of the predicted class of one image."""
        classifier, images, best = probe.single.classifier, probe.single.images, probe.best
        lasting = images.contiguous(memory_format=torch.channels_last)
        others = {
            "reloaded": part(explained(self.reloaded, images, best), 0),
            "channels-last": part(explained(self.lasting, lasting, best), 0),
            "contiguous": part(explained(self.contiguous, images, best), 0),
            "explained alone": part(classifier.explain(images, best), 0),
            "without weights": part(explained(classifier, images, best, weights=False), 0),
            "float64": part(probe.in_double, (0, 0)),
        }
        found, exact = _as_double(part(probe.in_single, (0, 0))), others["float64"]

        def moved() -> float:
            return probe.reference.moved(score(int(best)), exact)

        items = [Compared(way, distance(other, found), moved, shows(exact)) for way, other in others.items()]
        if self.compiled is not None:
            with torch.no_grad():
                answer = float(self.compiled(images)[0, best])
            items.append(Compared(f"compiled ({_compiler()})", apart(answer, exact), moved, shows(exact)))
        mirrored = Contributions(found.maps.flip(-1), found.weights, found.value, found.constant)
        return as_check(
            "implementation invariance",
            "other implementations of the same model give the same contributions and answers",
            items,
            ("a mirrored map", distance(mirrored, found)),
        )


def _as_double(found: Contributions) -> Contributions:
    return Contributions(*(each.double() for each in (found.maps, found.weights, found.value, found.constant)))


def _compiler() -> str:
    """Inductor if the machine has a C++ compiler or a GPU for Triton, else the tracing backend."""
    return "inductor" if torch.cuda.is_available() or shutil.which("g++") or shutil.which("clang++") else "aot_eager"
