"""Writes drawn birds to disk in the layout of FunnyBirds."""

import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sic.data.birds import MODELS, PARTS, Scene, render, sample_scene, species


def write(
    folder: Path,
    *,
    classes: int = 12,
    train: int = 100,
    test: int = 20,
    size: int = 128,
    seed: int = 0,
    interventions: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw a dataset with `train` and `test` images per class; the folder appears when it is complete.

    Training images lack parts in half of the cases, test images are complete and have other poses. With
    `interventions`, each test image is also drawn without every subset of parts and without each background object.
    `progress` is told how many scenes are drawn, and of how many.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty: remove it or name another folder.")
    birds = species(classes, seed)
    scenes = {
        "train": _scenes(birds, train, missing=True, seed=(seed, 0)),
        "test": _scenes(birds, test, missing=False, seed=(seed, 1)),
    }
    draft = folder.absolute().with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        _json(draft / "classes.json", [{"class_idx": i, "parts": parts} for i, parts in enumerate(birds)])
        _json(draft / "parts.json", {part: [{"model": m, "color": c} for m, c in MODELS[part]] for part in PARTS})
        for split in scenes:
            _json(draft / f"dataset_{split}.json", [scene.to_json() for scene in scenes[split]])
        jobs = [(split, index, scene) for split in scenes for index, scene in enumerate(scenes[split])]
        draw = functools.partial(_draw, draft, size, interventions)
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for done, _ in enumerate(pool.map(draw, jobs, chunksize=8), 1):
                if progress is not None:
                    progress(done, len(jobs))
        if folder.exists():
            folder.rmdir()
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _scenes(birds: list[dict[str, int]], per_class: int, *, missing: bool, seed: tuple[int, int]) -> list[Scene]:
    """Sorted by class. Each scene has a random generator of its own."""
    rngs = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(len(birds) * per_class))
    return [
        sample_scene(class_idx, parts, next(rngs), missing)
        for class_idx, parts in enumerate(birds)
        for _ in range(per_class)
    ]


def _draw(root: Path, size: int, interventions: bool, job: tuple[str, int, Scene]) -> None:
    split, index, scene = job
    name = f"{scene.class_idx}/{index:06d}"
    drawn = render(scene, size)
    _png(root / split / f"{name}.png", drawn.image)
    if split == "train":
        return
    _png(root / "test_part_map" / f"{name}.png", drawn.part_map)
    if interventions:
        for path, changed in _interventions(scene).items():
            _png(root / "test_interventions" / name / path, render(changed, size).image)


def _interventions(scene: Scene) -> Mapping[str, Scene]:
    """Every subset of the parts, and every object, taken away: scenes by file name."""
    out = {}
    for count in range(len(PARTS) + 1):
        for kept in itertools.combinations(PARTS, count):
            out[f"body_{'_'.join(kept)}.png"] = scene.without(*set(PARTS).difference(kept))
    for i in range(len(scene.objects)):
        out[f"background_interventions/{i}.png"] = scene.without_object(i)
    return out


def _png(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, compress_level=1)


def _json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
