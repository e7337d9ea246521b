"""Named feature extractors: `@register` puts a builder under its own name, `create` makes a backbone of any form."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sic.backbones.compiled import compiled, compiled_by_blocks, is_sequence
from sic.bcos import IMAGENET_MEAN, IMAGENET_STD, antialias, convert, encode_colours, keep_feature_maps, pad_with
from sic.errors import SicError
from sic.settings import Form, Padding

FORMS: tuple[Form, ...] = get_args(Form)


@dataclass
class Body:
    """A conventional network without its classifier, and what has to be known about it."""

    network: nn.Module
    """Normalised images N×3×H×W → N×F×h×w, or N×F where it pools itself."""
    features: int
    """F."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    example: Tensor | None = None
    """Images on which to measure that its conversion is right; None: our tests have."""
    patch: int | None = None
    """Side of the patch that a feature sees, where that is small and exact: BagNets, which are conventional only."""


class Backbone(nn.Module):
    """RGB images N×3×H×W → globally pooled features N×`features`."""

    mean: Tensor
    std: Tensor
    compiled = False
    """Whether the network is compiled where it is in training mode; elsewhere batches come in every size."""
    graphs = False
    """Whether what is compiled is recorded as CUDA graphs and replayed: small batches wait for nothing else."""
    part: int | None = None
    """Most images of a training step whose activations are in memory at a time; None: all (see `in_parts`)."""

    def __init__(self, network: nn.Module, body: Body, form: Form) -> None:
        super().__init__()
        self.network, self.features, self.form, self.patch = network, body.features, form, body.patch
        self.register_buffer("mean", torch.tensor(body.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(body.std)[:, None, None], persistent=False)
        self._fast: dict[str, Callable[[Tensor], Tensor]] = {}

    def forward(self, images: Tensor) -> Tensor:
        return self.in_parts(self._fastest(self._forward), images)

    def _forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.prepared(images))

    def _fastest(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Compiled where that is wanted."""
        if not (self.compiled and self.training):
            return function
        name = function.__name__
        if name not in self._fast:
            self._fast[name] = self._compiled(function)
        return self._fast[name]

    def _compiled(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        mode = "reduce-overhead" if self.graphs else None
        if not is_sequence(self.network):
            return compiled(function, mode)
        network = compiled_by_blocks(self.network, mode)
        return (
            network if function == self.network.forward else lambda images: self._pooled(network(self.prepared(images)))
        )

    def forget_compiled(self) -> None:
        """Run the network as it is from here on."""
        self.compiled = self.graphs = False
        self._fast.clear()

    def in_parts(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """`function(images)`, for training in parts of at most `part` images.

        No activations are kept: the backward pass computes those of one part after the other again, so its gradients
        are those of the whole batch for any loss of all outputs together. Two things depend on the parts. Batch norms
        take the statistics of a part instead of the batch. Their running statistics are updated once for each part.
        """
        if self.part is None or len(images) <= self.part or not (self.training and torch.is_grad_enabled()):
            return function(images)
        number = -(-len(images) // self.part)
        return torch.cat([self._forgetful(function, part) for part in images.tensor_split(number)])

    def _forgetful(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """`function(images)`, of which the backward pass does the forward pass again instead of remembering it."""

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), unchanged_buffers(self.network)

        return checkpoint(function, images, use_reentrant=False, context_fn=contexts)

    def prepared(self, images: Tensor) -> Tensor:
        """The input of the network: encoded colours N×6×H×W, or normalised images for a conventional one. On a CPU, its
        layout is that of the fastest convolutions (results/cpu.json); training chooses for itself."""
        if images.device.type == "cpu":
            images = images.contiguous(memory_format=torch.channels_last)
        return (images - self.mean) / self.std if self.form == "conventional" else encode_colours(images)

    def pooled(self, prepared: Tensor) -> Tensor:
        """N×F of what the network takes."""
        return self._pooled(self.network(prepared))

    def _pooled(self, out: Tensor) -> Tensor:
        """N×F of what the network gives."""
        if out.dim() != 4:
            return out
        keep_feature_maps(out)
        return out.mean(dim=(2, 3))

    @property
    def map_features(self) -> int:
        """F' of `feature_maps`."""
        return int(getattr(self.network, "num_features", self.features))

    def feature_maps(self, prepared: Tensor) -> Tensor:
        """The last feature maps before pooling, N×F'×h×w (some networks have another F after it)."""
        layers = getattr(self.network, "forward_features", self.network.forward)  # timm's networks pool after them
        maps = self.in_parts(self._fastest(layers), prepared)
        if maps.dim() != 4:
            raise SicError("This needs a backbone with feature maps: choose a convolutional one, not a transformer.")
        return maps

    def pool_maps(self, maps: Tensor) -> Tensor:
        """N×F of the last feature maps; `pooled` in two steps."""
        head = getattr(self.network, "forward_head", None)
        return maps.mean(dim=(2, 3)) if head is None else head(maps)


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Undo what happens to the buffers of `module` here, such as the running statistics of norms."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


class Load(Protocol):
    """Fills a network with weights."""

    @property
    def converted(self) -> bool:
        """Whether they are those of a B-cos network; otherwise of the conventional network that it is made from."""

    def __call__(self, network: nn.Module) -> None: ...


Builder = Callable[[], Body]
_builders: dict[str, Builder] = {}
TIMM = "timm/"


def register(builder: Builder) -> Builder:
    """Decorates a function without arguments; its name becomes the backbone's."""
    _builders[builder.__name__] = builder
    return builder


def names() -> list[str]:
    return sorted(_builders)


def require(name: str) -> None:
    """Refuse a name that nobody registered."""
    if name not in _builders and not name.startswith(TIMM):
        raise SicError(
            f"There is no backbone called {name!r}; choose one of {', '.join(names())}, or {TIMM}NAME for one of timm."
        )


def build(name: str) -> Body:
    """The conventional network of that name, with random weights."""
    require(name)
    if name in _builders:
        return _builders[name]()
    from sic.backbones.libraries import timm_body

    return timm_body(name.removeprefix(TIMM))


def create(
    name: str,
    form: Form = "bcos",
    *,
    b: float = 2,
    antialiased: bool = False,
    padding: Padding = "zeros",
    biases: bool = False,
    load: Load | None = None,
    measure: bool = True,
) -> Backbone:
    """A backbone of a form, filled with weights by `load`. A bcosified one keeps its `biases`, so that they can fade.
    `measure`: check that an unfamiliar network can be traced, which takes seconds and need not be done again."""
    if form not in FORMS:
        raise SicError(f"--form must be one of {', '.join(FORMS)}, not {form!r}.")
    body = build(name)
    network = body.network
    if body.patch is not None and form != "conventional":
        raise SicError(f"{name} is a conventional network only; use another --backbone with --form {form}.")
    if load is not None and not load.converted:
        load(network)
    if form != "conventional":
        example = body.example if measure else None
        network = convert(network, form, b=b, biases=biases, mean=body.mean, std=body.std, example=example)
    if load is not None and load.converted:
        load(network)
    if antialiased:
        antialias(network)
    if padding != "zeros":
        pad_with(network, padding)
    return Backbone(network, body, form)
