"""Draw what `scratch_recipe.py` measured: validation score and dead latent units per epoch, both recipes, all seeds.

python benchmarks/plot_scratch.py results/scratch      # writes docs/pictures/scratch.png
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

PICTURE = Path("docs/pictures/scratch.png")
COLOURS = {"scratch": "#2c6fbb", "paper": "#c23b22"}
NAMES = {"scratch": "our recipe (default without weights)", "paper": "the paper's recipe (--recipe paper)"}
PANELS = {"val_score": "validation accuracy", "dead_units": "dead latent units"}


def main(folder: Path) -> None:
    files = sorted(folder.glob("*.json"))
    figure = Figure(figsize=(10, 3.4 * len(files)), layout="constrained")
    axes = figure.subplots(len(files), 2, squeeze=False)
    for row, file in enumerate(files):
        content = json.loads(file.read_text())
        for column, (key, label) in enumerate(PANELS.items()):
            panel = axes[row, column]
            for run in content["runs"]:
                epochs = [epoch["epoch"] for epoch in run["history"]]
                values = [epoch[key] for epoch in run["history"]]
                name = NAMES[run["recipe"]] if run["seed"] == 0 else None
                panel.plot(epochs, values, color=COLOURS[run["recipe"]], label=name, linewidth=1.4)
            panel.set(xlabel="epoch", ylabel=label, ylim=(0, 1.02))
            panel.spines[["top", "right"]].set_visible(False)
        scores = {
            recipe: [100 * run["accuracy"] for run in content["runs"] if run["recipe"] == recipe] for recipe in COLOURS
        }
        told = "; ".join(f"{recipe} {', '.join(f'{s:.1f}' for s in sorted(v))} %" for recipe, v in scores.items())
        axes[row, 0].set_title(f"{file.stem}: test accuracy, three seeds: {told}", fontsize=9, loc="left")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=130)
    Image.open(PICTURE).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/scratch"))
