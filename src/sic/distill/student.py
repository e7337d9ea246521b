"""The student: a true B-cos network (B = 2, no biases) with a B-cos classifier, and its lessons."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sic.backbones import Backbone, create
from sic.backbones.weights import Weights
from sic.distill.teacher import Lesson, Teacher
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
        """What the student says about N images, with feature maps like the teacher's."""
        maps = self.backbone.feature_maps(self.backbone.prepared(images))
        pooled = self.backbone.pool_maps(maps)
        return Lesson(self.adapter(maps), None if self.classifier is None else self.classifier.logits(pooled))


def create_student(name: str, teacher: Teacher, *, alike: bool, fading: bool = False) -> Student:
    """A student with the backbone `name`; `alike`: its layers are the teacher's, whose weights it starts from.

    `fading`: it keeps the biases, which fade while B rises.
    """
    start = Weights(teacher.backbone.network.state_dict(), "the teacher's network") if alike else None
    return Student(create(name, "bcosified", b=2, biases=fading, load=start), teacher)


@dataclass
class Losses:
    """How far a student is from its teacher, means over the batch."""

    answers: Tensor
    """Kullback-Leibler divergence of the softened answers, times the squared temperature."""
    places: Tensor
    """1 - cosine of the feature maps."""
    features: Tensor
    """1 - cosine of the pooled features."""

    @property
    def total(self) -> Tensor:
        return self.answers + self.places + self.features


def compare(student: Lesson, teacher: Lesson) -> Losses:
    """The losses; the teacher's maps are averaged to the student's resolution."""
    wanted = F.adaptive_avg_pool2d(teacher.maps.float(), (student.maps.shape[2], student.maps.shape[3]))
    maps = student.maps.float()
    places = 1 - F.cosine_similarity(maps.flatten(1), wanted.flatten(1)).mean()
    features = 1 - F.cosine_similarity(maps.mean((2, 3)), teacher.maps.float().mean((2, 3))).mean()
    answers = places.new_zeros(())
    if student.logits is not None and teacher.logits is not None:
        own, right = (F.log_softmax(each.float() / SOFTNESS, 1) for each in (student.logits, teacher.logits))
        answers = F.kl_div(own, right, reduction="batchmean", log_target=True) * SOFTNESS**2
    return Losses(answers, places, features)
