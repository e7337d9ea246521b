"""Checks that explain images: negative contributions to supports, and evidence from the background."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from sic.clinic.advice import Commands
from sic.clinic.diagnostics import Finding
from sic.clinic.examined import Examined
from sic.data.dataset import Progress, Sample
from sic.data.images import image_size, read_image, to_tensor
from sic.explain.contributions import negative_share, support_contributions
from sic.explain.prose import TOO_MUCH_NEGATIVE

PER_CLASS = 4
"""The number of validation images explained per class."""
FEWEST = 3
"""Classes with fewer images are not judged."""
MOST = 120
"""The most images explained; that takes a minute on a slow machine."""
CHUNK = 32
"""The number of supports explained at a time."""
RING = 0.1
"""The width of the border, as a share of the image."""
MOST_OF_THE_IMAGE = 0.9
"""Boxes larger than this leave too little background."""


def negative_mass(examined: Examined) -> list[Finding]:
    """Supports with many negative contributions: T was too small.

    The limit is the one of explanations. In the demo, the supports have 3 % at most. Nothing is advised: only training
    could help, and it is not known to.
    """
    shares = _negative_shares(examined)
    over = [(share, index) for index, share in shares.items() if share > TOO_MUCH_NEGATIVE]
    if not over:
        return []
    share, worst = max(over)
    temperature = examined.model.config.temperature
    return [
        Finding(
            "Supports made of negative contributions",
            "serious" if 2 * len(over) > len(shares) else "notice",
            f"In {len(over)} of {len(shares)} supports more than {TOO_MUCH_NEGATIVE:.0%} of the contributions are "
            f"negative (most in {examined.described(worst)}: {share:.0%}): the temperature of "
            f"{temperature:g} was too small for this model to explain itself well.",
            None,
            [index for _, index in over],
            [examined.supports[index].source for _, index in over],
            {"negative_share": share, "limit": TOO_MUCH_NEGATIVE},
        )
    ]


def _negative_shares(examined: Examined) -> dict[int, float]:
    """Shares by support, from the copies of the images that the model keeps, or else from the training images."""
    model = examined.model
    kept = [index for index, support in enumerate(model.supports) if support.image is not None]
    result = {}
    for start in range(0, len(kept), CHUNK):
        for index, own in model.support_contributions(kept[start : start + CHUNK]).items():
            result[index] = negative_share(own.maps[None]).item()
    paths = {sample.id: sample.path for sample in examined.splits["train"]}
    for index, support in enumerate(model.supports):
        if support.image is None and support.source in paths:
            image = model.tensor(paths[support.source])[None]
            maps = support_contributions(examined.classifier, image, [index], weights=False).maps
            result[index] = negative_share(maps).item()
    return result


def background(examined: Examined, commands: Commands, progress: Progress | None = None) -> list[Finding]:
    """Classes whose positive contributions avoid their objects.

    Objects are inside the boxes of the dataset, or else away from the border of the image. A class avoids them if their
    share of the contributions is below their share of the area. In the demo the border has 37 % of the area and 12 % of
    the contributions, 31 % in the most extreme image.
    """
    chosen = _chosen(examined)
    measured: dict[int, list[_Measured]] = defaultdict(list)
    for done, (sample, label) in enumerate(chosen, 1):
        inside = _place(examined, sample, label)
        if inside.mean() < MOST_OF_THE_IMAGE:
            share = _share_outside(examined, sample, label, inside)
            boxed = any(box.label == label for box in sample.boxes)
            measured[label].append(_Measured(sample, share, 1 - inside.mean().item(), boxed))
        if progress is not None:
            progress(done, len(chosen))
    found = []
    for label, all_of_class in sorted(measured.items()):
        images = [one for one in all_of_class if one.boxed] or all_of_class
        share, area = (sum(numbers) / len(images) for numbers in zip(*((i.share, i.area) for i in images), strict=True))
        if len(images) < FEWEST or share <= area:
            continue
        where = "outside of the boxes" if images[0].boxed else "near the border of the image"
        found.append(
            Finding(
                "Evidence from the background",
                "serious" if images[0].boxed else "notice",
                f"{share:.0%} of the evidence for {examined.classes[label]} in {len(images)} validation images is "
                f"{where}, which is {area:.0%} of the area: the model may use the background.",
                commands.explain(max(images, key=lambda one: one.share - one.area).sample.path),
                images=[one.sample.id for one in images],
                numbers={"share_outside": share, "area_outside": area},
            )
        )
    return found


@dataclass(frozen=True)
class _Measured:
    """One image: the share of its positive contributions outside of the object, and the share of the area there."""

    sample: Sample
    share: float
    area: float
    boxed: bool


def _chosen(examined: Examined) -> list[tuple[Sample, int]]:
    """The first correctly answered validation images of each class, up to `MOST`, all classes in turn."""
    samples = examined.splits["validation"]
    answered = examined.predictions("validation").answers.tolist()
    by_class: dict[int, list[Sample]] = defaultdict(list)
    for sample, answer in zip(samples, answered, strict=True):
        for label in sample.labels:
            if answer[label] and len(by_class[label]) < PER_CLASS:
                by_class[label].append(sample)
    turns = [
        (members[turn], label)
        for turn in range(PER_CLASS)
        for label, members in sorted(by_class.items())
        if turn < len(members) and len(members) >= FEWEST
    ]
    return turns[:MOST]


def _place(examined: Examined, sample: Sample, label: int) -> Tensor:
    """S×S, 1 where the object is."""
    preprocessing = examined.model.config.preprocessing
    size = preprocessing.size
    inside = torch.zeros(size, size)
    boxes = [box for box in sample.boxes if box.label == label]
    if not boxes:
        ring = round(RING * size)
        inside[ring : size - ring, ring : size - ring] = 1
        return inside
    whole = image_size(sample.path)
    for box in boxes:
        seen = preprocessing.box(box, whole)
        if seen is not None:
            inside[int(seen.top) : round(seen.bottom + 0.5), int(seen.left) : round(seen.right + 0.5)] = 1
    return inside


def _share_outside(examined: Examined, sample: Sample, label: int, inside: Tensor) -> float:
    like = examined.classifier.support_vectors
    view = to_tensor(examined.model.config.preprocessing(read_image(sample.path))).to(like)
    maps = examined.classifier.explain(view[None], torch.tensor([label], device=like.device)).maps[0].cpu()
    positive = maps.clamp(min=0)
    return ((positive * (1 - inside)).sum() / positive.sum().clamp_min(1e-12)).item()
