"""The FunnyBirds layout: read the published dataset, and write drawn birds in the same way."""

import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sic.data.birds import MODELS, PARTS, PLACEHOLDER, Scene, sample_scene, species
from sic.data.dataset import ImageData, Sample
from sic.data.drawing import render
from sic.data.images import read_image
from sic.errors import SicError


def is_funnybirds(root: Path) -> bool:
    return (root / "classes.json").is_file() and (root / "dataset_train.json").is_file()


def visible_parts(scene: Mapping[str, Any]) -> list[str]:
    return [part for part in PARTS if scene.get(f"{part}_model") != PLACEHOLDER]


def consistent_classes(scene: Mapping[str, Any], classes: list[dict[str, Any]]) -> tuple[int, ...]:
    """The classes that have all visible parts of a scene; each of them is a correct answer."""
    own = classes[scene["class_idx"]]["parts"]
    visible = visible_parts(scene)
    return tuple(entry["class_idx"] for entry in classes if all(entry["parts"][part] == own[part] for part in visible))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SicError(f"{path} cannot be read as JSON ({error}).") from None


def open_funnybirds(root: Path) -> ImageData:
    """Read FunnyBirds. Training images may lack parts and then have several correct answers; test images have one."""
    try:
        classes, splits = _read(root)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise SicError(f"{root} looks like FunnyBirds but its JSON files are of another shape ({error!r}).") from None
    if "train" not in splits:
        raise SicError(f"{root} looks like FunnyBirds but holds none of the training images that it lists.")
    names = tuple(f"bird {entry['class_idx']}" for entry in classes)
    return ImageData(root.resolve().name, root, "FunnyBirds", names, splits)


def _read(root: Path) -> tuple[list[dict[str, Any]], dict[str, list[Sample]]]:
    """The classes in order, and the samples of each split that has any."""
    classes = sorted(_read_json(root / "classes.json"), key=lambda entry: entry["class_idx"])
    splits: dict[str, list[Sample]] = {}
    for split in ("train", "test"):
        if not (root / f"dataset_{split}.json").is_file():
            continue
        samples = []
        for index, scene in enumerate(_read_json(root / f"dataset_{split}.json")):
            id = f"{split}/{scene['class_idx']}/{index:06d}.png"
            labels = consistent_classes(scene, classes) if split == "train" else (scene["class_idx"],)
            # The published training set is often kept in part: the list of scenes is the full one.
            if (root / id).is_file():
                samples.append(Sample(id, root / id, labels))
        if samples:
            splits[split] = samples
    return classes, splits


def class_parts(root: Path) -> list[list[int]]:
    """C×P: the variant of each of the `PARTS` for every class."""
    classes = sorted(_read_json(root / "classes.json"), key=lambda entry: entry["class_idx"])
    return [[entry["parts"][part] for part in PARTS] for entry in classes]


def object_counts(root: Path, samples: Sequence[Sample]) -> list[int]:
    """The number of background objects of test images, including hidden ones."""
    scenes = _read_json(root / "dataset_test.json")
    return [scenes[int(Path(sample.id).stem)]["bg_objects"].count(",") for sample in samples]


def has_interventions(root: Path, samples: Sequence[Sample]) -> bool:
    """Whether these are test images that are also rendered with parts removed."""
    return all(
        part_map(root, sample).is_file() and without_parts(root, sample, set(PARTS)).is_file() for sample in samples
    )


def part_map(root: Path, sample: Sample) -> Path:
    """The file of the part map of a test image."""
    return _part_map(root, sample.id)


def _part_map(root: Path, id: str) -> Path:
    return root / id.replace("test/", "test_part_map/", 1)


def known_part_map(root: Path, id: str) -> npt.NDArray[np.uint8] | None:
    """The part map of any image: that of a test image is read, that of a training image is drawn from its scene.

    None for training images that `write_funnybirds` did not draw.

    Args:
        root: The folder of the dataset.
        id: The image, as in `Sample.id`.
    """
    if id.startswith("test/"):
        file = _part_map(root, id)
        return np.asarray(read_image(file)) if file.is_file() else None
    try:
        scene = Scene.from_json(_scenes_of(root / "dataset_train.json")[int(Path(id).stem)])
        with Image.open(root / id) as image:
            size = image.width
    except (SicError, OSError, IndexError, KeyError, TypeError, ValueError):
        return None
    return render(scene, size).part_map


@functools.lru_cache(maxsize=2)
def _scenes_of(path: Path) -> Any:
    return _read_json(path)


def without_parts(root: Path, sample: Sample, removed: set[str]) -> Path:
    """The file of a test image rendered without some of its parts."""
    kept = "_".join(part for part in PARTS if part not in removed)
    return _interventions(root, sample) / f"body_{kept}.png"


def without_object(root: Path, sample: Sample, number: int) -> Path:
    """The file of a test image rendered without one of its background objects."""
    return _interventions(root, sample) / "background_interventions" / f"{number}.png"


def _interventions(root: Path, sample: Sample) -> Path:
    return (root / sample.id.replace("test/", "test_interventions/", 1)).with_suffix("")


def write_funnybirds(
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
        _write_json(draft / "classes.json", [{"class_idx": i, "parts": parts} for i, parts in enumerate(birds)])
        _write_json(draft / "parts.json", {part: [{"model": m, "color": c} for m, c in MODELS[part]] for part in PARTS})
        for split in scenes:
            _write_json(draft / f"dataset_{split}.json", [scene.to_json() for scene in scenes[split]])
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
        for path, changed in _removals(scene).items():
            _png(root / "test_interventions" / name / path, render(changed, size).image)


def _removals(scene: Scene) -> Mapping[str, Scene]:
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


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
