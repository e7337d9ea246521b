"""`sic evaluate`: how good a model and its explanations are, by every protocol that applies."""

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.evaluation_tables import show
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.evaluate.suite import Suite
    from sic.model import Model

EVALUATION = "evaluation.json"
Only = Annotated[
    str | None,
    typer.Option(help="Some protocols: accuracy,funnybirds,localisation,faithfulness,unfamiliar. Default: all."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Look at no more images than this, in every protocol.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: a GPU where there is one.")]


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    data: Annotated[str | None, typer.Argument(help="Labelled images; default: the model's own data.")] = None,
    only: Only = None,
    limit: Limit = None,
    strangers: Annotated[
        Path | None, typer.Option(help="A folder of images that show none of the classes, to be refused.")
    ] = None,
    attribution: Annotated[
        str | None, typer.Option(help="Another way to explain, where the method has several.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"Write {EVALUATION} and the plots into this folder.")] = None,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn at random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure accuracy and calibration, and check the explanations against what the model does."""
    from sic.evaluate.suite import chosen
    from sic.model import load

    protocols = chosen(only)
    with Talker() as talker:
        loaded = load(model, pick_device(device))
        explain_with(loaded, attribution)
        suite = open_suite(loaded, model, data, limit, strangers, seed, talker, "evaluate")
        result = {"model": str(model), "method": loaded.config.method, "attribution": attribution, "seed": seed}
        result |= suite.run(protocols)
        drawn = [] if out is None else _write(result, loaded.classes, out)
    if json:
        print_json(result)
        return
    show(result)
    if out is not None:
        OUT.print(f"{out / EVALUATION} and {', '.join(path.name for path in drawn)}.")


def pick_device(wanted: str | None) -> str:
    """What the user says, else a GPU where there is one."""
    import torch

    from sic.directory import best_device

    if wanted is None:
        return best_device()
    try:
        torch.zeros(1, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise SicError(f"--device {wanted} cannot be used here ({str(error).splitlines()[0]}).") from None
    return wanted


def explain_with(model: "Model", attribution: str | None) -> None:
    if attribution is not None:
        change = getattr(model.classifier, "explain_with", None)
        if change is None:
            raise SicError(f"--attribution {attribution} means nothing for {model.config.method}: it has one way.")
        change(attribution)


def open_suite(
    model: "Model",
    folder: Path,
    data: str | None,
    limit: int | None,
    strangers: Path | None,
    seed: int,
    talker: Talker,
    command: str,
) -> "Suite":
    """The model in front of the images named, or its own; what cannot be read is said and left out."""
    from sic.cli.files import image_files
    from sic.cli.own_data import judging_images, open_data
    from sic.evaluate.outputs import readable, view_batches
    from sic.evaluate.suite import Subject, Suite

    opened = open_data(folder, data, model.config.data, talker, command)
    images = judging_images(folder, opened, model.classes, limit, talker)
    if images.caution is not None:
        talker.warn(images.caution)
    config = model.config
    others = {}
    if strangers is not None:
        files, _ = readable(image_files([strangers])[: limit or None])
        if not files:
            raise SicError(f"None of the images in {strangers} can be read.")
        others[strangers.name] = view_batches(files, config.preprocessing)
    subject = Subject(model.classifier, model.classes, config.task, config.preprocessing)
    return Suite(subject, opened, images, limit, others, seed, talker.advance)


def _write(result: dict[str, Any], classes: list[str], folder: Path) -> list[Path]:
    """The JSON and the plots, which are returned."""
    from sic.evaluate.funnybirds import eight
    from sic.evaluate.interventions import KINDS
    from sic.evaluate.plots import draw, save
    from sic.files import write_atomically
    from sic.report.radar import funnybirds_radar

    folder.mkdir(parents=True, exist_ok=True)
    text = dumps(result, indent=1, ensure_ascii=False)
    write_atomically(folder / EVALUATION, lambda path: path.write_text(text, encoding="utf-8"))
    drawn = draw(result, classes, folder)
    if birds := result.get("funnybirds"):
        rings = {kind: eight(birds, kind) for kind in KINDS if kind in birds}
        drawn.append(save(funnybirds_radar(rings, f"{birds['images']} test images"), folder / "radar.png"))
    return drawn
