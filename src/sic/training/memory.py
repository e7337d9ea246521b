"""The memory of a training step on a CPU: estimated before the fit begins, and bounded by splitting the step."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from sic.backbones.registry import Backbone, unchanged_buffers
from sic.training.base import Training
from sic.training.history import Reporter

GB = 1e9
ACTIVATIONS = 1.2 * GB
"""For the activations of a step. Whole batches that need less are not split."""
FEWEST = 4
"""Images in a part: batch norms need some to compute statistics of."""
WORKING = 1.5
"""What a backward pass takes relative to the activations that were kept for it."""
PROCESSES = 1.5 * GB
"""For Python, the libraries, the loaders and the images on their way."""


def bound_memory(module: Training, images: int, reporter: Reporter) -> None:
    """Split the steps of `module`, each of `images` images, into parts that fit into memory; warn where none do."""
    backbone = module.classifier.backbone
    module.fade()  # a network that fades keeps more
    each = WORKING * kept_per_image(backbone, module.settings.size)
    free = available()
    fixed = PROCESSES + 3 * parameter_bytes(module)  # gradients and AdamW's two means
    room = ACTIVATIONS if free is None else min(ACTIVATIONS, max(0.0, free - fixed))
    part = max(FEWEST, int(room / each))
    backbone.part = part if part < images else None
    needed = fixed + each * min(part, images)
    if enough_memory(needed, free, "use a smaller --size or --backbone", reporter) and backbone.part is not None:
        number = math.ceil(images / part)
        reporter.say(f"To save memory, the {images} images of a step are embedded in {number} parts.")


def check_features(images: int, each: int, reporter: Reporter) -> None:
    """Warn where the features of all images, of `each` bytes, do not fit into memory."""
    less = "use a smaller --size, fewer images, or --no-local-units"
    enough_memory(PROCESSES + images * each, available(), less, reporter)


def enough_memory(needed: float, free: float | None, less: str, reporter: Reporter) -> bool:
    """Whether `free` bytes are enough; a warning says if they are not. `less`: how to need less."""
    if free is None or needed <= free:
        return True
    reporter.warn(
        f"This fit needs about {needed / GB:.1f} GB of memory, and {free / GB:.1f} GB are free: the system may kill "
        f"it; {less}, or close other programs."
    )
    return False


def parameter_bytes(module: nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in module.parameters())


def kept_per_image(backbone: Backbone, size: int) -> float:
    """Bytes that a forward pass in training keeps for the backward pass, for each image of `size` px."""
    was = backbone.training
    try:
        with unchanged_buffers(backbone), torch.random.fork_rng(devices=[]):
            backbone.train()
            one, two = (_kept(backbone, torch.rand(number, 3, size, size)) for number in (1, 2))
    finally:
        backbone.train(was)
    return float(max(two - one, 1))


def _kept(backbone: Backbone, images: Tensor) -> int:
    sizes: dict[int, int] = {}
    kept = []  # or their memory could be used again, and counted once

    def pack(value: Tensor) -> Tensor:
        sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        kept.append(value)
        return value

    device = next(backbone.parameters()).device
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        output = backbone(images.to(device).contiguous(memory_format=torch.channels_last))
    del output
    return sum(sizes.values())


def available() -> float | None:
    """Bytes of memory that this process could still take; None: the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
    return min([free, *_group_limits()])


GROUPS = [
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
]
"""Files with the limit of a container and its use of memory, version 2 and version 1 of control groups."""


def _group_limits() -> list[float]:
    """Bytes that are left within the limit of the container, where there is one."""
    for folder, limit, used, cached in GROUPS:
        try:
            most, now, stat = (Path(folder, name).read_text(encoding="ascii") for name in (limit, used, "memory.stat"))
            kept = dict(line.split() for line in stat.splitlines())
            return [] if most.strip() == "max" else [float(most) - float(now) + float(kept[cached])]
        except (OSError, ValueError, KeyError):
            continue
    return []
