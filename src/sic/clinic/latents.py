"""Latents of a model's images, kept in its directory: an edit of the supports then takes no look at any image."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sic.data.dataset import Progress, Sample
from sic.data.images import Preprocessing, UnreadableImage, read_image, to_tensor
from sic.files import inside, write_atomically
from sic.methods.sic import Encoder
from sic.version import __version__

CACHE = "latents.safetensors"
Stamp = tuple[int, int]
"""Size and time of change of a file: an image whose stamp is another is embedded again."""


@dataclass
class Latents:
    """`f⁺` of images by their ids."""

    rows: dict[str, int]
    values: Tensor
    """n×d, on the CPU."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Ids without latents, and why."""

    def of(self, ids: Sequence[str]) -> Tensor:
        """len(ids)×d."""
        return self.values[[self.rows[id] for id in ids]]


def embed(
    encoder: Encoder,
    preprocessing: Preprocessing,
    folder: Path,
    samples: Sequence[Sample],
    progress: Progress | None = None,
) -> tuple[Latents, bool]:
    """Latents of all samples that can be read, and whether any had to be computed.

    From the cache in `folder` where weights and files are still those that it was made with.
    """
    key = _key(encoder, preprocessing)
    stamps = {sample.id: stamp for sample in samples if (stamp := _stamp(sample.path)) is not None}
    known = _read(inside(folder / CACHE, folder), key, stamps)
    missing = [sample for sample in samples if sample.id not in known]
    fresh, unreadable = _compute(encoder, preprocessing, missing, progress)
    known |= fresh
    values = torch.stack(list(known.values())) if known else torch.zeros(0, 1)
    return Latents({id: row for row, id in enumerate(known)}, values, unreadable), bool(fresh)


def write_cache(
    encoder: Encoder, preprocessing: Preprocessing, folder: Path, samples: Sequence[Sample], latents: Latents
) -> None:
    """Keep latents beside the model."""
    stamps = {sample.id: _stamp(sample.path) for sample in samples if sample.id in latents.rows}
    order = sorted(stamps, key=latents.rows.__getitem__)
    key = _key(encoder, preprocessing)
    about = json.dumps({"key": key, "images": [[id, stamps[id]] for id in order]}, ensure_ascii=False)
    data = save_tensors({"latents": latents.of(order).contiguous()}, metadata={"sic": about})
    write_atomically(folder / CACHE, lambda path: path.write_bytes(data))


def _key(encoder: Encoder, preprocessing: Preprocessing) -> str:
    """Changes whenever the latents of the same file would: weights, preprocessing, or the code."""
    digest = hashlib.sha256(json.dumps([__version__, asdict(preprocessing)]).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read(file: Path, key: str, stamps: dict[str, Stamp]) -> dict[str, Tensor]:
    """What the cache holds of unchanged files; nothing where it is of another model or damaged."""
    try:
        with safe_open(file, framework="pt") as content:
            about = json.loads(content.metadata()["sic"])
            values = content.get_tensor("latents")
        if about["key"] != key:
            return {}
        rows = zip(about["images"], values, strict=True)
        return {id: latent for (id, stamp), latent in rows if stamps.get(id) == tuple(stamp)}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return {}


class _Views(Dataset[tuple[Tensor, str]]):
    """The model's view of each file, and the reason where there is none."""

    def __init__(self, samples: Sequence[Sample], preprocessing: Preprocessing) -> None:
        self.samples, self.preprocessing = samples, preprocessing

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        try:
            return to_tensor(self.preprocessing(read_image(self.samples[index].path))), ""
        except UnreadableImage as error:
            return torch.zeros(3, self.preprocessing.size, self.preprocessing.size), str(error)


@torch.no_grad()
def _compute(
    encoder: Encoder, preprocessing: Preprocessing, samples: Sequence[Sample], progress: Progress | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    found: dict[str, Tensor] = {}
    unreadable: dict[str, str] = {}
    device = next(encoder.parameters()).device
    views = _Views(samples, preprocessing)
    done = 0
    for images, reasons in DataLoader(views, 64, num_workers=2 if len(samples) > 256 else 0):
        latents = encoder(images.to(device)).cpu()
        for latent, reason in zip(latents, reasons, strict=True):
            sample = samples[done]
            if reason:
                unreadable[sample.id] = reason
            else:
                found[sample.id] = latent
            done += 1
        if progress is not None:
            progress(done, len(samples))
    return found, unreadable
