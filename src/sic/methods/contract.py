"""The contract of all methods: logits, and contributions that explain them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from sic.backbones import Backbone
from sic.bcos import explaining, linear_maps
from sic.calibration import Calibration
from sic.errors import SicError
from sic.settings import Form, Loss, RecipeName, table

LOSSES: tuple[Loss, ...] = get_args(Loss)


@dataclass
class Contributions:
    """Signed, unnormalised contributions of pixels to explained values; leading dimensions as in the targets."""

    maps: Tensor
    """…×H×W; with dynamic weights `φ = Σ_channels W ⊙ [x, 1 - x]`."""
    weights: Tensor
    """…×6×H×W, the dynamic weights `W(x)`; …×0×H×W for methods without them."""
    value: Tensor
    """…, the explained value: a logit, an evidence, a similarity, a unit."""
    constant: Tensor
    """…, the share that does not depend on the input: the bias b, positional codes."""

    @property
    def residual(self) -> Tensor:
        """…, `value - Σ maps - constant`: zero up to rounding for methods that are `complete`."""
        return self.value - self.maps.sum(dim=(-2, -1)) - self.constant

    def at(self, place: int | tuple[int | slice, ...]) -> "Contributions":
        """The contributions at one index of the leading dimensions."""
        return Contributions(self.maps[place], self.weights[place], self.value[place], self.constant[place])

    def reshape(self, leading: Sequence[int]) -> "Contributions":
        """The same contributions with other leading dimensions."""
        return Contributions(
            self.maps.reshape(*leading, *self.maps.shape[-2:]),
            self.weights.reshape(*leading, *self.weights.shape[-3:]),
            self.value.reshape(leading),
            self.constant.reshape(leading),
        )


def opacity(norms: Tensor) -> Tensor:
    """The alpha channel of colour pictures: `‖w‖` (…×H×W) divided by its 99.9th percentile, at most 1."""
    top = norms.flatten(-2).quantile(0.999, dim=-1)[..., None, None]
    return (norms / top.clamp_min(1e-12)).clamp(0, 1)


def without_weights(maps: Tensor, value: Tensor, constant: Tensor) -> Contributions:
    """Contributions of a method that has no dynamic weights."""
    return Contributions(maps, maps.new_zeros(*maps.shape[:-2], 0, *maps.shape[-2:]), value, constant)


Pick = Callable[[Tensor, Tensor], Tensor]
"""Logits N×C and targets N×K → the values to explain, N×K."""


def own_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """The logits of the targets."""
    return logits.gather(1, targets)


def above_average(logits: Tensor, targets: Tensor) -> Tensor:
    """How much higher the logits of the targets are than the mean logit of all classes."""
    return logits.gather(1, targets) - logits.mean(dim=1, keepdim=True)


class Answered:
    """The answers to a batch of images, which can be explained.

    Here every explanation is a new forward pass; methods whose forward pass can be traced back use one for all.
    """

    def __init__(self, classifier: "Classifier", images: Tensor) -> None:
        self.classifier, self.images = classifier, images
        with torch.no_grad():
            self.logits, self.evidence = self.answers()

    def answers(self) -> tuple[Tensor, Tensor]:
        """As `Classifier.answer`."""
        return self.classifier.answer(self.images)

    def explain(self, targets: Tensor, weights: bool = True) -> Contributions:
        """As `Classifier.explain`; `weights`: whether to keep the dynamic weights."""
        return self.classifier.explain(self.images, targets)

    def explain_specific(self, targets: Tensor) -> Contributions:
        """As `Classifier.explain_specific`."""
        return self.classifier.explain_specific(self.images, targets)

    def explain_evidence(self, supports: Tensor) -> Contributions:
        """As `Classifier.explain_evidence`."""
        return self.classifier.explain_evidence(self.images, supports)


class Classifier(nn.Module, ABC):
    """RGB in [0, 1], N×3×H×W, in; one logit per class, N×C, out.

    A method's settings are the keyword arguments of its constructor, named in `options` and kept in `config.json`;
    one with supports also takes `supports`, their number. The class attributes describe the method: other
    modules ask for these, not for its name.
    """

    name: ClassVar[str]
    """The value of `--method`."""
    title: ClassVar[str]
    """The name for people."""
    forms: ClassVar[tuple[Form, ...]]
    """The forms of backbones that it works with; the first is the default."""
    backbones: ClassVar[tuple[str, ...]] = ()
    """The only backbones that it works with, the first by default; empty: all of the right form."""
    options: ClassVar[tuple[str, ...]] = ("loss",)
    fit_options: ClassVar[tuple[str, ...]] = ("teacher", "head_lr")
    """Special settings (see `sic.settings`) that its training uses and its constructor does not take."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings whose default differs from other methods'."""
    temperatures: ClassVar[Mapping[RecipeName, float]] = {}
    """T of each recipe, if it is not 1."""
    collapses: ClassVar[bool] = False
    """Whether training from random weights usually collapses without a guide."""
    losses: ClassVar[tuple[Loss, ...]] = LOSSES
    """The first is the default."""
    attributions: ClassVar[tuple[str, ...]] = ()
    """Attribution methods, if there are several; the first is the default."""
    complete: ClassVar[bool] = False
    """Whether contributions and constant add up to the logit exactly."""
    specific: ClassVar[bool] = False
    """Whether it has `explain_specific`."""
    traceable: ClassVar[bool] = False
    """Whether its forward pass can be traced back to the pixels."""
    with_supports: ClassVar[bool] = False
    """Whether it has supports: training images, or parts of them."""
    by_similarity: ClassVar[bool] = False
    """Whether a logit is a sum of similarities to training images: "no similar case" is a possible answer."""
    supports_noun: ClassVar[str] = "supports"
    """The word for its supports, in the plural."""
    support_noun: ClassVar[str] = "training image"
    """The word for one support."""
    evidence_for: ClassVar[str] = "the score"
    """The whole that the evidence of a support is a part of."""
    score: ClassVar[str] = "score"
    """The word for a logit."""
    besides_supports: ClassVar[str | None] = None
    """The name of the other term of a logit that is a sum of evidence; None: a logit is no such sum."""
    selections: ClassVar[tuple[str, ...]] = ()
    """The choices of `--inference-supports` (see `sic.supports.select`)."""
    attribution: str | None = None
    bias: float = 0.0
    """The logit of a class without evidence, if it is the same for all classes."""
    backbone: Backbone
    calibration = Calibration()
    """Turns logits into probabilities."""

    def __init__(self, backbone: Backbone, classes: int, loss: Loss) -> None:
        super().__init__()
        name = type(self).__name__
        if backbone.form not in self.forms:
            raise SicError(f"{name} needs a backbone of --form {' or '.join(self.forms)}, not {backbone.form}.")
        if loss not in self.losses:
            raise SicError(f"{name} is trained with --loss {' or '.join(self.losses)}, not {loss}.")
        self.classes, self.loss = classes, loss

    @classmethod
    def uses(cls, setting: str) -> bool:
        """Whether this method uses a setting of `sic.settings`."""
        return not table()[setting].special or setting in (*cls.options, *cls.fit_options)

    @property
    def support_labels(self) -> list[int]:
        """The class of each support."""
        return []

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits into probabilities.

        Args:
            logits: N×C.

        Returns:
            N×C: sigmoids for `--loss bce`, a softmax for `--loss ce`, calibrated (see `sic.calibration`).
        """
        return self.calibration.probabilities(logits, self.loss)

    def answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, N×C, and the evidence of each support for its class, N×S."""
        logits = self(images)
        return logits, logits.new_zeros(logits.shape[0], 0)

    def answered(self, images: Tensor) -> Answered:
        """Answers that can be explained."""
        return Answered(self, images)

    @abstractmethod
    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        """Trace logits back to the pixels.

        Args:
            images: RGB in [0, 1], N×3×H×W.
            targets: Class indices, N, or N×K for several classes per image.

        Returns:
            Contributions with the leading dimensions of `targets`.
        """

    def explain_specific(self, images: Tensor, targets: Tensor) -> Contributions:
        """Trace back to the pixels by how much logits exceed the mean logit of all classes.

        What all classes share cancels. Arguments and result are those of `explain`.
        """
        raise NotImplementedError

    def explain_evidence(self, images: Tensor, supports: Tensor) -> Contributions:
        """Trace the evidence of supports back to the pixels, for methods with supports.

        Args:
            images: RGB in [0, 1], N×3×H×W.
            supports: Indices of supports, N, or N×K for several per image.

        Returns:
            Contributions with the leading dimensions of `supports`.
        """
        raise NotImplementedError

    def explain_with(self, attribution: str) -> None:
        """Use another attribution method from now on."""
        if attribution not in self.attributions:
            ways = (
                f"choose from {', '.join(self.attributions)}" if self.attributions else "it has one attribution method"
            )
            raise SicError(f"--attribution {attribution} does not apply to {type(self).__name__}; {ways}.")
        self.attribution = attribution

    def require_evaluation(self) -> None:
        if any(module.training for module in self.modules()):
            raise RuntimeError("explaining needs the model in evaluation mode: call .eval() first")


def device_of(classifier: nn.Module) -> torch.device:
    """The device of the weights; the CPU if there are none."""
    return next((value.device for value in classifier.state_dict().values()), torch.device("cpu"))


def as_columns(targets: Tensor) -> Tensor:
    """N or N×K targets as N×K; a copy, because the caller may be in inference mode."""
    return (targets if targets.dim() == 2 else targets[:, None]).clone()


class Traced:
    """One forward pass of B-cos layers, N×d features, from which any number of outputs can be traced back.

    It holds the graph for backward passes; delete it when the last output is explained.
    """

    def __init__(self, features: Callable[[], Tensor]) -> None:
        with explaining() as self._trace:
            self._features = features()
        self.features = self._features.detach()
        self.feature_maps = self._trace.feature_maps
        """N×F×h×w, the last feature maps of the backbone; None if it has none or pools them itself."""

    def contributions(
        self, outputs: Callable[[Tensor], Tensor], bias: float = 0.0, weights: bool = True
    ) -> Contributions:
        """Contributions N×K to `outputs(features)`, N×K; `bias`: the constant in them.

        A backward pass through the network for each output, but never more than there are features: outputs are linear
        in these, so the maps of more outputs are sums of the features' own.
        """
        with explaining():
            values = outputs(self._features)
            if values.shape[1] <= self._features.shape[1]:
                found = linear_maps(values, self._trace, retain=True, weights=weights)
                maps, kept, constants = found.maps, found.weights, found.constants
            else:
                shares = torch.stack(
                    [torch.autograd.grad(each.sum(), self._features, retain_graph=True)[0] for each in values.T], dim=1
                )
                found = linear_maps(self._features, self._trace, retain=True, weights=weights)
                maps = torch.einsum("nkd,ndhw->nkhw", shares, found.maps)
                kept = torch.einsum("nkd,ndchw->nkchw", shares, found.weights)
                constants = torch.einsum("nkd,nd->nk", shares, found.constants)
        return Contributions(maps, kept, values.detach(), constants + bias)


class Comparing(Classifier):
    """A classifier that compares latents with support vectors; `sic.supports` knows their images."""

    with_supports = True
    fit_options: ClassVar[tuple[str, ...]] = (
        *("supports_per_class", "keep_support_images", "inference_supports", "head_lr"),
    )
    support_vectors: Tensor
    support_classes: Tensor
    encoder: nn.Module
    """Images N×3×H×W → latents N×d; has the backbone."""

    def __init__(self, backbone: Backbone, classes: int, supports: int, latent: int, loss: Loss) -> None:
        """`supports`: the number of all supports; classes with few images can have fewer than others."""
        super().__init__(backbone, classes, loss)
        self.register_buffer("support_vectors", torch.zeros(supports, latent))
        self.register_buffer("support_classes", torch.zeros(supports, dtype=torch.long))

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        backbone = self.encoder.backbone
        assert isinstance(backbone, Backbone)
        return backbone

    @property
    def support_labels(self) -> list[int]:
        return self.support_classes.tolist()

    def set_supports(self, vectors: Tensor, classes: Tensor) -> None:
        """Set the supports: S×d latents and S class indices; S is that of the constructor."""
        if vectors.shape != self.support_vectors.shape:
            raise ValueError(f"{tuple(vectors.shape)} vectors for {tuple(self.support_vectors.shape)} supports")
        self.support_vectors.copy_(vectors.detach())
        self.support_classes.copy_(classes)
