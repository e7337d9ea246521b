"""How often the model is right."""

from typing import Any

import torch
from torch import Tensor

from sic.data.labels import average_precisions, mean_precision, split_targets
from sic.evaluate.calibration import calibration_figures
from sic.predictions import Predictions


def detailed_figures(predictions: Predictions) -> dict[str, Any]:
    """All of `Answers.figures`, `auroc` and `map` (means over the classes that have one), calibration, `per_class`,
    and for single labels the `confusion` matrix."""
    wanted = predictions.targets
    truth, counts = split_targets(wanted)
    single = predictions.task == "single"
    precisions, areas = average_precisions(predictions.scores, wanted), aurocs(predictions.scores, wanted)
    said = predictions.answers
    rows = [
        {
            "class": name,
            "images": int(truth[:, label].sum()),
            "recall": _share(said[:, label], truth[:, label] > 0),
            "precision": _share(truth[:, label] > 0, said[:, label] & counts[:, label]),
            "average_precision": precisions[label],
            "auroc": areas[label],
        }
        for label, name in enumerate(predictions.classes)
    ]
    known = [area for area in areas if area is not None]
    result = predictions.quality | {
        "map": mean_precision(precisions),
        "auroc": sum(known) / len(known) if known else None,
        **calibration_figures(predictions.probabilities, truth, counts, single),
        "per_class": rows,
    }
    return result | ({"confusion": confusion(predictions.nearest, truth).tolist()} if single else {})


def _share(what: Tensor, among: Tensor) -> float | None:
    return what[among].float().mean().item() if among.any() else None


def aurocs(scores: Tensor, targets: Tensor) -> list[float | None]:
    """Of every class against the rest, over the samples that count for it; None where only one of the two is there."""
    from sklearn.metrics import roc_auc_score  # takes seconds to load, and predicting does not need it

    truth, counts = split_targets(targets)
    return [
        float(roc_auc_score(truth[known, label], scores[known, label]))
        if 0 < truth[known, label].sum() < known.sum()
        else None
        for label, known in enumerate(counts.T)
    ]


def confusion(answers: Tensor, truth: Tensor) -> Tensor:
    """C×C counts: rows are true classes, columns answers. Where several classes are right: the answer, or the first."""
    given = truth.gather(1, answers[:, None])[:, 0] > 0
    rows = torch.where(given, answers, truth.argmax(1))
    classes = truth.shape[1]
    return torch.bincount(rows * classes + answers, minlength=classes * classes).view(classes, classes)
