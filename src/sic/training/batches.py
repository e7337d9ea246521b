"""The batches of a fit: queries and supports, put together in one loader worker as bytes.

A batch is a function of (seed, epoch, step) alone: it does not depend on the number of workers, and a resumed run sees
the batches that the uninterrupted one would have seen. Several processes share a batch (`Share`, `gathered`).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from sic.bcos.norms import processes
from sic.data.dataset import Sample
from sic.data.images import Preprocessing
from sic.data.labels import Targets
from sic.data.loading import PixelSource, batch_on_cpu, loader
from sic.data.parcel import Parcel
from sic.data.transforms import Moves, TrainingTransform, evaluation_view
from sic.training.penalties import query_grids


@dataclass(frozen=True)
class Share:
    """The part of a whole that is this process's; parts differ by one at most, and are in order."""

    rank: int = 0
    processes: int = 1

    def of(self, total: int) -> slice:
        """
        >>> [Share(rank, 3).of(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(total * self.rank // self.processes, total * (self.rank + 1) // self.processes)


def gathered(part: Tensor, total: int | None = None) -> Tensor:
    """The whole of which every process has its share; `total`: its length, if it is known without asking the others.

    Every process must go on to the same loss of the whole: gradients are then right once they are averaged over
    processes, for what comes before (each has its share of them) and for what follows (all have the same).
    """
    if processes() == 1:
        return part
    if total is None:
        count = torch.tensor(len(part), device=part.device)
        dist.all_reduce(count)
        total = int(count)
    return _Gathered.apply(part, total)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, total: int) -> Tensor:  # type: ignore[override]
        number = processes()
        shares = [Share(rank, number).of(total) for rank in range(number)]
        lengths = [share.stop - share.start for share in shares]
        ctx.share, ctx.number = shares[dist.get_rank()], number
        padded = F.pad(part, [0, 0] * (part.dim() - 1) + [0, max(lengths) - len(part)])
        parts = [torch.empty_like(padded) for _ in range(number)]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        # The others have the same gradient, so there is nothing to be asked. Averaging will divide by their number.
        return gradient[ctx.share] * ctx.number, None


BLANK = np.zeros((1, 1, 3), np.uint8)


def support_candidates(samples: Sequence[Sample]) -> dict[int, list[int]]:
    """Positions of the images that may stand for each class: those with exactly one label."""
    candidates: dict[int, list[int]] = defaultdict(list)
    for position, sample in enumerate(samples):
        if len(sample.labels) == 1:
            candidates[sample.labels[0]].append(position)
    return dict(candidates)


@dataclass
class Batch(Parcel):
    """Bytes N×3×S×S and targets N×C (see `sic.data.labels`) of queries and of supports, and the supports' classes.

    Where several processes train together, each has its share of the pixels, and all of the rest."""

    queries: Tensor
    """Pixels; `moves` are still to be applied where there are any."""
    moves: Moves | None
    """Random transforms of the queries that the device applies."""
    rows: Tensor
    """Positions of the queries among the training images."""
    targets: Tensor
    supports: Tensor
    support_rows: Tensor
    """Positions of the supports among the training images."""
    support_targets: Tensor
    support_classes: Tensor
    grids: Tensor
    """Queries for grids of images of different classes, G×n: their places in the batch."""

    def pin_memory(self) -> "Batch":
        """Called by the loader: pinned memory travels while the device computes."""

        def pinned(part: Any) -> Any:
            if part is None or isinstance(part, Tensor):
                return None if part is None else part.pin_memory()
            return replace(part, **{f.name: pinned(getattr(part, f.name)) for f in fields(part)})

        return pinned(self)


class TrainingBatches(Dataset[Batch]):
    """The batch of an (epoch, step)."""

    share = Share()

    def __init__(
        self,
        pixels: PixelSource,
        targets: Tensor | Targets,
        candidates: dict[int, list[int]],
        preprocessing: Preprocessing,
        transform: TrainingTransform,
        batch_size: int,
        supports_per_class: int,
        seed: int,
        *,
        multi_label: bool = False,
        ways: int | None = None,
        on_device: bool = False,
        resident: bool = False,
    ) -> None:
        """`ways`: so many classes have supports and count in a batch, the queries' own among them; None: all have.
        `on_device`: leave it to the device to move the queries' pixels. `resident`: the device holds the views of all
        images, so batches need no pixels."""
        self.multi_label, self.ways, self.on_device, self.resident = multi_label, ways, on_device, resident
        self.pixels, self.targets, self.preprocessing, self.transform = pixels, targets, preprocessing, transform
        self.candidates = {label: np.asarray(candidates[label]) for label in sorted(candidates)}
        self.supports_per_class, self.seed = supports_per_class, seed
        self.steps = max(1, round(len(pixels) / batch_size))
        self.batch_size = len(pixels) // self.steps
        self._order = -1, np.arange(0)
        """The epoch that it is for, and the order of the images in it."""

    def __len__(self) -> int:
        return self.steps

    @property
    def images(self) -> int:
        """How many a step embeds; with `ways`, about so many."""
        sizes = [min(self.supports_per_class, len(members)) for members in self.candidates.values()]
        return self.batch_size + sum(sizes[: self.ways])

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, step = key
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng((self.seed, epoch)).permutation(len(self.pixels))
        queries = self._order[1][step * self.batch_size : (step + 1) * self.batch_size]
        rng = np.random.default_rng((self.seed, epoch, step + 1))  # a 0 would repeat the stream of the line above
        supports, classes = self._draw_supports(queries, rng)
        targets = self.targets[queries]
        if self.ways is not None:
            targets[:, np.isin(np.arange(targets.shape[1]), classes, invert=True)] = torch.nan
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        own = self.share.of(len(queries))
        images = [BLANK if self.resident else self.pixels[i] for i in queries[own]]
        # Chance is the same however many processes there are, so it needs something for the places of the others.
        everyone = [BLANK] * own.start + images + [BLANK] * (len(queries) - own.stop)
        canvas = self._views([]) if self.resident else self.transform.canvas(images)
        moves = self.transform.draw(everyone, generator)
        moves = moves and moves[own]
        return Batch(
            canvas if self.on_device else self.transform.apply(canvas, moves),
            moves if self.on_device else None,
            torch.from_numpy(queries),
            targets,
            self._views([] if self.resident else supports[self.share.of(len(supports))]),
            torch.from_numpy(supports),
            self.targets[supports],
            torch.from_numpy(classes),
            query_grids(targets, self.multi_label, rng),
        )

    def _views(self, rows: Sequence[int] | np.ndarray) -> Tensor:
        return evaluation_view([self.pixels[row] for row in rows], self.preprocessing)

    def _draw_supports(self, queries: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Random images of the classes; not the queries themselves where a class has others."""
        rows, classes = [], []
        for label in self._draw_classes(queries, rng):
            members = self.candidates[label]
            number = min(self.supports_per_class, len(members))
            asked = np.isin(members, queries)
            rows.append(np.concatenate([rng.permutation(members[~asked]), rng.permutation(members[asked])])[:number])
            classes.append(np.full(number, label))
        return np.concatenate(rows), np.concatenate(classes)

    def _draw_classes(self, queries: np.ndarray, rng: np.random.Generator) -> list[int]:
        """The queries' classes and random others up to `ways`, in order; with no `ways`, all."""
        if self.ways is None:
            return list(self.candidates)
        own = (self.targets[queries] == 1).any(dim=0).numpy()
        order = rng.permutation(len(own))
        order = np.concatenate([order[own[order]], order[~own[order]]])
        return sorted(order[: max(self.ways, own.sum())].tolist())


class EpochSteps(Sampler[tuple[int, int]]):
    """(epoch, step) for every step; Lightning announces each epoch but, in a resumed run, the first."""

    def __init__(self, steps: int, epoch: int = 0) -> None:
        self.steps, self.epoch = steps, epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, step) for step in range(self.steps)])


class Views(Dataset[tuple[Tensor, Tensor]]):
    """Evaluation views, 3×S×S bytes, and their targets."""

    share = Share()

    def __init__(self, pixels: PixelSource, targets: Tensor | Targets, preprocessing: Preprocessing) -> None:
        self.pixels, self.targets, self.preprocessing = pixels, targets, preprocessing

    def __len__(self) -> int:
        own = self.share.of(len(self.pixels))
        return own.stop - own.start

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index += self.share.of(len(self.pixels)).start
        return evaluation_view([self.pixels[index]], self.preprocessing)[0], self.targets[index]


def training_loader(batches: TrainingBatches, workers: int, epoch: int) -> DataLoader[Batch]:
    """Batches of every epoch from `epoch` on."""
    return loader(
        batches,
        workers=workers,
        sampler=EpochSteps(len(batches), epoch),
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def view_loader(views: Views, workers: int, batch_size: int | None = None) -> DataLoader[tuple[Tensor, Tensor]]:
    """Views in order; by default in batches that suit the device."""
    suitable = 128 if torch.cuda.is_available() else batch_on_cpu(views.preprocessing.size)
    return loader(
        views,
        batch_size or suitable,
        workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
