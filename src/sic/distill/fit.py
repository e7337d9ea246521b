"""The distillation itself: rounds of steps, the learning rate, what is saved between them."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from sic.bcos import BatchNormUncentred2d, fade
from sic.data.dataset import Progress
from sic.distill.examination import Examination
from sic.distill.images import Crops
from sic.distill.step_sizes import relative_groups, relative_sizes
from sic.distill.student import CALIBRATION, Losses, Student, compare
from sic.distill.teacher import Lesson, Teacher, stage_maps
from sic.errors import SicError
from sic.machines import Machines
from sic.training.trainer import checkpoint, lightning_trainer, quiet_lightning, run_trainer

CHECKPOINT = "last.ckpt"
ROUNDS_PER_CHECKPOINT = 8
CURVE = "curve.json"
EXAMINED_EVERY = 0.09
"""Share of the work between two looks at labelled images."""
LOSSES = [field.name for field in fields(Losses)]
PLAIN_SHARE = 0.25
"""Share of the work, at the end, that shows crops as they are, whatever `Plan.mixup` says."""
MAY_DIFFER = ("images", "minutes", "compiled")
"""What a resumed distillation may plan otherwise."""
RECALIBRATED = 64
"""Batches over which the norms' statistics are averaged in the end."""


@dataclass(frozen=True)
class Plan:
    """How to distil. Exactly one of `images` and `minutes` limits the work."""

    images: int | None = None
    """Crops to show to the student."""
    minutes: float | None = None
    """Time to train."""
    size: int = 128
    """Side of the student's crops in pixels."""
    final_size: int = 192
    """The same for the last `final_share` of the work."""
    final_share: float = 0.25
    teacher_scale: float = 1.15
    """Side of the teacher's crops, relative to the student's."""
    batch_size: int = 512
    lr: float = 0.02
    """Largest step of a weight, relative to the size of its layer's weights."""
    clip: float = 2.0
    mixup: float = 0.0
    """Share of the crops that are blended with another one, up to the last `PLAIN_SHARE` of the work."""
    fade: float = 0.0
    """Share of the work over which the student turns from the teacher's network into a B-cos network; 0: at once."""
    warm_up: int = 500
    """Steps until the learning rate is reached."""
    steps_per_round: int = 250
    """Steps between checkpoints, where there is so much to do."""
    seed: int = 0
    compiled: bool = False

    @property
    def round_steps(self) -> int:
        """Steps between checkpoints, at most those of the whole work."""
        if self.images is None:
            return self.steps_per_round
        return min(self.steps_per_round, -(-self.images // self.batch_size))

    def learning_rate(self, done: float, step: int) -> float:
        """At a share `done` of the work: a linear rise, then a cosine to 0."""
        return self.lr * min(1.0, (step + 1) / self.warm_up) * (1 + math.cos(math.pi * min(1.0, done))) / 2

    def sizes(self, done: float) -> tuple[int, int]:
        """Sides of the student's and the teacher's crops, multiples of 32."""
        size = self.size if done < 1 - self.final_share else self.final_size
        return size, 32 * round(size * self.teacher_scale / 32)


class _Steps(IterableDataset[int]):
    """The steps of a round: batches are drawn where the images are."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.number))


class Distillation(lightning.LightningModule):
    """Fits a student to a teacher on bytes N×3×H×W."""

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        pixels: Tensor,
        plan: Plan,
        examination: Examination | None,
        progress: Progress | None,
    ) -> None:
        super().__init__()
        self.student = student.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # In a list: the teacher is neither trained nor saved.
        self.teaching = [teacher.to(memory_format=torch.channels_last)]  # type: ignore[call-overload]
        self.pixels, self.plan, self.examination, self.progress = pixels, plan, examination, progress
        self.seen = 0
        """Images shown so far, by all processes."""
        self.spent = 0.0
        """Seconds of training before this start."""
        self.curve: list[dict[str, float]] = []
        """Losses of each round, and now and then the share of right answers."""
        self.sizes = relative_sizes(self.student)
        """Of the parameters at the beginning; those of trained ones would give the optimizer other groups."""
        self._examined = 0.0
        self._began = 0.0
        self._sums: list[Tensor] = []
        # Without the classifiers: their temperatures would be constants of what is compiled.
        self._stage_maps = torch.compile(stage_maps, dynamic=False) if plan.compiled else stage_maps
        self._compare = torch.compile(compare, dynamic=False) if plan.compiled else compare

    @property
    def done(self) -> float:
        """Share of the work."""
        if self.plan.images is not None:
            return self.seen / self.plan.images
        return (self.spent + time.monotonic() - self._began) / (60 * (self.plan.minutes or 1))

    def configure_optimizers(self) -> Any:
        groups = relative_groups(self.student, self.sizes)
        return torch.optim.AdamW(groups, lr=self.plan.lr, fused=self.device.type == "cuda")

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.plan.clip)

    def on_fit_start(self) -> None:
        self.teaching[0].to(self.device)
        self._faded = torch.zeros((), device=self.device)
        self._began = time.monotonic()

    def on_train_epoch_start(self) -> None:
        self._size, self._teacher_size = self.plan.sizes(self.done)
        # A tensor can change without compiling anew; the number 1 takes biases and powers out of the network.
        self._fading = self.done < self.plan.fade
        fade(self.student.backbone, self._faded if self._fading else 1.0)

    def crops(self, index: int) -> Crops:
        """Those of a step, drawn anew for every (seed, round, step, process)."""
        generator = np.random.default_rng((self.plan.seed, self.current_epoch, index, self.global_rank))
        number = max(1, self.plan.batch_size // self.trainer.world_size)
        rows = torch.from_numpy(generator.integers(0, len(self.pixels), number)).to(self.pixels.device)
        mixup = self.plan.mixup if self.done < 1 - PLAIN_SHARE else 0.0
        return Crops.draw(self.pixels[rows].to(self.device, non_blocking=True), generator, mixup)

    @torch.no_grad()
    def lesson(self, images: Tensor) -> Lesson:
        teacher = self.teaching[0]
        return teacher.lesson(self._stage_maps(teacher.backbone, images))

    def training_step(self, batch: int, index: int) -> Tensor:
        for group in self.optimizers().param_groups:  # type: ignore[union-attr]
            group["lr"] = group["size"] * self.plan.learning_rate(self.done, self.global_step)
        if self._fading:
            self._faded.fill_(min(1.0, self.done / self.plan.fade))
        crops = self.crops(index)
        right = self.lesson(crops.at(self._teacher_size))
        own = self.student.lesson(self._stage_maps(self.student.backbone, crops.at(self._size)))
        losses = self._compare(own, right)
        self._sums.append(torch.stack([getattr(losses, name) for name in LOSSES]).detach())
        self.seen += len(crops.images) * self.trainer.world_size
        return losses.total

    def on_train_epoch_end(self) -> None:
        means = torch.stack(self._sums).mean(0).tolist()
        self._sums = []
        if not math.isfinite(sum(means)):
            raise SicError("The loss became NaN or infinite; try a lower --lr. The last checkpoint is kept.")
        seconds = self.spent + time.monotonic() - self._began
        entry: dict[str, float] = {"images": self.seen, "seconds": round(seconds, 1), "size": self._size}
        entry |= dict(zip(LOSSES, means, strict=True))
        if self.examination is not None and self.global_rank == 0 and self.done >= self._examined + EXAMINED_EVERY:
            assert self.student.classifier is not None
            self._examined = self.done
            self.student.eval()
            with torch.autocast(self.device.type, enabled=False):
                entry["top1"] = self.examination.top(self.examination.answers(self.student.classifier))
            self.student.train()
        self.curve.append(entry)
        (Path(self.trainer.default_root_dir) / CURVE).write_text(json.dumps(self.curve, indent=1))
        if self.progress is not None:
            self.progress(min(1000, round(1000 * self.done)), 1000)
        if self.done >= 1:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        temperature = self.student.classifier.temperature if self.student.classifier is not None else 1.0
        checkpoint["distillation"] = {
            "seen": self.seen,
            "spent": self.spent + time.monotonic() - self._began,
            "curve": self.curve,
            "temperature": temperature,
            "plan": asdict(self.plan),
            "sizes": self.sizes,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["distillation"]
        self._require_same_plan(state["plan"])
        self.sizes = state.get("sizes", self.sizes)
        self.seen, self.spent, self.curve = state["seen"], state["spent"], state["curve"]
        if self.student.classifier is not None:
            self.student.classifier.temperature = state["temperature"]

    def _require_same_plan(self, before: Mapping[str, Any]) -> None:
        """With another seed, for example, the held-out images would be among those that were trained on."""
        other = [
            f"{name.replace('_', ' ')} ({before[name]}, now {value})"
            for name, value in asdict(self.plan).items()
            if name in before and before[name] != value and name not in MAY_DIFFER
        ]
        if other:
            raise SicError(
                f"--resume: the distillation in {self.trainer.default_root_dir} began with another {', '.join(other)}; "
                "give the same options, or remove the folder to begin anew."
            )

    @torch.no_grad()
    def recalibrate(self, size: int) -> None:
        """Average the norms' statistics over crops of `size` px with the final weights."""
        norms = [layer for layer in self.student.modules() if isinstance(layer, BatchNormUncentred2d)]
        kept = [norm.momentum for norm in norms]
        self.student.train()
        generator = np.random.default_rng((self.plan.seed, 2**31))
        for batch in range(RECALIBRATED):
            for norm in norms:
                norm.momentum = 1 / (batch + 1)
            rows = torch.from_numpy(generator.integers(0, len(self.pixels), min(128, self.plan.batch_size)))
            self.student(Crops.draw(self.pixels[rows.to(self.pixels.device)].to(self.device), generator).at(size))
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum
        self.student.eval()


def fit(
    student: Student,
    teacher: Teacher,
    pixels: Tensor,
    plan: Plan,
    folder: Path,
    *,
    resume: bool = False,
    examination: Examination | None = None,
    machines: Machines | None = None,
    progress: Progress | None = None,
) -> Distillation:
    """Train the student; checkpoints are in `folder`, and `resume` continues from the last one."""
    machines = machines or Machines()
    folder.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.is_available()
    quiet_lightning()
    lightning.seed_everything(plan.seed, verbose=False)
    if gpu and pixels.nbytes < 0.5 * torch.cuda.mem_get_info()[0]:
        pixels = pixels.cuda()
    module = Distillation(student, teacher, pixels, plan, examination, progress)
    if not resume:
        size, teacher_size = plan.sizes(0.0)
        crops = Crops.draw(pixels[:CALIBRATION].cpu(), np.random.default_rng(plan.seed))
        said = teacher(crops.at(teacher_size)).logits
        if said is not None:
            fade(student.backbone, 0.0 if plan.fade else 1.0)
            student.calibrate(crops.at(size), said)
    trainer = lightning_trainer(
        folder,
        machines,
        [checkpoint(folder, Path(CHECKPOINT).stem, ROUNDS_PER_CHECKPOINT)],
        max_epochs=-1,
        # Biases that have faded get no gradient.
        strategy="ddp_find_unused_parameters_true" if machines.processes > 1 and plan.fade else "auto",
        benchmark=gpu,
        gradient_clip_val=plan.clip,
    )
    steps = DataLoader(_Steps(plan.round_steps), batch_size=None)
    run_trainer(trainer, module, steps, start=folder / CHECKPOINT if resume else None)
    fade(student.backbone, 1.0)
    trainer.save_checkpoint(folder / CHECKPOINT)
    module.to("cuda" if gpu else "cpu")
    module.recalibrate(plan.final_size)
    return module
