"""A memory of the training images' latents: supports that need not be embedded, a step costs its queries only."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sic.training.base import Candidates


@dataclass
class Drawn:
    """What each query of a step is compared with: C·K vectors in order of class, some of them for some queries only."""

    vectors: Tensor
    """C·K×d; 0 where a class has no more."""
    rows: Tensor
    """C×K positions among the training images; -1: none."""
    counts: Tensor
    """N×C×K: whether a query is compared with it; never with its own image."""


class SupportBank:
    """The latest latent of every training image, n×d, and who of them may stand for each class.

    It is not part of a checkpoint: those are written right after all latents were made anew, and a resumed run makes
    the same ones from the same weights.
    """

    def __init__(self, latents: Tensor, candidates: Candidates, supports_per_class: int, seed: int) -> None:
        self.latents, self.supports_per_class, self.seed = latents, supports_per_class, seed
        classes = [torch.tensor(candidates[label], device=latents.device) for label in sorted(candidates)]
        self.members = torch.cat(classes)
        """Images that may be supports, in order of class."""
        self.sizes = torch.tensor([len(members) for members in classes], device=latents.device)
        """How many each class has, C."""
        self.starts = self.sizes.cumsum(0) - self.sizes
        """Where each class begins in `members`, C."""
        self.labels = torch.full((len(latents),), len(classes), device=latents.device)
        """The class that an image may stand for, n; C: none."""
        self.labels[self.members] = torch.arange(len(classes), device=latents.device).repeat_interleave(self.sizes)

    def remember(self, rows: Tensor, latents: Tensor) -> None:
        """What the images `rows` look like now."""
        self.latents[rows] = latents.detach().to(self.latents)

    def draw(self, rows: Tensor, latents: Tensor, step: int) -> Drawn:
        """Supports for queries that are the images `rows`, with latents N×d.

        A class's supports are its images among the queries themselves, as they are the freshest and gradients reach
        them, then random ones of the bank. There is one more than needed, for the query that is one of them.
        """
        number, classes, width = len(rows), len(self.sizes), self.supports_per_class + 1
        labels = self.labels[rows]
        earlier = (labels[:, None] == labels[None]).tril(-1).sum(1)
        in_batch = labels.new_zeros(classes + 1).index_add(0, labels, torch.ones_like(labels))[:classes]
        random, exists = self._random(width, step)
        asked = torch.zeros_like(self.labels, dtype=torch.bool).index_fill(0, rows, True)
        free = exists & ~asked[random]
        place = torch.where(free, in_batch[:, None] + free.cumsum(1) - 1, width)
        # Everything goes to its place in its class's line, and what finds none to a place that is cut off: the
        # numbers of those are known to the device only.
        line = labels.new_full((classes + 1, width + 1), -1)
        line[labels, earlier.clamp_max(width)] = torch.arange(number, device=rows.device)
        everyone = torch.arange(number, number + classes * width, device=rows.device).view(classes, width)
        line[:classes].scatter_(1, place.clamp_max(width), everyone)
        line = line[:classes, :width]
        nobody = latents.new_zeros(1, latents.shape[1])
        vectors = torch.cat([latents, self.latents[random.flatten()].to(latents), nobody])
        who = torch.where(line < 0, len(vectors) - 1, line)
        drawn = torch.cat([rows, random.flatten(), rows.new_full((1,), -1)])[who]
        return Drawn(vectors[who.flatten()], drawn, self._compared(drawn >= 0, labels, earlier))

    def _compared(self, exists: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        """N×C×K: the first supports of every class, C×K; for a query that stands in its class's line itself, the others
        of that line. `labels`: the line that it may stand in, N; `places`: where, N."""
        number, width = len(labels), exists.shape[1]
        position = torch.arange(width, device=exists.device)
        first = position < self.supports_per_class
        exists = torch.cat([exists, exists.new_zeros(1, width)])
        result = (exists & first).expand(number, -1, -1).clone()
        stands = (places < width)[:, None]
        own = exists[labels] & (position != places[:, None]) & (first | stands)
        result[torch.arange(number, device=labels.device), labels] = own
        return result[:, :-1]

    def _random(self, number: int, step: int) -> tuple[Tensor, Tensor]:
        """Different random members of every class, C×`number`, and whether the class has so many."""
        state = np.random.SeedSequence((self.seed, step)).generate_state(1, np.uint64)
        generator = torch.Generator(self.sizes.device).manual_seed(int(state[0] >> 1))
        chance = torch.rand(len(self.sizes), number, generator=generator, device=self.sizes.device, dtype=torch.float64)
        taken = self.sizes.new_zeros(len(self.sizes), 0)
        for turn in range(number):
            left = (self.sizes - turn).clamp_min(1)
            pick = (chance[:, turn] * left).long()  # counts those that are not taken: step over the others
            for before in taken.sort(dim=1).values.unbind(1):
                pick = pick + (pick >= before)
            taken = torch.cat([taken, pick[:, None]], dim=1)
        exists = torch.arange(number, device=taken.device) < self.sizes[:, None]
        return self.members[torch.where(exists, self.starts[:, None] + taken, 0)], exists
