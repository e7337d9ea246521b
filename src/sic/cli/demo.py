"""`sic demo`: train, test and explain on the built-in birds, in a few minutes on a laptop."""

import shutil
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.options import Json
from sic.errors import SicError

MARK = "demo.json"
"""The result of the demo; it also marks a folder that the next demo may replace."""


def demo(
    out: Annotated[Path, typer.Option(help="Model directory to write; an earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")] = 0,
    json: Json = False,
) -> None:
    """Train on the built-in birds, test on unseen poses, and explain some of the predictions."""
    from sic.cli import train

    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise SicError(f"{out} is not the folder of an earlier demo; choose another --out.")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("{}")
    with Talker() as talker:
        result = train.run("birds", out, {"epochs": epochs, "seed": seed}, False, talker)
        result |= _look_at_test_images(out, talker)
    (out / MARK).write_text(dumps(result, indent=1))
    if json:
        print_json(result)
        return
    train.summarise(result)
    removal = result["part_removal"]
    OUT.print(
        f"Removing the part that contributes most lowers the score in {removal['lowered']:.0%} of the test images, by "
        f"{removal['mean_drop']:.1f} on average (a random part: {removal['random_lowered']:.0%}, by "
        f"{removal['random_mean_drop']:.1f}).\n\n"
        f"Open {result['figures_drawn'][0]} to see why the model predicted this class.\n"
        f"The whole model on one page: sic report {result['model']}; in the browser: sic serve {result['model']}",
    )


def _look_at_test_images(out: Path, talker: Talker) -> dict[str, Any]:
    """Check the explanations by removing parts; draw some of them."""
    import sic.data
    from sic.evaluate.interventions import part_removal
    from sic.model import load

    model = load(out)
    data = sic.data.open("birds")
    talker.say("Checking the explanations by removing parts …")
    removal = part_removal(model.classifier, data.root, data.splits["test"], model.config.preprocessing)
    drawn = []
    step = len(data.splits["test"]) // 4
    for number, sample in enumerate(data.splits["test"][step // 2 :: step][:4], 1):
        figure = out / "explanations" / f"{number}.png"
        figure.parent.mkdir(exist_ok=True)
        model.explain(sample.path, truth=data.classes[sample.labels[0]]).save(figure)
        drawn.append(str(figure))
        talker.advance("explaining", number, 4)
    return {"part_removal": asdict(removal), "figures_drawn": drawn}
