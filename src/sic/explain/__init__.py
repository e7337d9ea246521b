"""Explanations of predictions: contributions, and one renderer for every place that shows them."""

from sic.explain.contributions import (
    images_at_once,
    in_chunks,
    latent_contributions,
    negative_share,
    neuron_contributions,
    support_contributions,
)
from sic.explain.explanation import (
    ClassExplanation,
    Explanation,
    SupportEvidence,
    as_rows,
    explain_answers,
    own_contributions,
)
from sic.explain.overview import Overview, ProjectionMethod, make_overview
from sic.explain.picture import rgba

__all__ = [
    "ClassExplanation",
    "Explanation",
    "Overview",
    "ProjectionMethod",
    "SupportEvidence",
    "as_rows",
    "explain_answers",
    "images_at_once",
    "in_chunks",
    "latent_contributions",
    "make_overview",
    "negative_share",
    "neuron_contributions",
    "own_contributions",
    "rgba",
    "support_contributions",
]
