"""The FunnyBirds layout, of the published dataset and of the built-in birds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sic.data.dataset import ImageData, Sample
from sic.errors import SicError

PARTS = ("beak", "eye", "foot", "tail", "wing")
REMOVED = "placeholder"


def is_funnybirds(root: Path) -> bool:
    return (root / "classes.json").is_file() and (root / "dataset_train.json").is_file()


def visible_parts(scene: Mapping[str, Any]) -> list[str]:
    return [part for part in PARTS if scene.get(f"{part}_model") != REMOVED]


def consistent_classes(scene: Mapping[str, Any], classes: list[dict[str, Any]]) -> tuple[int, ...]:
    """The classes that have all visible parts of a scene; each of them is a correct answer."""
    own = classes[scene["class_idx"]]["parts"]
    visible = visible_parts(scene)
    return tuple(entry["class_idx"] for entry in classes if all(entry["parts"][part] == own[part] for part in visible))


def _json(path: Path) -> Any:
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
    classes = sorted(_json(root / "classes.json"), key=lambda entry: entry["class_idx"])
    splits: dict[str, list[Sample]] = {}
    for split in ("train", "test"):
        if not (root / f"dataset_{split}.json").is_file():
            continue
        samples = []
        for index, scene in enumerate(_json(root / f"dataset_{split}.json")):
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
    classes = sorted(_json(root / "classes.json"), key=lambda entry: entry["class_idx"])
    return [[entry["parts"][part] for part in PARTS] for entry in classes]


def object_counts(root: Path, samples: Sequence[Sample]) -> list[int]:
    """The number of background objects of test images, including hidden ones."""
    scenes = _json(root / "dataset_test.json")
    return [scenes[int(Path(sample.id).stem)]["bg_objects"].count(",") for sample in samples]


def has_interventions(root: Path, samples: Sequence[Sample]) -> bool:
    """Whether these are test images that are also rendered with parts removed."""
    return all(
        part_map(root, sample).is_file() and without_parts(root, sample, set(PARTS)).is_file() for sample in samples
    )


def part_map(root: Path, sample: Sample) -> Path:
    """The file of the part map of a test image."""
    return root / sample.id.replace("test/", "test_part_map/", 1)


def without_parts(root: Path, sample: Sample, removed: set[str]) -> Path:
    """The file of a test image rendered without some of its parts."""
    kept = "_".join(part for part in PARTS if part not in removed)
    return _interventions(root, sample) / f"body_{kept}.png"


def without_object(root: Path, sample: Sample, number: int) -> Path:
    """The file of a test image rendered without one of its background objects."""
    return _interventions(root, sample) / "background_interventions" / f"{number}.png"


def _interventions(root: Path, sample: Sample) -> Path:
    return (root / sample.id.replace("test/", "test_interventions/", 1)).with_suffix("")
