"""Latents of image files. Those of a model's own images are kept in its directory, so that none is embedded twice."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from sic.data.dataset import Progress, Sample
from sic.data.images import Preprocessing
from sic.data.loading import readable_batches
from sic.files import Stamp, inside, stamp_of, write_atomically
from sic.methods.sic import Encoder
from sic.version import __version__

CACHE = "latents.safetensors"


class Latents:
    """`f⁺` of images by their ids, on the CPU: what was embedded in this process and, with a folder, before."""

    def __init__(self, encoder: Encoder, preprocessing: Preprocessing, folder: Path | None = None) -> None:
        """`folder`: the model directory that keeps them."""
        self.encoder, self.preprocessing, self.folder = encoder, preprocessing, folder
        self.unreadable: dict[str, str] = {}
        """Ids of images that cannot be read, with the reason."""
        self.problem: str | None = None
        """A sentence, if the latents could not be kept."""
        self._known: dict[str, tuple[Stamp, Tensor]] = {}
        self._key: str | None = None
        if folder is not None:
            self._key = _key(encoder, preprocessing)
            self._known = _read(inside(folder / CACHE, folder), self._key, self._size)

    @property
    def _size(self) -> int:
        return self.encoder.projection.out_features

    def embed(self, samples: Sequence[Sample], progress: Progress | None = None, *, keep: bool = True) -> None:
        """Make sure that the latents of all samples that can be read are known; unchanged files are not read again.

        Args:
            samples: Images with ids that are unique in the model's data.
            progress: Told how many of the images that were not known are embedded.
            keep: Write what is new to the model directory, as `keep` does.
        """
        stamps = {sample.id: stamp_of(sample.path) for sample in samples}
        missing = []
        for sample in samples:
            if sample.id not in self._known or self._known[sample.id][0] != stamps[sample.id]:
                self._known.pop(sample.id, None)
                if sample.id not in self.unreadable:
                    missing.append(sample)
        if missing:
            self._compute(missing, stamps, progress)
            if keep:
                self.keep()

    @torch.no_grad()
    def _compute(self, samples: Sequence[Sample], stamps: dict[str, Stamp | None], progress: Progress | None) -> None:
        done = 0
        device = next(self.encoder.parameters()).device
        for images, reasons in readable_batches([sample.path for sample in samples], self.preprocessing, device):
            found = iter(self.encoder(images).cpu() if len(images) else [])
            for sample, reason in zip(samples[done:], reasons, strict=False):
                stamp = stamps[sample.id]
                if reason is not None:
                    self.unreadable[sample.id] = reason
                else:
                    self._known[sample.id] = stamp or (0, 0), next(found)
            done += len(reasons)
            if progress is not None:
                progress(done, len(samples))

    def __contains__(self, id: str) -> bool:
        return id in self._known

    def of(self, ids: Sequence[str]) -> Tensor:
        """len(ids)×d, of embedded images."""
        if not ids:
            return torch.zeros(0, self._size)
        return torch.stack([self._known[id][1] for id in ids])

    def replace(self, id: str, latent: Tensor) -> None:
        """Another latent for a known image."""
        self._known[id] = self._known[id][0], latent

    def include(self, other: "Latents") -> None:
        """Take over what is known elsewhere of the same model."""
        self._known = other._known | self._known

    def keep(self) -> None:
        """Write all that is known to the model directory, where there is one, beside what others have written."""
        if self.folder is None or self._key is None or not self._known:
            return
        file = self.folder / CACHE
        known = _read(inside(file, self.folder), self._key, self._size) | self._known
        about = {"key": self._key, "images": [[id, stamp] for id, (stamp, _) in known.items()]}
        values = torch.stack([latent for _, latent in known.values()])
        data = save_tensors({"latents": values}, metadata={"sic": json.dumps(about, ensure_ascii=False)})
        try:
            write_atomically(file, data)
        except OSError as error:
            self.problem = f"{self.folder} cannot keep the latents ({error.strerror}): they take time again."


def _key(encoder: Encoder, preprocessing: Preprocessing) -> str:
    """Changes whenever the latents of the same file would: weights, preprocessing, or the code."""
    digest = hashlib.sha256(json.dumps([__version__, asdict(preprocessing)]).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(file: Path, key: str, size: int) -> dict[str, tuple[Stamp, Tensor]]:
    """What the file holds; nothing where it is of another model or damaged."""
    try:
        with safe_open(file, framework="pt") as content:
            about = json.loads(content.metadata()["sic"])
            values = content.get_tensor("latents")
        if about["key"] != key or values.shape[1:] != (size,) or values.dtype != torch.float32:
            return {}
        rows = zip(about["images"], values, strict=True)
        return {id: ((int(stamp[0]), int(stamp[1])), latent) for (id, stamp), latent in rows}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError):
        return {}
