import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from sic.data.birds import PARTS, VARIANTS, Object, Scene, sample_scene, species
from sic.data.drawing import LABELS, masks, object_masks, render

SPECIES = species(12)


def scenes(count: int, seed: int = 0, missing: bool = False) -> list[Scene]:
    rng = np.random.default_rng(seed)
    return [sample_scene(i % 12, SPECIES[i % 12], rng, missing) for i in range(count)]


def dilated(mask: np.ndarray, reach: int) -> np.ndarray:
    padded = np.pad(mask, reach)
    shifts = itertools.product(range(2 * reach + 1), repeat=2)
    return np.any([padded[y : y + mask.shape[0], x : x + mask.shape[1]] for y, x in shifts], axis=0)


def pixels(mask: np.ndarray) -> int:
    return int(mask.sum())


@pytest.mark.parametrize(("count", "apart"), [(2, 3), (12, 3), (30, 2), (50, 2), (2592, 1)])
def test_species_differ_in_parts(count: int, apart: int) -> None:
    birds = np.array([[parts[part] for part in PARTS] for parts in species(count)])
    assert birds.shape == (count, 5)
    assert (birds >= 0).all() and (birds < [VARIANTS[part] for part in PARTS]).all()
    if apart == 1:
        assert len(np.unique(birds, axis=0)) == count
    else:
        distance = (birds[:, None] != birds[None]).sum(-1)
        assert distance[~np.eye(count, dtype=bool)].min() >= apart


def test_species_depend_on_the_seed_alone() -> None:
    assert species(12, 3) == species(12, 3) != species(12, 4)
    with pytest.raises(ValueError, match="2592"):
        species(2593)


def test_target_sensitivity_is_defined_for_most_species() -> None:
    """A class needs two others that share two parts each with it, and not the same ones."""

    def shared(a: dict[str, int], b: dict[str, int]) -> set[str]:
        return {part for part in PARTS if a[part] == b[part]}

    pairs = [[s for b in SPECIES if b is not a and len(s := shared(a, b)) == 2] for a in SPECIES]
    usable = [any(p.isdisjoint(q) for p, q in itertools.combinations(of, 2)) for of in pairs]
    assert sum(usable) >= 6


def test_rendering_is_deterministic() -> None:
    for first, second in zip(scenes(5), scenes(5), strict=True):
        assert first == second
        a, b = render(first), render(second)
        assert a.image.shape == a.part_map.shape == (128, 128, 3)
        assert a.image.dtype == a.part_map.dtype == np.uint8
        assert (a.image == b.image).all() and (a.part_map == b.part_map).all()


def test_scenes_survive_json() -> None:
    for scene in [*scenes(20, missing=True), scenes(1)[0].without(*PARTS)]:
        scene = scene.without_object(1)
        data = json.loads(json.dumps(scene.to_json()))
        assert Scene.from_json(data) == scene
        assert all(not isinstance(value, (list, dict)) for value in data.values())
        assert data["bg_objects"].count(",") == len(scene.objects)
        assert [data[f"{part}_model"] == "placeholder" for part in PARTS] == [
            getattr(scene, part) is None for part in PARTS
        ]


def test_part_map_holds_only_labels() -> None:
    parts = {label for labels in LABELS.values() for label in labels}
    for scene in scenes(30, missing=True):
        seen = set(map(tuple, np.unique(render(scene).part_map.reshape(-1, 3), axis=0).tolist()))
        assert seen <= parts | {(0, 0, 0)} | {(204, 204, 204 + i) for i in range(len(scene.objects))}


@pytest.mark.parametrize("part", PARTS)
def test_removing_a_part_changes_it_alone(part: str) -> None:
    """Outside of the part (and the pixel around it that anti-aliasing mixes) nothing moves."""
    for scene in scenes(12, seed=1):
        whole, less = render(scene), render(scene.without(part))
        where = masks(whole.part_map)[part]
        assert not masks(less.part_map)[part].any()
        changed = (whole.image != less.image).any(-1)
        stray = changed & ~dilated(where, 2)
        assert pixels(stray) <= 5  # slivers thinner than a pixel, beside what hides the rest
        assert (whole.part_map == less.part_map).all(-1)[~where].all()
        if pixels(where) > 20:
            assert pixels(changed & where) > 0.8 * pixels(where)


def test_removing_an_object_leaves_the_others() -> None:
    for scene in scenes(12, seed=2):
        whole = render(scene)
        before = object_masks(whole.part_map)
        for i in before:
            less = render(scene.without_object(i))
            after = object_masks(less.part_map)
            assert i not in after
            assert all((before[j] & ~after[j]).sum() == 0 for j in before if j != i)
            stray = (whole.image != less.image).any(-1) & ~dilated(before[i], 2)
            assert pixels(stray) <= 8  # slivers thinner than a pixel, beside what hides the rest


def test_swapping_a_part_shows_at_64_pixels() -> None:
    """Any two variants of a part differ where the part is, by more than the smallest visible step."""
    base = dataclasses.replace(scenes(1)[0], camera_yaw=0.3, camera_distance=5.0, camera_roll=0.0, head_turn=0.0)
    for part in PARTS:
        drawn = [render(base.swapped(part, variant), 64) for variant in range(VARIANTS[part])]
        for a, b in itertools.combinations(drawn, 2):
            where = masks(a.part_map)[part] | masks(b.part_map)[part]
            difference = np.abs(a.image.astype(int) - b.image)[where].mean()
            assert difference > 15, (part, difference)


def test_every_part_is_seen_in_most_scenes() -> None:
    sample = [masks(render(scene).part_map) for scene in scenes(150, seed=3)]
    for part in PARTS:
        share = np.mean([seen[part].sum() >= 10 for seen in sample])
        assert share >= (0.7 if part == "tail" else 0.8), (part, share)


def test_about_half_of_the_training_scenes_lack_parts() -> None:
    gone = np.array([sum(getattr(s, part) is None for part in PARTS) for s in scenes(600, missing=True)])
    assert 0.42 < (gone > 0).mean() < 0.58
    assert set(gone) == {0, 1, 2, 3, 4, 5}
    assert all(getattr(s, part) is not None for s in scenes(50) for part in PARTS)


def test_yaw_turns_the_bird_around() -> None:
    scene = dataclasses.replace(scenes(1)[0], camera_roll=0.0, objects=())

    def beak_minus_tail(yaw: float) -> float:
        seen = masks(render(dataclasses.replace(scene, camera_yaw=yaw)).part_map)
        return float(np.argwhere(seen["beak"])[:, 1].mean() - np.argwhere(seen["tail"])[:, 1].mean())

    assert beak_minus_tail(0.0) > 40
    assert beak_minus_tail(math.pi) < -40


def test_masks_of_published_part_maps() -> None:
    """Four channels, several objects, and colours that mean nothing."""
    part_map = np.zeros((4, 4, 4), np.uint8)
    part_map[..., 3] = 255
    part_map[0, :3, :3] = (255, 255, 253), (255, 255, 254), (255, 255, 0)
    part_map[1, :, :3] = (255, 0, 1), (0, 255, 2), (0, 0, 255), (255, 0, 0)
    part_map[2, :, :3] = (204, 204, 204), (204, 204, 253), (204, 204, 254), (204, 203, 204)
    seen = {part: np.argwhere(mask).tolist() for part, mask in masks(part_map).items()}
    assert seen == {"eye": [[0, 0], [0, 1]], "beak": [[0, 2]], "foot": [[1, 0]], "wing": [[1, 1]], "tail": [[1, 2]]}
    assert {i: np.argwhere(m).tolist() for i, m in object_masks(part_map).items()} == {0: [[2, 0]], 49: [[2, 1]]}


def test_what_is_in_front_hides_what_is_behind() -> None:
    scene = dataclasses.replace(scenes(1)[0], objects=())
    ball = Object(kind="disc", y=0.0, color="#ff0000", x=0.0, size=0.5, stretch=1.0, roll=0.0)
    seen = render(dataclasses.replace(scene, objects=(ball,))).part_map
    assert (masks(seen)["wing"] == masks(render(scene).part_map)["wing"]).all()
    assert object_masks(seen)[0].any()


def test_the_most_crowded_scene_fits_the_palette() -> None:
    for scene in scenes(12):
        things = tuple(Object("disc", 0.1 * i - 0.6, f"#{i:02x}40c0", 0.1, 0.1, 1.0, 0.0) for i in range(12))
        assert object_masks(render(dataclasses.replace(scene, objects=things)).part_map)
