"""The FunnyBirds protocol (Hesse et al., ICCV 2023): compare explanations with the effect of removing parts.

Symbols: N images, C classes, P parts, T thresholds; s is the logit of an image's own class. A set of parts is a code
(bit p: part p). `kept` (N×32×C) are the logits with only the parts of a code left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from sic.data.birds import PARTS
from sic.data.dataset import Sample, Watch
from sic.data.images import Preprocessing
from sic.data.layouts.funnybirds import class_parts
from sic.evaluate.interventions import ALL, Floats, TestBirds
from sic.evaluate.metrics import BASELINES
from sic.methods import Classifier

Codes = NDArray[np.int64]
Parts = tuple[tuple[int, ...], ...]
"""C×P: the variant of each part that a class has."""

THRESHOLDS = np.linspace(0.01, 0.50, 80)
"""Shares of the whole attribution above which a part is important."""
NOTICEABLE = 0.05
"""Share of |s| by which a removal must lower s to matter."""
OWN, PREDICTED, FIRST, SECOND = range(4)
"""The classes that are explained for each image: its own, the predicted one, and the two of target sensitivity."""
WITHOUT_ONE = [ALL ^ 1 << part for part in range(len(PARTS))]


def funnybirds(
    classifier: Classifier,
    root: Path,
    samples: Sequence[Sample],
    preprocessing: Preprocessing,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """All FunnyBirds metrics on test images with interventions: A and BI, the others for each map (`KINDS`), and for
    each of the `baselines`, whose maps ask no model."""
    birds = TestBirds(classifier, root, samples, preprocessing, watch)
    parts: Parts = tuple(map(tuple, class_parts(root)))
    labels, predicted = birds.labels, birds.logits.argmax(1)
    rivals = [rival_classes(parts, label) for label in labels.tolist()]
    pairs = [(label, label) if r is None else r.classes for label, r in zip(labels.tolist(), rivals, strict=True)]
    explanations = birds.explain(np.column_stack([labels, predicted, np.array(pairs)]))
    important = {kind: important_parts(e.parts, e.total) for kind, e in explanations.items()}

    wanted = {(image, ALL ^ code) for image, r in enumerate(rivals) if r is not None for code in r.shared}
    wanted |= {(image, code) for image in range(len(samples)) for code in WITHOUT_ONE}
    for codes in important.values():
        for image, row in enumerate(codes[:, PREDICTED].tolist()):
            wanted |= {(image, left) for code in row for left in (code, ALL ^ code)}
    birds.intervene(wanted)

    every, right = np.arange(len(samples)), predicted == labels
    own = birds.logits[every, labels]
    single = birds.kept[:, WITHOUT_ONE][every, :, labels]
    result: dict[str, Any] = {
        "images": len(samples),
        "A": float(right.mean()),
        "BI": background_independence(own, birds.without),
        "objects": sum(birds.objects),
        "baselines": {},
    }
    for kind, e in explanations.items():
        codes = important[kind]
        objects = important_objects(e.objects[:, OWN], e.total[:, OWN])
        curves = {
            "CSDC": controlled_synthetic_data_check(codes[right, OWN], labels[right], parts),
            "PC": preservation_check(birds.kept, codes[:, PREDICTED], predicted),
            "DC": deletion_check(birds.kept, codes[:, PREDICTED], predicted),
            "D": distractibility(own, single, birds.without, codes[:, OWN], objects),
        }
        SD, correlated = single_deletion(e.parts[:, OWN], own[:, None] - single)
        TS, assumed = target_sensitivity(birds.logits, birds.kept, e.parts[:, [FIRST, SECOND]], rivals)
        # Some maps of two classes differ in scale only because their scores do.
        relative = e.parts / np.maximum(e.absolute, 1e-12)[..., None]
        TS_relative, _ = target_sensitivity(birds.logits, birds.kept, relative[:, [FIRST, SECOND]], rivals)
        found = at_the_best_threshold(curves) | {"SD": SD, "TS": TS, "Cor": SD, "Con": TS, "TS_relative": TS_relative}
        found |= {"SD_images": correlated, "TS_images": assumed}
        found["curves"] = {name: curve.tolist() for name, curve in curves.items()}
        (result["baselines"] if kind in BASELINES else result)[kind] = found
    return result


def important_parts(parts: Floats, total: Floats) -> Codes:
    """Codes …×T of the important parts at each threshold, from importances …×P and sums of whole maps."""
    return (important_objects(parts, total) << np.arange(parts.shape[-1])).sum(-1)


def important_objects(importance: Floats, total: Floats) -> NDArray[np.bool_]:
    """Which importances …×O exceed each threshold's share of the total: …×T×O."""
    return importance[..., None, :] > THRESHOLDS[:, None] * total[..., None, None]


def at_the_best_threshold(curves: dict[str, Floats]) -> dict[str, Any]:
    """The metrics at the threshold that maximises (CSDC + PC + DC)/3 + D on the same data, as the framework chooses it.

    `Com` is the framework's aggregate, `Com_mean` the mean of the four, as in the paper's caption.
    """
    CSDC, PC, DC, D = (curves[name] for name in ("CSDC", "PC", "DC", "D"))
    Com = ((CSDC + PC + DC) / 3 + D) / 2
    best = int(np.argmax(np.nan_to_num(Com, nan=-1)))
    chosen = {name: float(curve[best]) for name, curve in curves.items()}
    mean = float(np.mean([CSDC, PC, DC, D], axis=0)[best])
    return {"threshold": float(THRESHOLDS[best]), **chosen, "Com": float(Com[best]), "Com_mean": mean}


def matters(before: Floats, after: Floats) -> NDArray[np.bool_]:
    """Whether a removal lowers s by at least 5 % of |s|."""
    return (before - after >= NOTICEABLE * np.abs(before)) & (before > after)


def background_independence(own: Floats, without: Sequence[Floats]) -> float:
    """BI: the share of background objects that do not matter. `own`: s, N; `without`: s without each object."""
    found = [matters(np.full_like(after, before), after) for before, after in zip(own, without, strict=True)]
    return _mean(1 - np.concatenate(found))


@cache
def minimal_sufficient_sets(parts: Parts, label: int) -> tuple[int, ...]:
    """Codes of the minimal sets of parts that distinguish `label` from every other class."""
    shared = {_shared(parts[label], other) for number, other in enumerate(parts) if number != label}
    alone = [code for code in range(1, ALL + 1) if all(code & ~other for other in shared)]
    return tuple(code for code in alone if not any(other != code and other & code == other for other in alone))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The code of the parts that two classes have in common."""
    return sum(1 << number for number, (a, b) in enumerate(zip(one, other, strict=True)) if a == b)


def controlled_synthetic_data_check(important: Codes, labels: NDArray[np.int64], parts: Parts) -> Floats:
    """CSDC, T: the share of important parts in the best matching minimal sufficient set, over correct predictions."""
    scores = np.zeros(important.shape)
    for row, label in enumerate(labels.tolist()):
        for code in minimal_sufficient_sets(parts, label):
            found = np.bitwise_count(important[row] & code) / code.bit_count()
            scores[row] = np.maximum(scores[row], found)
    return _means(scores)


def preservation_check(kept: Floats, important: Codes, predicted: NDArray[np.int64]) -> Floats:
    """PC, T: the share of images whose prediction stays when all unimportant parts are removed."""
    return _means(_answers(kept, important) == predicted[:, None])


def deletion_check(kept: Floats, important: Codes, predicted: NDArray[np.int64]) -> Floats:
    """DC, T: the share of images whose prediction changes when all important parts are removed."""
    return _means(_answers(kept, ALL ^ important) != predicted[:, None])


def _answers(kept: Floats, codes: Codes) -> NDArray[np.int64]:
    """N×T: the class with the highest logit if only these parts are left."""
    chosen = kept[np.arange(len(codes))[:, None], codes]
    assert not np.isnan(chosen).any(), "an intervention is missing"
    return chosen.argmax(-1)


def distractibility(
    own: Floats, single: Floats, without: Sequence[Floats], important: Codes, objects: NDArray[np.bool_]
) -> Floats:
    """D, T: 1 - the share of irrelevant parts and objects that the explanation marks as important.

    `single`: N×P, s without each part. `without`: for each image, s without each object. `important`: N×T codes of
    parts; `objects`: N×T×O. A part or object is irrelevant if removing it changes s by less than
    5 % of |s| or raises it. Images without irrelevant parts and objects do not count.
    """
    shares = []
    for row, before in enumerate(own):
        after = np.concatenate([single[row], without[row]])
        irrelevant = (np.abs(before - after) < NOTICEABLE * np.abs(before)) | (after > before)
        if irrelevant.any():
            bits = (important[row][:, None] >> np.arange(single.shape[1]) & 1).astype(bool)
            claimed = np.concatenate([bits, objects[row][:, : len(without[row])]], axis=1)
            shares.append(claimed[:, irrelevant].mean(axis=1))
    return 1 - _means(np.array(shares).reshape(-1, important.shape[1]))


def single_deletion(importance: Floats, drops: Floats) -> tuple[float, int]:
    """SD: mean of ρ/2 + ½, with ρ Spearman's between the importance of parts and the drop of s without each (N×P).

    Also returns the number of images; those for which ρ is undefined do not count.
    """
    ranks = np.stack([rankdata(importance, axis=1), rankdata(drops, axis=1)])
    ranks -= ranks.mean(axis=2, keepdims=True)
    norms = np.linalg.norm(ranks, axis=2).prod(axis=0)
    defined = norms > 0
    correlation = (ranks[0] * ranks[1]).sum(axis=1)[defined] / norms[defined]
    return _mean(correlation / 2 + 0.5), int(defined.sum())


@dataclass(frozen=True)
class Rivals:
    """Two classes that each share a pair of parts with a class; the pairs are disjoint."""

    classes: tuple[int, int]
    shared: tuple[int, int]
    """The codes of these pairs of parts."""


@cache
def rival_classes(parts: Parts, label: int) -> Rivals | None:
    """The first two rival classes of a class, in the order of the classes; None if there are none."""
    found = [(number, _shared(parts[label], other)) for number, other in enumerate(parts) if number != label]
    two = [(number, code) for number, code in found if code.bit_count() == 2]
    for position, (first, one) in enumerate(two):
        for second, other in two[position + 1 :]:
            if not one & other:
                return Rivals((first, second), (one, other))
    return None


def target_sensitivity(
    logits: Floats, kept: Floats, importance: Floats, rivals: Sequence[Rivals | None]
) -> tuple[float, int]:
    """TS and the number of images: does the explanation change with the explained class?

    `importance`: N×2×P, for the two rival classes. Only images count for which the model distinguishes the pairs of the
    rivals: removing a class's own pair lowers its logit more than removing the other pair. Each pair that is more
    important for its own class than for the other one gives a point.
    """
    points: list[float] = []
    for row, rival in enumerate(rivals):
        if rival is None:
            continue
        first, second = rival.classes
        without_first, without_second = (kept[row, ALL ^ code] - logits[row] for code in rival.shared)
        if without_first[first] < without_second[first] and without_second[second] < without_first[second]:
            bits = np.array([[code >> part & 1 for part in range(importance.shape[2])] for code in rival.shared])
            sums = importance[row] @ bits.T  # class × pair
            points += [float(sums[0, 0] > sums[1, 0]), float(sums[1, 1] > sums[0, 1])]
    return _mean(np.array(points)), len(points) // 2


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _means(values: Any) -> Floats:
    """Column means N×T → T; NaN without images."""
    return np.asarray(values, float).mean(axis=0) if len(values) else np.full(values.shape[1], np.nan)
