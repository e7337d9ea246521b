"""The student: a true B-cos network (B = 2, no biases) with a B-cos classifier, and its lessons."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone, create
from sic.backbones.distilled import DISTILLED_B
from sic.backbones.weights import Weights
from sic.distill.teacher import Lesson, Teacher, stage_maps
from sic.methods import Bcos

SOFTNESS = 2.0
"""Temperature of the softmax in which student and teacher are compared."""
CALIBRATION = 128
"""Images on which the scale of the student's logits is set."""


class Student(nn.Module):
    """A B-cos backbone, a B-cos classifier where the teacher has one, and an adapter to the teacher's features."""

    def __init__(self, backbone: Backbone, teacher: Teacher) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = Bcos(backbone, teacher.classes, loss="ce") if teacher.classes else None
        features, wanted = backbone.map_features, teacher.backbone.map_features
        self.adapter = nn.Identity() if features == wanted else nn.Conv2d(features, wanted, 1, bias=False)
        if self.classifier is not None and teacher.weight is not None and backbone.features == teacher.weight.shape[1]:
            with torch.no_grad():
                self.classifier.head.weight.copy_(teacher.weight)

    @torch.no_grad()
    def calibrate(self, images: Tensor, logits: Tensor) -> None:
        """Give the student's logits the teacher's spread; B-cos classifiers count by direction alone."""
        if self.classifier is not None:
            self.classifier.temperature = 1.0
            own = self.classifier.head(self.backbone(images))
            self.classifier.temperature = float((own.std() / logits.std()).clamp_min(1e-6))

    def forward(self, images: Tensor) -> Lesson:
        """What the student computes from N images, with feature maps like the teacher's."""
        return self.lesson(stage_maps(self.backbone, images))

    def lesson(self, found: tuple[Tensor, ...]) -> Lesson:
        """The same from the maps of its stages."""
        *stages, maps = found
        logits = None if self.classifier is None else self.classifier.logits(self.backbone.pool_maps(maps))
        return Lesson(self.adapter(maps), logits, tuple(stages))


def create_student(name: str, teacher: Teacher, *, alike: bool, fading: bool = False) -> Student:
    """A student with the backbone `name`; `alike`: its layers are the teacher's, whose weights it starts from.

    `fading`: it keeps the biases, which fade while B rises.
    """
    start = Weights(teacher.backbone.network.state_dict(), "the teacher's network") if alike else None
    return Student(create(name, "bcosified", b=DISTILLED_B, biases=fading, load=start), teacher)


@dataclass
class Losses:
    """How far a student is from its teacher, means over the batch."""

    answers: Tensor
    """Kullback-Leibler divergence of the softened answers, times the squared temperature."""
    evidence: Tensor
    """How far each class's own probability, a sigmoid, is from the teacher's: Kullback-Leibler divergence, summed over
    classes. A softmax does not notice evidence that all classes share. Such evidence lies on every object, so the
    contributions to one class would lie everywhere, too."""
    places: Tensor
    """1 - cosine of the feature maps."""
    features: Tensor
    """1 - cosine of the pooled features."""
    stages: Tensor
    """1 - cosine of the features of a position, mean over positions and earlier stages."""

    @property
    def total(self) -> Tensor:
        return self.answers + self.evidence + self.places + self.features + self.stages


def compare(student: Lesson, teacher: Lesson) -> Losses:
    """The losses; the teacher's maps are averaged to the student's resolution."""
    wanted, maps = _averaged(teacher.maps, student.maps), student.maps.float()
    places = 1 - F.cosine_similarity(maps.flatten(1), wanted.flatten(1)).mean()
    features = 1 - F.cosine_similarity(maps.mean((2, 3)), teacher.maps.float().mean((2, 3))).mean()
    answers = evidence = places.new_zeros(())
    if student.logits is not None and teacher.logits is not None:
        own, right = (F.log_softmax(each.float() / SOFTNESS, 1) for each in (student.logits, teacher.logits))
        answers = F.kl_div(own, right, reduction="batchmean", log_target=True) * SOFTNESS**2
        evidence = _binary_divergence(student.logits.float(), teacher.logits.float().softmax(1))
    stages = [
        1 - F.cosine_similarity(own.float(), _averaged(right, own)).mean()
        for own, right in zip(student.stages, teacher.stages, strict=False)
        if own.shape[1] == right.shape[1]
    ]
    return Losses(answers, evidence, places, features, torch.stack(stages).mean() if stages else places.new_zeros(()))


def _binary_divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """Of the sigmoids of N×C logits from the wanted probabilities: summed over classes, mean over images."""
    least = -torch.special.xlogy(wanted, wanted) - torch.special.xlogy(1 - wanted, 1 - wanted)
    found = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (found - least).sum(1).mean()


def _averaged(maps: Tensor, like: Tensor) -> Tensor:
    """Maps at the resolution of others, in full precision."""
    return F.adaptive_avg_pool2d(maps.float(), (like.shape[2], like.shape[3]))
