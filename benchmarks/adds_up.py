"""Do the pixels of an explanation add up to the score? A SIC model and a black box on the same test images.

    python benchmarks/adds_up.py SIC_MODEL BLACKBOX_MODEL [--images 60]

Explains the answer for each image in every way that the two models have, and the SIC model also by Input×Gradient,
which differentiates what SIC's own explanation holds constant. Writes results/docs/adds_up.json and
docs/pictures/adds-up.png.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import sic
import sic.data
from sic.bcos import encode_colours
from sic.evaluate.faithfulness import rank_correlations
from sic.explain.picture import signed
from sic.methods import SIC, Contributions
from sic.methods.contract import without_weights
from sic.run import spread

RESULT = Path("results/docs/adds_up.json")
PICTURE = Path("docs/pictures/adds-up.png")


def input_x_gradient(classifier: SIC, images: Tensor, targets: Tensor, encoded: bool) -> Contributions:
    """With the ordinary gradient: by the three colours, or by the six numbers `[x, 1 - x]` that the network sees."""
    leaf = (encode_colours(images) if encoded else images).detach().clone().requires_grad_()
    pooled = classifier.encoder.backbone.pooled(leaf if encoded else encode_colours(leaf))
    logits = classifier.logits(classifier.evidence(classifier.encoder.project(pooled)))
    value = logits.gather(1, targets[:, None])[:, 0]
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return without_weights((gradient * leaf).detach().sum(1), value.detach(), torch.full_like(value, classifier.bias))


def figures(explained: Contributions) -> dict[str, float]:
    """What the sums miss, in points of the score and as a share of it."""
    missing = explained.residual.abs()
    share = missing / explained.value.abs()
    return {
        "images": len(missing),
        "median_score": explained.value.median().item(),
        "median_missing": missing.median().item(),
        "worst_missing": missing.max().item(),
        "median_share_missing": share.median().item(),
    }


def draw(image: Tensor, explained: dict[str, Contributions]) -> None:
    figure = Figure(figsize=(2.2 * (len(explained) + 1), 3.1), dpi=100)
    axes = figure.subplots(1, len(explained) + 1)
    axes[0].imshow(image.permute(1, 2, 0))
    axes[0].set_title("The image", fontsize=9)
    for place, (name, one) in zip(axes[1:], explained.items(), strict=True):
        place.imshow(signed(one.maps[0], image)[0])
        pixels, rest = one.maps[0].sum().item(), one.constant[0].item()
        start = f"{rest:+.2f} without pixels\n" if rest else ""
        sums = f"pixels {pixels:+.2f}\n{start}score {one.value[0].item():+.2f}"
        place.set_title(name, fontsize=9)
        place.text(0.5, -0.04, sums, ha="center", va="top", fontsize=8.5, transform=place.transAxes)
    for place in axes:
        place.set_axis_off()
    figure.subplots_adjust(left=0.01, right=0.99, top=0.86, bottom=0.22, wspace=0.06)
    figure.savefig(PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sic_model", type=Path)
    parser.add_argument("blackbox_model", type=Path)
    parser.add_argument("--images", type=int, default=60)
    arguments = parser.parse_args()
    models = {"sic": sic.load(arguments.sic_model), "blackbox": sic.load(arguments.blackbox_model)}
    data = sic.data.open("birds")
    samples = [data.splits["test"][row] for row in spread(len(data.splits["test"]), arguments.images)]
    ways: dict[str, tuple[str, Callable[[Any, Tensor, Tensor], Contributions]]] = {
        "SIC": ("sic", lambda classifier, images, targets: classifier.explain(images, targets)),
        "SIC, Input×Gradient (RGB)": ("sic", partial(input_x_gradient, encoded=False)),
        "SIC, Input×Gradient (6 channels)": ("sic", partial(input_x_gradient, encoded=True)),
    }
    for name in models["blackbox"].classifier.attributions:

        def attribute(classifier: Any, images: Tensor, targets: Tensor, name: str = name) -> Contributions:
            classifier.explain_with(name)
            return classifier.explain(images, targets)

        ways[f"black box, {name}"] = ("blackbox", attribute)
    explained = {}
    for name, (which, way) in ways.items():
        model = models[which]
        images = torch.stack([model.tensor(sample.path) for sample in samples])
        targets = model.classifier(images).argmax(1)
        explained[name] = way(model.classifier, images, targets)
    result: dict[str, Any] = {
        "models": {
            name: {"backbone": model.config.backbone, "test": model.config.figures["test"]["accuracy"]}
            for name, model in models.items()
        },
        "ways": {name: figures(one) for name, one in explained.items()},
        "rank_correlation_with_sic": {
            name: rank_correlations(explained["SIC"].maps, one.maps).median().item()
            for name, one in explained.items()
            if name.startswith("SIC,")
        },
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    titles = {"SIC": "SIC", "black box, input-x-gradient": "black box,\nInput×Gradient"}
    titles |= {"black box, integrated-gradients": "black box,\nIntegrated Gradients"}
    draw(models["sic"].tensor(samples[0].path), {title: explained[name] for name, title in titles.items()})
    for name, one in result["ways"].items():
        print(name, one)
    print(result["rank_correlation_with_sic"], result["models"])


if __name__ == "__main__":
    main()
