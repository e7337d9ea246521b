"""Check that matches add up: regions to the evidence of a case, and their maps to its map."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sic.evaluate.check import Check, largest, predicted, relative, uniform
from sic.explain.matches import find_matches
from sic.methods import SIC
from sic.supports import Support


def matching(classifier: SIC, supports: Sequence[Support], images: Tensor) -> Check:
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
