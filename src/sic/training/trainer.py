"""The trainer: Lightning's loop over the batches of a run, in one process or in several together."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from sic.backbones.compiled import is_sequence
from sic.data.images import Preprocessing
from sic.data.labels import Targets
from sic.data.transforms import TrainingTransform
from sic.errors import SicError
from sic.machines import Machines
from sic.settings import Settings
from sic.training.base import Training, Validity
from sic.training.batches import Share, TrainingBatches, Views, training_loader, view_loader
from sic.training.data import Images, TrainingData
from sic.training.history import (
    BEST,
    HISTORY,
    LAST,
    History,
    Reporter,
    WholeCheckpoints,
    checkpoint_folder,
    starting_point,
)
from sic.training.memory import bound_memory

RESIDENT = 0.1
"""Share of a GPU's free memory that the training images may take."""
WAITS_FOR_PYTHON = 300
"""Images of 224 px: a compiled step of fewer is over on a GPU before its kernels are launched (results/speed.json)."""


def quiet_lightning() -> None:
    """Keep Lightning from talking about things that our users did not choose."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def worth_replaying(images: int, size: int) -> bool:
    """Whether a compiled step of so many images should be replayed as CUDA graphs."""
    return images * (size / 224) ** 2 <= WAITS_FOR_PYTHON


def lightning_trainer(folder: Path, machines: Machines, callbacks: Sequence[lightning.Callback], **options: Any) -> Any:
    """A Lightning trainer as every training here uses it: silent, one process per device, bfloat16 on GPUs.

    Args:
        folder: Where relative files of the run belong.
        machines: Devices and machines that train together.
        callbacks: Such as `checkpoint`.
        **options: Of `lightning.Trainer`, such as `max_epochs`.
    """
    gpu = torch.cuda.is_available()
    return lightning.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=machines.devices,
        num_nodes=machines.nodes,
        precision="bf16-mixed" if gpu else "32-true",
        callbacks=list(callbacks),
        plugins=[WholeCheckpoints()],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def checkpoint(folder: Path, name: str, every: int, **monitored: Any) -> ModelCheckpoint:
    """A callback that keeps one checkpoint, `folder/name.ckpt`, written after every so many epochs."""
    return ModelCheckpoint(
        dirpath=folder,
        filename=name,
        enable_version_counter=False,
        save_on_train_epoch_end=True,
        every_n_epochs=every,
        **monitored,
    )


def run_trainer(trainer: Any, module: Any, *loaders: Any, start: Path | None = None) -> None:
    """Train `module` on the first of the loaders and validate it on the second; go on from the checkpoint `start`.

    Ctrl-C is a KeyboardInterrupt, and the end of another process a `LostProcess`.
    """
    try:
        trainer.fit(module, *loaders, ckpt_path=start, weights_only=True)
    except SystemExit:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if trainer.world_size > 1 and lost(error):
            raise LostProcess from None
        raise


def bound_step(module: Training, data: TrainingData, machines: Machines, reporter: Reporter) -> None:
    """Let the steps of `optimise` take no more memory than there is; called before anything that takes long."""
    if not torch.cuda.is_available() and not module.settings.compiled:
        batches, _, _ = _loaded(module, data, machines)
        bound_memory(module, Share(0, machines.processes).of(batches.images).stop, reporter)


def optimise(
    module: Training,
    data: TrainingData,
    folder: Path,
    resume: bool,
    workers: int,
    reporter: Reporter,
    machines: Machines,
) -> None:
    """Train `module`: checkpoints of the last and of the best epoch are in `folder`. `resume` continues from them."""
    module.train()  # Lightning keeps the mode that it finds
    settings = module.settings
    batches, embedded, validation = _loaded(module, data, machines)
    replayed = machines.processes == 1 and worth_replaying(batches.images, settings.size)
    module.classifier.backbone.graphs = replayed
    module.embedding = view_loader(embedded, workers)
    module.views = held_views(embedded, workers) if batches.resident else None
    checkpoints = checkpoint_folder(folder)
    start, epochs_done = starting_point(checkpoints, reporter) if resume else (None, 0)
    gpu = torch.cuda.is_available()
    trainer = lightning_trainer(
        folder,
        machines,
        [
            SharingOut([batches, embedded, validation]),
            History(folder / HISTORY, reporter),
            checkpoint(checkpoints, BEST, settings.check_every, monitor="val_rank", mode="max"),
            # After the best one, so that it knows which that is.
            checkpoint(checkpoints, LAST, settings.check_every),
        ],
        max_epochs=settings.epochs,
        check_val_every_n_epoch=settings.check_every,
        strategy=strategy(module, machines, gpu),
        sync_batchnorm=gpu and machines.processes > 1,
        use_distributed_sampler=False,  # `SharingOut` shares batches and views out
        # Looking for the fastest convolutions takes most of a minute, and gains nothing where blocks are compiled.
        benchmark=gpu and settings.compiled and not is_sequence(module.classifier.backbone.network),
        gradient_clip_val=settings.clip,
        num_sanity_val_steps=0,
    )
    try:
        loaders = training_loader(batches, workers, epochs_done), view_loader(validation, workers)
        run_trainer(trainer, module, *loaders, start=start)
    finally:
        # Left to the garbage collector, its workers would not be told to end, and waited for: 5 seconds a fit.
        del module.embedding
        module.views = None


@torch.no_grad()
def validated(module: Training, images: Images, workers: int) -> Validity:
    """How good the classifier of `module` is on `images`, in full precision."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.to(device).eval()
    views = Views(images, Targets(images.samples, module.classifier.classes), Preprocessing.of(module.settings))
    found = [
        (module.classifier(batch.to(device).float() / 255).cpu(), targets)
        for batch, targets in view_loader(views, workers)
    ]
    logits, targets = (torch.cat(part) for part in zip(*found, strict=True))
    return module.validity(logits, targets)


def fits_on_gpu(images: int, settings: Settings, machines: Machines) -> bool:
    """Whether a GPU can hold the views of all training images, from which it makes every batch of a fit."""
    if not torch.cuda.is_available() or machines.processes > 1 or settings.augmentation == "photo":  # it needs more
        return False
    return images * 3 * settings.size**2 <= RESIDENT * torch.cuda.mem_get_info()[0]


def held_views(views: Views, workers: int, device: str = "cuda") -> Tensor:
    """The bytes of all views, N×3×S×S, on a device."""
    size = views.preprocessing.size
    held, done = torch.empty(len(views), 3, size, size, dtype=torch.uint8, device=device), 0
    for some, _ in view_loader(views, workers):
        held[done : done + len(some)] = some
        done += len(some)
    return held


def _loaded(module: Training, data: TrainingData, machines: Machines) -> tuple[TrainingBatches, Views, Views]:
    """The batches that `module` trains on, and the views of training and validation images that it looks at between
    epochs."""
    settings, classes = module.settings, module.classifier.classes
    preprocessing = Preprocessing.of(settings)
    targets = Targets(data.train.samples, classes)
    module.transform = TrainingTransform(settings.augmentation, preprocessing)
    batches = TrainingBatches(
        data.train,
        targets,
        data.candidates if module.draws_supports else {0: [0]},  # which draws nothing, 0 of 1
        preprocessing,
        module.transform,
        settings.batch_size,
        settings.supports_per_class if module.draws_supports else 0,
        settings.seed,
        multi_label=module.multi_label,
        ways=settings.ways,
        on_device=torch.cuda.is_available(),
        resident=fits_on_gpu(len(data.train), settings, machines),
    )
    module.steps_per_epoch = len(batches)
    validation = Views(data.validation, Targets(data.validation.samples, classes), preprocessing)
    return batches, Views(data.train, targets, preprocessing), validation


class LostProcess(SicError):
    """Another process has ended before its time."""

    def __init__(self) -> None:
        super().__init__(
            "A process of this run ended unexpectedly, so all were stopped; run the same command with --resume to "
            "continue after the last finished epoch."
        )


def lost(error: RuntimeError) -> bool:
    """Whether an error says that another process does not answer."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "closed by peer"))


class SharingOut(lightning.Callback):
    """Tells data sets, once that is known, which part of them is for this process."""

    def __init__(self, parts: Sequence[TrainingBatches | Views]) -> None:
        self.parts = parts

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        for part in self.parts:
            smallest = part.batch_size if isinstance(part, TrainingBatches) else len(part.pixels)
            if smallest < trainer.world_size:
                raise SicError(f"{trainer.world_size} processes cannot share {smallest} images; use fewer --devices.")
            part.share = Share(trainer.global_rank, trainer.world_size)


def strategy(module: Training, machines: Machines, gpu: bool) -> Any:
    """Lightning's, for so many processes."""
    if machines.processes == 1:
        return "auto"
    if not module.shared:
        raise SicError(f"--method {module.settings.method} trains on one device; leave --devices and --nodes out.")
    conventional = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in module.modules())
    if conventional and not gpu:
        raise SicError(
            "Several processes can share the batch norms of a conventional network on GPUs only; leave --devices and "
            "--nodes out."
        )
    return DDPStrategy(find_unused_parameters=module.settings.fading > 0)  # biases that have faded are unused
