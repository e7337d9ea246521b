"""From a model and an image to contributions, pictures and prose."""

from sic.explain.contributions import (
    latent_contributions,
    negative_share,
    neuron_contributions,
    support_contributions,
)
from sic.explain.explanation import ClassExplanation, Explanation, SupportCase, explain_classes, own_contributions
from sic.explain.overview import Latents, Overview, look
from sic.explain.picture import rgba
from sic.explain.projection import Method as ProjectionMethod

__all__ = [
    "ClassExplanation",
    "Explanation",
    "Latents",
    "Overview",
    "ProjectionMethod",
    "SupportCase",
    "explain_classes",
    "latent_contributions",
    "look",
    "negative_share",
    "neuron_contributions",
    "own_contributions",
    "rgba",
    "support_contributions",
]
