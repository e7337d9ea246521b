"""Do the supports of a class differ, and does evidence lie on images of its class? Fits on a frozen network with the
published loss and with ours.

    python benchmarks/variety_frozen.py DATA [--weights photos] [--size 160] [--fit crop] [--seeds 0,1,2]
        [--misplaced 0,0.1] [--apart 0.03,0.1] [--own 12,24] [--b 3,4] [--taught]

DATA has class folders in `train` and `test`. All images are embedded once; then every fit takes seconds. Before: the
published loss and supports. Pooled: with penalties, but without local units. After: the recipe `frozen`, also with
other settings, and (`any_image`) the same fit with varied supports that need not be typical of their class; all units
start as images. Taught: the recipe as `sic train` uses it, whose units may start as classes that the network knows
(with `--taught`, other settings start like this, too). `--b`: all of these with another B of projection and similarity,
such as `after b 3`; the network keeps its own. For test images (unless `--no-test`), and for training images that the
fit did not see (settings are chosen on those): accuracy, the median ratio of the weakest to the strongest evidence of a
right answer (`variety`), the share of cases that give images of their class less than a tenth of what the strongest
case of the class gives (`idle`; they make the ratio small without showing anything), how often the case that leads
least is the strongest one (median over classes; 1/3 at most), the share of scores above 0, the share of the evidence
for a class that lies on the other images of a grid (`misplaced_4`: grids of 2×2, `misplaced_9`: 3×3; from the features
of single images), and the share of dead units.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import record
import torch
import torch.nn.functional as F
from command import as_typed
from torch import Tensor

from sic.backbones import Backbone, create
from sic.backbones.distilled import PHOTOS
from sic.backbones.weights import loader
from sic.data import open as open_data
from sic.data.images import Preprocessing
from sic.data.loading import view_batches
from sic.methods import SIC
from sic.methods.sic import Encoder
from sic.settings import RECIPES, Fit, Recipe
from sic.supports import directions, select
from sic.training.choose import choose
from sic.training.frozen import fit_features, projected
from sic.training.history import Silent
from sic.training.penalties import misplaced_evidence, random_grids
from sic.training.sic import SICTraining, latent_health
from sic.training.start import taught_directions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HELD_OUT = 0.15
GRIDS = 500
IDLE = 0.1
RECIPE = RECIPES["frozen"]
POOLED = replace(RECIPE, lr=1e-3, batch_size=256, local_units=False, own_evidence=12.0, misplaced=0.1, competing=0.0)
PUBLISHED = replace(POOLED, inference_supports="nearest", own_evidence=6.0, apart=0.0, misplaced=0.0)


class Way(NamedTuple):
    """A fit."""

    recipe: Recipe
    b: float = 2.0
    """B of projection and similarity."""
    taught: bool = False
    """Whether units may start as classes that the network was taught."""


@torch.no_grad()
def maps(network: Backbone, paths: list[Path], preprocessing: Preprocessing) -> np.ndarray:
    """Features of every place, N×P×F."""
    network.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder = Encoder(network.eval(), 1, 2, local=True)
    batches = view_batches(paths, preprocessing, 32, DEVICE)
    return np.concatenate([encoder.features(views).half().cpu().numpy() for views in batches])


@torch.no_grad()
def figures(classifier: SIC, features: Tensor, truth: Tensor) -> dict[str, float]:
    classifier = classifier.cpu()
    latents = projected(classifier, features)
    evidence = classifier.evidence(latents)
    logits = classifier.logits(evidence)
    best = logits.argmax(dim=1)
    own = [evidence[n, classifier.support_classes == best[n]] for n in (best == truth).nonzero()[:, 0].tolist()]
    ratios = torch.stack([values.min() / values.max() for values in own])
    leads = torch.zeros(classifier.classes, max(map(len, own)))
    for label, values in zip(best[best == truth].tolist(), own, strict=True):
        leads[label, values.argmax()] += 1
    idle = []
    for label in range(classifier.classes):
        given = evidence[truth == label][:, classifier.support_classes == label].mean(dim=0)
        idle += (given < IDLE * given.max()).tolist()
    shares = (leads / leads.sum(dim=1, keepdim=True).clamp_min(1)).amin(dim=1)
    elsewhere, targets = {}, F.one_hot(truth, classifier.classes).float()
    parts = classifier.encoder.additive(features, latents)
    members = [(truth == label).nonzero()[:, 0].numpy() for label in range(classifier.classes)]
    for images in (4, 9):
        rows = random_grids(members, np.random.default_rng(0), GRIDS, images)
        supports = classifier.support_vectors, classifier.support_classes
        found = misplaced_evidence(classifier, parts[rows], targets[rows], *supports)
        elsewhere[f"misplaced_{images}"] = found.item()
    return {
        **elsewhere,
        "accuracy": (best == truth).float().mean().item(),
        "variety": ratios.median().item(),
        "idle": float(np.mean(idle)),
        "least_leading": shares.median().item(),
        "score_above_0": (logits.amax(dim=1) >= 0).float().mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", default=PHOTOS)
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--fit", choices=get_args(Fit), help="default: what `sic train` chooses")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--misplaced", help="weights of that penalty to try")
    parser.add_argument("--apart", help="weights of the penalty on images that are alike to try")
    parser.add_argument("--own", dest="own_evidence", help="values of the evidence that sets T to try")
    parser.add_argument("--b", help="values of B of projection and similarity to try")
    parser.add_argument("--taught", action="store_true", help="let units of all variants start as taught classes")
    parser.add_argument("--no-test", action="store_true", help="measure validation images alone")
    parser.add_argument("--only", help="some of the fits, by name")
    parser.add_argument("--features", type=Path, help="keep features in this folder, to use them again")
    parser.add_argument("--out", type=Path, default=Path("results/variety.json"))
    options = parser.parse_args()
    data = open_data(options.data)
    said = {"weights": options.weights, "recipe": "frozen", "size": options.size, "fit": options.fit}
    settings, _ = choose(data, said, gpu=False)
    network = create(settings.backbone, settings.form, load=loader(options.weights, settings.backbone, settings.form))
    features, labels = {}, {}
    with tempfile.TemporaryDirectory() as spare:
        folder = options.features or Path(spare)
        for split in ("train",) if options.no_test else ("train", "test"):
            samples, file = data.splits[split], folder / f"{split}.npy"
            if not file.is_file():
                folder.mkdir(parents=True, exist_ok=True)
                files = [sample.path for sample in samples]
                np.save(file, maps(network, files, Preprocessing.of(settings)))
            features[split] = torch.from_numpy(np.load(file))
            labels[split] = torch.tensor([sample.labels[0] for sample in samples])
    ways = {"before": Way(PUBLISHED), "pooled": Way(POOLED), "after": Way(RECIPE), "taught": Way(RECIPE, taught=True)}
    for name in ("misplaced", "apart", "own_evidence"):
        for value in filter(None, (getattr(options, name) or "").split(",")):
            ways[f"{name} {value}"] = Way(replace(RECIPE, **{name: cast(Any, float(value))}), taught=options.taught)
    for value in filter(None, (options.b or "").split(",")):
        with_b = {f"{name} b {value}": way._replace(b=float(value)) for name, way in ways.items() if way.b == 2}
        ways |= {name: way for name, way in with_b.items() if way.recipe.local_units}
    if options.only:
        ways = {name: ways[name] for name in options.only.split(",")}
    pooled = {
        split: torch.cat([some.float().mean(1) for some in every.split(256)]) for split, every in features.items()
    }
    found: dict[str, Any] = {"command": as_typed(), "seeds": options.seeds, **{name: [] for name in ways}}
    for seed in map(int, options.seeds.split(",")):
        order = np.random.default_rng(seed).permutation(len(features["train"]))
        number = round(HELD_OUT * len(order))
        held_out, shown = np.sort(order[:number]), np.sort(order[number:])
        own = labels["train"][shown]
        candidates = {label: (own == label).nonzero()[:, 0].tolist() for label in range(len(data.classes))}
        for when, (recipe, b, taught) in ways.items():
            RECIPES["frozen"] = recipe
            chosen = replace(settings, seed=seed, inference_supports=recipe.inference_supports)
            chosen = replace(chosen, lr=recipe.lr, batch_size=min(recipe.batch_size, len(shown)))
            classifier = SIC(network, len(data.classes), 3 * len(data.classes), b=b, local_units=recipe.local_units)
            seen = features if recipe.local_units else pooled
            module = SICTraining(classifier, chosen, candidates, multi_label=False).to(DEVICE)
            targets = F.one_hot(own, len(data.classes)).float()
            known = taught_directions(options.weights) if taught else None
            fit_features(module, seen["train"][shown], targets, candidates, chosen, Silent(), known)
            latents = projected(classifier, seen["train"][shown]).numpy()
            unseen = {"validation": (seen["train"][held_out], labels["train"][held_out])}
            if not options.no_test:
                unseen["test"] = seen["test"], labels["test"]
            result: dict[str, Any] = {"seed": seed, "dead_units": latent_health(latents).dead_units}
            result |= {split: figures(classifier, *images) for split, images in unseen.items()}
            if recipe.inference_supports == "varied":
                rows, owners = select(directions(latents), candidates, 3, seed)
                classifier.set_supports(torch.from_numpy(latents[rows]), torch.from_numpy(owners))
                result["any_image"] = {split: figures(classifier, *images) for split, images in unseen.items()}
            found[when].append(result)
            print(when, result, flush=True)
    record.add(options.out, {" ".join(filter(None, [options.data.name, options.fit])): found})


if __name__ == "__main__":
    main()
