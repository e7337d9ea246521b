"""The metrics against a slow implementation, image by image and set by set, and on cases with known answers."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import binary_dilation
from scipy.stats import spearmanr
from torch import Tensor, nn

from sic.data.birds import PARTS
from sic.data.dataset import Sample
from sic.data.drawing import LABELS
from sic.data.images import Preprocessing
from sic.data.layouts import funnybirds
from sic.data.layouts.funnybirds import write_funnybirds
from sic.evaluate.funnybirds import THRESHOLDS, minimal_sufficient_sets, rival_classes
from sic.evaluate.funnybirds import funnybirds as measure
from sic.methods import Classifier, Contributions
from tests.evaluate import birds
from tests.evaluate.birds import SIZE, Noise, Opposite, Oracle

VIEW = Preprocessing(SIZE, SIZE, "squash")


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample]]:
    root = tmp_path_factory.mktemp("squares")
    return root, birds.write(root)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample]]:
    """The built-in birds, small and few."""
    root = tmp_path_factory.mktemp("drawn") / "birds"
    write_funnybirds(root, classes=8, train=1, test=1, size=SIZE)
    return root, funnybirds.open_funnybirds(root).splits["test"]


class Shallow(nn.Module):
    """Random convolutions with gradients as dynamic weights: a model and an explanation that disagree at times."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(nn.Conv2d(3, 12, 5, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))

    def forward(self, images: Tensor) -> Tensor:
        return 3 * self.layers(images)

    def explain(self, images: Tensor, targets: Tensor) -> Contributions:
        columns = targets if targets.dim() == 2 else targets[:, None]
        leaf = images.clone().requires_grad_()
        chosen = self(leaf).gather(1, columns)
        weights = torch.stack([torch.autograd.grad(c.sum(), leaf, retain_graph=True)[0] for c in chosen.T], 1)
        maps = (weights * images[:, None]).sum(2)
        return Contributions(maps, weights, chosen.detach(), torch.zeros_like(chosen)).reshape(targets.shape)


class Slow:
    """FUNNYBIRDS.md word by word: one image, one threshold, one set at a time."""

    def __init__(self, classifier: Classifier, root: Path, samples: list[Sample], kind: str) -> None:
        self.classifier, self.root, self.samples, self.kind = classifier, root, samples, kind
        entries = json.loads((root / "classes.json").read_text())
        self.parts = {entry["class_idx"]: entry["parts"] for entry in entries}
        self.scenes = json.loads((root / "dataset_test.json").read_text())

    def read(self, path: Path) -> np.ndarray:
        return np.array(Image.open(path).convert("RGB"))

    def logits(self, path: Path) -> np.ndarray:
        image = torch.from_numpy(self.read(path)).permute(2, 0, 1)[None].float() / 255
        with torch.no_grad():
            return self.classifier(image)[0].double().numpy()

    def without(self, sample: Sample, removed: set[str]) -> np.ndarray:
        kept = "_".join(sorted(set(PARTS) - removed))
        folder = str(sample.path).replace("/test/", "/test_interventions/").removesuffix(".png")
        return self.logits(Path(folder) / f"body_{kept}.png")

    def objects(self, sample: Sample) -> dict[str, np.ndarray]:
        folder = str(sample.path).replace("/test/", "/test_interventions/").removesuffix(".png")
        names = [n for n in self.scenes[int(sample.path.stem)]["bg_objects"].split(",") if n]
        return {f"{i}": self.logits(Path(folder) / "background_interventions" / f"{i}.png") for i in range(len(names))}

    def map(self, sample: Sample, target: int) -> np.ndarray:
        image = torch.from_numpy(self.read(sample.path)).permute(2, 0, 1)[None].float() / 255
        found = self.classifier.explain(image, torch.tensor([target]))
        if self.kind == "contributions":
            return found.maps[0].double().numpy()
        weights, maps = found.weights[0].double().numpy(), found.maps[0].numpy()
        norms = np.where(maps > 0, np.sqrt((weights**2).sum(0)), 0)
        return np.minimum(norms / max(np.percentile(norms, 99.9), 1e-12), 1)

    def importances(self, sample: Sample, target: int) -> tuple[dict[str, float], float]:
        """By the name of a part or the number of an object; and the sum of the whole map."""
        attribution = self.map(sample, target)
        colours = self.read(Path(str(sample.path).replace("/test/", "/test_part_map/")))

        def inside(colour: tuple[int, int, int]) -> float:
            return float(attribution[binary_dilation((colours == colour).all(-1), np.ones((5, 5)))].sum())

        result = {part: sum(inside(colour) for colour in LABELS[part]) for part in PARTS}
        result |= {number: inside((204, 204, 204 + int(number))) for number in self.objects(sample)}
        return result, attribution.sum()

    def minimal(self, label: int) -> list[set[str]]:
        sets = []
        for count in range(1, 6):
            for chosen in itertools.combinations(PARTS, count):
                unique = not any(
                    all(self.parts[other][part] == self.parts[label][part] for part in chosen)
                    for other in self.parts
                    if other != label
                )
                if unique and not any(smaller <= set(chosen) for smaller in sets):
                    sets.append(set(chosen))
        return sets

    def measure(self) -> dict[str, Any]:
        curves: dict[str, list[float]] = {"CSDC": [], "PC": [], "DC": [], "D": []}
        label = [sample.labels[0] for sample in self.samples]
        logits = [self.logits(sample.path) for sample in self.samples]
        own = [self.importances(s, c) for s, c in zip(self.samples, label, strict=True)]
        predicted = [int(row.argmax()) for row in logits]
        for_predicted = [self.importances(s, c) for s, c in zip(self.samples, predicted, strict=True)]
        objects = [self.objects(sample) for sample in self.samples]
        single = [{part: self.without(s, {part}) for part in PARTS} for s in self.samples]
        for t in THRESHOLDS:
            csdc, pc, dc, d = [], [], [], []
            for i, sample in enumerate(self.samples):
                important = {name for name, value in own[i][0].items() if value > t * own[i][1]}
                if predicted[i] == label[i]:
                    csdc.append(max(len(m & important) / len(m) for m in self.minimal(label[i])))
                s = logits[i][label[i]]
                after = {name: row[label[i]] for name, row in (single[i] | objects[i]).items()}
                irrelevant = {name for name, a in after.items() if abs(s - a) < 0.05 * abs(s) or a > s}
                if irrelevant:
                    d.append(len(important & irrelevant) / len(irrelevant))
                values, total = for_predicted[i]
                claimed = {name for name, value in values.items() if value > t * total and name in PARTS}
                pc.append(self.without(sample, set(PARTS) - claimed).argmax() == predicted[i])
                dc.append(self.without(sample, claimed).argmax() != predicted[i])
            for name, scores in {"CSDC": csdc, "PC": pc, "DC": dc, "D": d}.items():
                mean = float(np.mean(scores)) if scores else math.nan
                curves[name].append(1 - mean if name == "D" else mean)
        hurt = [
            (s := logits[i][label[i]]) - row[label[i]] >= 0.05 * abs(s) and row[label[i]] < s
            for i in range(len(label))
            for row in objects[i].values()
        ]
        correlations = []
        for i in range(len(label)):
            drops = [logits[i][label[i]] - single[i][part][label[i]] for part in PARTS]
            values = [own[i][0][part] for part in PARTS]
            if len(set(drops)) > 1 and len(set(values)) > 1:
                correlations.append(spearmanr(values, drops).statistic / 2 + 0.5)
        return {
            "A": float(np.mean(np.array(predicted) == label)),
            "BI": 1 - float(np.mean(hurt)),
            "curves": curves,
            "SD": float(np.mean(correlations)),
            "SD_images": len(correlations),
            **self.target_sensitivity(logits),
        }

    def target_sensitivity(self, logits: list[np.ndarray]) -> dict[str, Any]:
        points = []
        for i, sample in enumerate(self.samples):
            mine = self.parts[sample.labels[0]]
            shared = {c: {p for p in PARTS if self.parts[c][p] == mine[p]} for c in self.parts}
            pairs = [c for c in sorted(shared) if len(shared[c]) == 2]
            choices = [(a, b) for a, b in itertools.combinations(pairs, 2) if not shared[a] & shared[b]]
            if not choices:
                continue
            one, two = choices[0]
            drops = {c: logits[i] - self.without(sample, shared[c]) for c in (one, two)}
            if drops[one][one] > drops[two][one] and drops[two][two] > drops[one][two]:
                by_class = {c: self.importances(sample, c)[0] for c in (one, two)}
                sums = {(c, p): sum(by_class[c][part] for part in shared[p]) for c in (one, two) for p in (one, two)}
                points += [sums[one, one] > sums[two, one], sums[two, two] > sums[one, two]]
        return {"TS": float(np.mean(points)) if points else math.nan, "TS_images": len(points) // 2}


def compare(classifier: Classifier, root: Path, samples: list[Sample]) -> dict[str, Any]:
    found = measure(classifier, root, samples, VIEW)
    for kind in ("contributions", "alpha"):
        expected = Slow(classifier, root, samples, kind).measure()
        assert (found["A"], found["BI"]) == pytest.approx((expected["A"], expected["BI"]))
        for name, curve in expected["curves"].items():
            np.testing.assert_allclose(found[kind]["curves"][name], curve, atol=1e-9, err_msg=f"{kind} {name}")
        for name in ("SD", "SD_images", "TS", "TS_images"):
            assert found[kind][name] == pytest.approx(expected[name], nan_ok=True), name
    return found


def test_built_in_birds_against_the_slow_implementation(drawn: tuple[Path, list[Sample]]) -> None:
    root, samples = drawn
    classifier = Shallow(8)
    classifier(torch.rand(1, 3, SIZE, SIZE))
    found = compare(classifier, root, samples[:5])
    assert 0 < found["BI"] <= 1 and found["objects"] > 5
    assert found["contributions"]["curves"] != found["alpha"]["curves"]


def test_squares_against_the_slow_implementation(squares: tuple[Path, list[Sample]]) -> None:
    """All kinds of images: 0 to 2 objects, classes with and without rivals."""
    root, samples = squares

    class Fixed(Noise):
        """The same noise for the same picture and class."""

        def change(self, maps: Tensor) -> Tensor:
            seeds = (maps.sum(dim=(2, 3)) * 1000).long()
            rows = [[torch.Generator().manual_seed(int(s)) for s in row] for row in seeds]
            noise = [torch.stack([torch.randn(maps.shape[2:], generator=g) for g in row]) for row in rows]
            return torch.stack(noise) + 0.1

    compare(Fixed(), root, samples[1:8:2])


def test_an_oracle_gets_full_marks(squares: tuple[Path, list[Sample]]) -> None:
    root, samples = squares
    found = measure(Oracle(), root, samples, VIEW)
    assert found["A"] == found["BI"] == 1
    assert found["images"] == 10 and found["objects"] == sum(i % 3 for i in range(10))
    for kind in ("contributions", "alpha"):
        scores = found[kind]
        for name in ("CSDC", "PC", "DC", "D", "SD", "TS", "Com", "Com_mean", "Cor", "Con"):
            assert scores[name] == pytest.approx(1), name
        assert scores["threshold"] < 1 / 15 and scores["SD_images"] == 10 and scores["TS_images"] > 0
    # Above the share of the heaviest part, nothing is important any more.
    assert found["contributions"]["curves"]["CSDC"][-1] == 0
    assert found["contributions"]["curves"]["PC"][-1] == 0 and found["contributions"]["curves"]["DC"][-1] == 0


def test_baselines_are_scored_alike(squares: tuple[Path, list[Sample]]) -> None:
    """An oracle that marks the parts evenly is the baseline, and maps of one class are those of any other."""
    root, samples = squares
    found = measure(Oracle(), root, samples, VIEW)["baselines"]
    assert list(found) == ["part mask", "edge filter", "centred blob"]

    class Parts(Oracle):
        def change(self, maps: Tensor) -> Tensor:
            dilated = nn.functional.max_pool2d(self.masks[None], 5, 1, 2)[0]
            return dilated.amax(0).expand_as(maps)

    expected = measure(Parts(), root, samples, VIEW)["contributions"]
    assert found["part mask"] == expected
    assert found["part mask"]["TS"] == found["part mask"]["TS_relative"] == 0
    assert found["part mask"]["Com"] > 0.9  # which is why it belongs into every table
    assert found["part mask"]["SD"] < 1 and found["centred blob"]["Com"] < found["part mask"]["Com"]


def test_target_sensitivity_without_the_scale(squares: tuple[Path, list[Sample]]) -> None:
    """Maps of later classes are larger as a whole: only the scale-free figure sees where their mass is."""

    class Louder(Oracle):
        def explain(self, images: Tensor, targets: Tensor) -> Contributions:
            found = super().explain(images, targets)
            found.maps = (found.maps + 1e-3) * 100.0 ** targets[..., None, None]
            return found

    root, samples = squares
    plain, louder = (measure(kind, root, samples, VIEW)["contributions"] for kind in (Oracle(), Louder()))
    assert plain["TS"] == plain["TS_relative"] == louder["TS_relative"] == 1
    assert louder["TS"] == 0.5  # the louder class wins both pairs


def test_the_opposite_of_an_oracle_gets_none(squares: tuple[Path, list[Sample]]) -> None:
    root, samples = squares
    found = measure(Opposite(), root, samples, VIEW)
    assert found["contributions"]["TS"] == 0 and found["contributions"]["SD"] == pytest.approx(0)
    # Nothing contributes, so alpha is 0 everywhere: no ranks, nothing important.
    assert math.isnan(found["alpha"]["SD"]) and found["alpha"]["SD_images"] == 0
    assert set(found["alpha"]["curves"]["CSDC"]) == set(found["alpha"]["curves"]["DC"]) == {0}
    assert set(found["alpha"]["curves"]["D"]) == {1}


def test_noise_is_at_chance(squares: tuple[Path, list[Sample]]) -> None:
    root, samples = squares
    runs = [measure(Noise(seed), root, samples, VIEW)["contributions"] for seed in range(8)]
    assert np.mean([run["SD"] for run in runs]) == pytest.approx(0.5, abs=0.12)
    assert np.mean([run["TS"] for run in runs]) == pytest.approx(0.5, abs=0.2)


def test_the_threshold_is_the_best_one(squares: tuple[Path, list[Sample]]) -> None:
    root, samples = squares
    found = measure(Noise(), root, samples, VIEW)["contributions"]
    curves = {name: np.array(curve) for name, curve in found["curves"].items()}
    score = (curves["CSDC"] + curves["PC"] + curves["DC"]) / 3 + curves["D"]
    best = int(np.argmax(score))
    assert found["threshold"] == THRESHOLDS[best] and found["Com"] == pytest.approx(score[best] / 2)
    four = [curves[name][best] for name in ("CSDC", "PC", "DC", "D")]
    assert [found[name] for name in ("CSDC", "PC", "DC", "D")] == four
    assert found["Com_mean"] == pytest.approx(np.mean(four))


def test_every_picture_is_looked_at_once(squares: tuple[Path, list[Sample]]) -> None:
    """One picture for each set of parts, at most, however many maps are scored; and the objects."""
    root, samples = squares
    classifier = Oracle()
    measure(classifier, root, samples, VIEW)
    explained, objects = 10, sum(i % 3 for i in range(10))
    assert classifier.seen - explained <= 10 * 2 ** len(PARTS) + objects
    assert len(THRESHOLDS) == 80 and THRESHOLDS[0] == 0.01 and THRESHOLDS[-1] == 0.5


def test_minimal_sufficient_sets() -> None:
    parts = ((0, 0, 0, 0, 0), (0, 1, 1, 1, 1), (1, 0, 1, 1, 1), (1, 1, 1, 1, 1))
    # Foot, tail or wing alone are enough; beak and eye together, which no other class has both of.
    assert sorted(minimal_sufficient_sets(parts, 0)) == [0b00011, 0b00100, 0b01000, 0b10000]
    assert minimal_sufficient_sets(((0,) * 5, (0,) * 5), 0) == ()


def test_rivals_share_two_parts_each() -> None:
    parts = ((0, 0, 0, 0, 0), (0, 0, 0, 1, 1), (0, 1, 0, 1, 1), (1, 0, 1, 0, 1), (1, 1, 0, 0, 1))
    found = rival_classes(parts, 0)
    assert found is not None and found.classes == (2, 3) and found.shared == (0b00101, 0b01010)
    assert rival_classes(parts[:3], 0) is None


def test_a_method_without_dynamic_weights_has_no_alpha(squares: tuple[Path, list[Sample]]) -> None:
    class Weightless(Oracle):
        def explain(self, images: Tensor, targets: Tensor) -> Contributions:
            found = super().explain(images, targets)
            found.weights = found.weights[:, :, :0]
            return found

    root, samples = squares
    found = measure(Weightless(), root, samples[:2], VIEW)
    assert "alpha" not in found and found["contributions"]["SD"] == pytest.approx(1)
