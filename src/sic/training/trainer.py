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
from torch import nn

from sic.data.images import Preprocessing
from sic.data.labels import Targets
from sic.data.transforms import TrainingTransform
from sic.errors import SicError
from sic.machines import Machines
from sic.training.base import Training
from sic.training.batches import Share, TrainingBatches, Views, training_loader, view_loader
from sic.training.data import TrainingData
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
    settings, classes = module.settings, module.classifier.classes
    preprocessing = Preprocessing.of(settings)
    train_targets = Targets(data.train.samples, classes)
    gpu = torch.cuda.is_available()
    module.transform = TrainingTransform(settings.augmentation, preprocessing)
    batches = TrainingBatches(
        data.train,
        train_targets,
        data.candidates if module.draws_supports else {0: [0]},  # which draws nothing, 0 of 1
        preprocessing,
        module.transform,
        settings.batch_size,
        settings.supports_per_class if module.draws_supports else 0,
        settings.seed,
        ways=settings.ways,
        on_device=gpu,
    )
    module.steps_per_epoch = len(batches)
    replayed = machines.processes == 1 and worth_replaying(batches.images, preprocessing.size)
    module.classifier.backbone.graphs = replayed
    embedded = Views(data.train, train_targets, preprocessing)
    module.embedding = view_loader(embedded, workers)
    validation = Views(data.validation, Targets(data.validation.samples, classes), preprocessing)
    checkpoints = checkpoint_folder(folder)
    start, epochs_done = starting_point(checkpoints, reporter) if resume else (None, 0)
    common: dict[str, Any] = {
        "dirpath": checkpoints,
        "enable_version_counter": False,
        "save_on_train_epoch_end": True,
        "every_n_epochs": settings.check_every,
    }
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        check_val_every_n_epoch=settings.check_every,
        accelerator="gpu" if gpu else "cpu",
        devices=machines.devices,
        num_nodes=machines.nodes,
        strategy=strategy(module, machines, gpu),
        sync_batchnorm=gpu and machines.processes > 1,
        use_distributed_sampler=False,  # batches and views are shared out by themselves
        precision="bf16-mixed" if gpu else "32-true",
        # Looking for the fastest convolutions takes most of a minute: as compiling, it pays in long fits only.
        benchmark=gpu and settings.compiled,
        gradient_clip_val=settings.clip,
        callbacks=[
            SharingOut([batches, embedded, validation]),
            History(folder / HISTORY, reporter),
            ModelCheckpoint(filename=BEST, monitor="val_rank", mode="max", **common),
            # After the best one, so that it knows which that is.
            ModelCheckpoint(filename=LAST, **common),
        ],
        plugins=[WholeCheckpoints()],
        default_root_dir=folder,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(
            module,
            training_loader(batches, workers, epochs_done),
            view_loader(validation, workers),
            ckpt_path=start,
            weights_only=True,
        )
    except SystemExit:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if machines.processes > 1 and lost(error):
            raise LostProcess from None
        raise
    finally:
        # Left to the garbage collector, its workers would not be told to end, and waited for: 5 seconds a fit.
        del module.embedding


class LostProcess(SicError):
    """Another process has ended before its time."""

    def __init__(self) -> None:
        super().__init__(
            "A process of this run has ended, and the others with it; the same command with --resume continues after "
            "the last finished epoch."
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
        raise SicError("A conventional network's batch norms need GPUs to be shared; leave --devices and --nodes out.")
    return DDPStrategy(find_unused_parameters=module.settings.fading > 0)  # biases that have faded are unused
