"""How many images can be explained at once: as many as fit into memory."""

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sic.bcos import explaining
from sic.methods import Classifier

ON_CPU, ON_GPU = 16, 256
"""The most at once: more are not faster, and results are to appear soon."""
CPU_MEMORY = 2 << 30
"""Bytes that explanations may take on the CPU; on a GPU it is half of what is free."""

_known: WeakKeyDictionary[Classifier, dict[tuple[int, ...], int]] = WeakKeyDictionary()


def images_at_once(classifier: Classifier, like: Tensor, maps: int = 1) -> int:
    """How many images such as `like`, 3×H×W, can be explained in one pass, each with so many maps."""
    sizes = _known.setdefault(classifier, {})
    shape = tuple(like.shape)
    if shape not in sizes:
        sizes[shape] = _held(classifier, like)
    results = 8 * maps * like[0].numel() * like.element_size()  # six channels of weights, a map, a product
    wanted = sizes[shape] * 5 // 4 + results  # gradients on their way are not among what is held
    limit = ON_GPU if like.is_cuda else ON_CPU
    return max(1, min(limit, _memory(like.device) // wanted))


def in_chunks(classifier: Classifier, views: Iterable[Tensor], maps: int = 1) -> Iterator[Tensor]:
    """Views 3×H×W as batches N×3×H×W that can be explained in one pass; no more views are taken than are in one."""
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
    """Bytes that a forward pass keeps for the backward pass of one image."""
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {value.untyped_storage().data_ptr() for value in classifier.state_dict().values()}
    with explaining(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = classifier(torch.zeros_like(image)[None])  # alive until all is counted: storages are used again
    del logits
    return sum(size for place, size in held.items() if place not in weights)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_MEMORY
    free = torch.cuda.mem_get_info(device)[0]
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 2
