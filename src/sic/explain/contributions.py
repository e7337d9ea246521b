"""Contributions to supports, latent units and single neurons, and how many images to explain in one pass."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sic.bcos import bcos_similarity, explaining
from sic.errors import SicError
from sic.methods import SIC, Classifier, Contributions
from sic.supports import Support

ON_CPU, ON_GPU = 16, 256
"""The most images in one pass: more are not faster, and delay the first results."""
CPU_MEMORY = 2 << 30
"""Bytes that explanations may use on the CPU; on a GPU, half of the free memory."""

_known: WeakKeyDictionary[Classifier, dict[tuple[int, ...], int]] = WeakKeyDictionary()


def support_contributions(
    classifier: SIC, images: Tensor, supports: Sequence[int], weights: bool = True
) -> Contributions:
    """Support contributions: `sim(v_i, v̂_i) = ‖v_i‖`, attributed to the pixels of the support's own image.

    Args:
        classifier: The model.
        images: S×3×H×W, the images of the supports.
        supports: Their indices, in the same order.
        weights: Whether to return the dynamic weights, too.
    """
    chunks = []
    number = images_at_once(classifier, images[0]) if len(images) > 1 else 1
    for start in range(0, len(images), number):
        columns = torch.as_tensor(supports[start : start + number], device=images.device)

        def similarity(latents: Tensor, columns: Tensor = columns) -> Tensor:
            similarities = bcos_similarity(latents, classifier.support_vectors, classifier.b)
            return similarities.gather(1, columns[:, None].clone())  # the caller may be in inference mode

        found = classifier.trace(images[start : start + number], similarity, weights=weights)
        chunks.append(found.reshape([len(columns)]))
    return Contributions(
        torch.cat([c.maps for c in chunks]),
        torch.cat([c.weights for c in chunks]),
        torch.cat([c.value for c in chunks]),
        torch.cat([c.constant for c in chunks]),
    )


def support_image(support: Support, like: Tensor) -> Tensor | None:
    """The image of a support, 3×H×W in [0, 1], with the type and on the device of `like`; None if it is not kept."""
    if support.image is None:
        return None
    return torch.from_numpy(support.image.copy()).permute(2, 0, 1).to(like) / 255


def latent_contributions(classifier: SIC, images: Tensor, units: Sequence[int]) -> Contributions:
    """Contributions N×K to K units of `f⁺`."""
    columns = torch.as_tensor(units, device=images.device)
    return classifier.trace(images, lambda latents: latents[:, columns.clone()])


def neuron_contributions(
    classifier: SIC, images: Tensor, layer: str, unit: int, position: tuple[int, int] | None = None
) -> Contributions:
    """Contributions N×1 to one neuron: `unit` of the module `layer` (a name from `named_modules`).

    In a convolutional layer, `position` (row, column) selects a location; without it, locations are summed. In a layer
    of tokens or vectors, `unit` indexes the last dimension and tokens are summed.
    """
    caught: list[Tensor] = []
    thread = threading.get_ident()

    def catch(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        if threading.get_ident() == thread:  # another thread may be using the same model
            caught.append(output)

    def value(_: Tensor) -> Tensor:
        activation = caught[0]
        channels = activation.shape[1 if activation.dim() == 4 else -1]
        if not 0 <= unit < channels:
            raise SicError(f"{layer} has {channels} units; unit {unit} does not exist.")
        if activation.dim() == 4:
            channel = activation[:, unit]
            picked = channel.sum(dim=(1, 2)) if position is None else channel[:, position[0], position[1]]
        else:
            picked = activation[..., unit].reshape(len(activation), -1).sum(dim=1)
        return picked[:, None]

    modules = dict(classifier.named_modules())
    if layer not in modules:
        raise SicError(f"The model has no layer called {layer!r}; `named_modules()` lists them.")
    handle = modules[layer].register_forward_hook(catch)
    try:
        return classifier.trace(images, value)
    finally:
        handle.remove()


def negative_share(maps: Tensor) -> Tensor:
    """The share of the mass of maps that is negative, …×H×W → …; in support contributions a sign of a small T."""
    return maps.clamp(max=0).abs().sum(dim=(-2, -1)) / maps.abs().sum(dim=(-2, -1)).clamp_min(1e-12)


def images_at_once(classifier: Classifier, like: Tensor, maps: int = 1) -> int:
    """How many images of the shape of `like`, 3×H×W, fit into memory in one pass, with this many maps each."""
    sizes = _known.setdefault(classifier, {})
    shape = tuple(like.shape)
    if shape not in sizes:
        sizes[shape] = _held(classifier, like)
    results = 8 * maps * like[0].numel() * like.element_size()  # six channels of weights, a map, a product
    wanted = sizes[shape] * 5 // 4 + results  # gradients in flight are not among the saved tensors
    limit = ON_GPU if like.is_cuda else ON_CPU
    return max(1, min(limit, _memory(like.device) // wanted))


def in_chunks(classifier: Classifier, views: Iterable[Tensor], maps: int = 1) -> Iterator[Tensor]:
    """Group views 3×H×W into batches N×3×H×W that fit into memory; reads no further than the current batch."""
    chunk: list[Tensor] = []
    number = 0
    for view in views:
        if chunk:
            number = number or images_at_once(classifier, chunk[0], maps)
            if len(chunk) == number or view.shape != chunk[0].shape:
                yield torch.stack(chunk)
                chunk, number = [], 0
        chunk.append(view)
    if chunk:
        yield torch.stack(chunk)


def _held(classifier: Classifier, image: Tensor) -> int:
    """Bytes that the forward pass of one image keeps for the backward pass."""
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {value.untyped_storage().data_ptr() for value in classifier.state_dict().values()}
    with explaining(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = classifier(torch.zeros_like(image)[None])  # keep it until all is counted, because storages are reused
    del logits
    return sum(size for place, size in held.items() if place not in weights)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_MEMORY
    free = torch.cuda.mem_get_info(device)[0]
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 2
