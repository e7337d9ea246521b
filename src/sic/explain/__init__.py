"""From a model and an image to contributions, pictures and prose."""

from sic.explain.contributions import (
    latent_contributions,
    negative_share,
    neuron_contributions,
    support_contributions,
)
from sic.explain.explanation import ClassExplanation, Explanation, SupportCase, explain_classes, own_contributions
from sic.explain.picture import rgba

__all__ = [
    "ClassExplanation",
    "Explanation",
    "SupportCase",
    "explain_classes",
    "latent_contributions",
    "negative_share",
    "neuron_contributions",
    "own_contributions",
    "rgba",
    "support_contributions",
]
