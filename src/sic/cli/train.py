"""`sic train`: from a folder of images to a model directory."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.data import Group, LayoutName, Roi
from sic.cli.launch import launch, machines_of, one_voice, started
from sic.machines import Machines


def _list_presets(name: str | None) -> str | None:
    """`--preset list` answers without data."""
    if name != "list":
        return name
    from rich.table import Table

    from sic.training.presets import PRESETS

    table = Table("preset", "data", "method", "backbone", "T", "rate", "epochs", "batch", "weights", "reported", "from")
    for key, preset in PRESETS.items():
        temperature = "" if preset.temperature is None else f"{preset.temperature:g}"
        numbers = (temperature, f"{preset.lr:g}", str(preset.epochs), str(preset.batch_size))
        words = (preset.weights or "none", preset.reported, preset.source)
        table.add_row(key, preset.data, preset.method, preset.backbone, *numbers, *words)
    OUT.print(table)
    raise typer.Exit


def train(
    data: Annotated[str, typer.Argument(help="A folder of images, a table of them, or `birds` (built in).")],
    layout: LayoutName = None,
    group: Group = None,
    roi: Roi = None,
    out: Annotated[Path, typer.Option(help="Where the model directory goes.")] = Path("runs/model"),
    preset: Annotated[
        str | None,
        typer.Option(
            callback=_list_presets, is_eager=True, help="The paper's settings for a dataset; `list` shows them all."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="sic, or one that it is compared with: blackbox, bcos, bagnet, nwhead, protopnet."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training images.")] = None,
    check_every: Annotated[
        int | None,
        typer.Option(min=1, help="Choose supports, validate and save after every so many epochs; default: every one."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Feature extractor.")] = None,
    form: Annotated[
        str | None,
        typer.Option(help="bcos; bcosified: made from a conventional network; conventional: for some other methods."),
    ] = None,
    antialias: Annotated[
        bool | None, typer.Option("--antialias/--no-antialias", help="Blur before striding: no grid in the maps.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=16, max=1024, help="Side of the model's input in pixels.")] = None,
    fit: Annotated[str | None, typer.Option(help="crop: central square; squash: whole image.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="scratch (no weights), paper (B-cos weights) or bcosify (conventional weights).")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="What to start from: imagenet, imagenet-long, a file, or a sic model directory.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="bce: a yes or no for every class; ce: classes exclude each other.")
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", "-T", help="T of the evidence.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Queries per step.")] = None,
    supports: Annotated[int | None, typer.Option(min=1, help="Supports (ProtoPNet: prototypes) per class.")] = None,
    inference_supports: Annotated[
        str | None,
        typer.Option(
            help="Who they are after training: nearest (images nearest to centroids of k-means), centroid (these "
            "themselves), random, or full (all images; nwhead)."
        ),
    ] = None,
    support_source: Annotated[
        str | None,
        typer.Option(
            help="Who they are in training (sic): exact (random images, embedded in every step), bank (latents that "
            "are remembered: a step costs the same for any number of classes), n-way (exact, for some classes a step)."
        ),
    ] = None,
    ways: Annotated[int | None, typer.Option(min=2, help="Classes a step (--support-source n-way).")] = None,
    neighbours: Annotated[
        int | None, typer.Option(min=1, help="Look only at so many nearest supports (nwhead).")
    ] = None,
    latent: Annotated[int | None, typer.Option(min=1, help="Size of the latent vectors.")] = None,
    relu: Annotated[
        bool | None, typer.Option("--relu/--no-relu", help="Whether latents are non-negative (sic).")
    ] = None,
    attribution: Annotated[
        str | None,
        typer.Option(
            help="How to explain: input-x-gradient, integrated-gradients or grad-cam (blackbox); enlarged or box "
            "(protopnet)."
        ),
    ] = None,
    b: Annotated[float | None, typer.Option("--b", min=1, help="B of the B-cos units.")] = None,
    backbone_b: Annotated[float | None, typer.Option("--backbone-b", min=1, help="B of the backbone alone.")] = None,
    augmentation: Annotated[str | None, typer.Option(help="none, affine, photo or xray.")] = None,
    validation: Annotated[float | None, typer.Option(min=0.01, max=0.9, help="Share held out.")] = None,
    hold_out: Annotated[
        bool | None,
        typer.Option(
            "--hold-out/--no-hold-out",
            help="Choose the epoch on held-out training images, and measure on the data's own validation images.",
        ),
    ] = None,
    balance: Annotated[
        bool | None,
        typer.Option("--balance/--no-balance", help="Rare classes: positives weigh as much as negatives."),
    ] = None,
    allow_leaks: Annotated[
        bool | None, typer.Option("--allow-leaks", help="Train although held-out images are copies of training images.")
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="Compile the network; default: where it pays, in long fits on a GPU."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    support_images: Annotated[
        bool | None,
        typer.Option("--support-images/--no-support-images", help="Keep copies of the supports in the model."),
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="GPUs (or processes) of this machine to train on.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines, each with a process started per device.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Loader processes (no effect on the result).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a SIC model on a folder of images; what you do not say is chosen and told."""
    said = {
        "preset": preset,
        "method": method,
        "epochs": epochs,
        "check_every": check_every,
        "backbone": backbone,
        "form": form,
        "antialiased": antialias,
        "size": size,
        "fit": fit,
        "recipe": recipe,
        "weights": weights,
        "lr": lr,
        "weight_decay": weight_decay,
        "loss": loss,
        "temperature": temperature,
        "batch_size": batch_size,
        "supports_per_class": supports,
        "inference_supports": inference_supports,
        "support_source": support_source,
        "ways": ways,
        "neighbours": neighbours,
        "latent": latent,
        "relu": relu,
        "attribution": attribution,
        "b": b,
        "backbone_b": backbone_b,
        "augmentation": augmentation,
        "validation": validation,
        "hold_out": hold_out,
        "balance": balance,
        "allow_leaks": allow_leaks,
        "compiled": compile,
        "seed": seed,
        "keep_support_images": support_images,
    }
    machines = machines_of(devices, nodes)
    if machines.processes > 1 and not started():
        raise typer.Exit(launch(machines, sys.argv[1:]))
    with Talker() as talker, one_voice(machines):
        result = run(data, out, said, resume, talker, workers, layout, group, roi, machines)
    if json:
        print_json(result)
    else:
        summarise(result)


def run(
    data: str,
    out: Path,
    said: dict[str, Any],
    resume: bool,
    talker: Talker,
    workers: int | None = None,
    layout: str | None = None,
    group: str | None = None,
    roi: bool | None = None,
    machines: Machines | None = None,
) -> dict[str, Any]:
    """Train and say what came out."""
    machines = machines or Machines()
    if machines.first:
        talker.say("Loading …")
    from sic.data.labels import MAIN_SCORE
    from sic.directory import read_run
    from sic.model import fit

    started = time.monotonic()
    where: dict[str, Any] = {"workers": workers, "devices": machines.devices, "nodes": machines.nodes}
    model = fit(data, out, layout=layout, group=group, roi=roi, resume=resume, reporter=talker, **where, **said)
    record, figures = read_run(out), model.config.figures
    measured = "test" if "test" in figures else "validation"
    score = MAIN_SCORE[model.config.task]
    return {
        "model": str(out),
        score: figures[measured][score],
        "measured_on": measured,
        "figures": figures,
        "seconds": round(time.monotonic() - started, 1),
        "leaks": model.config.data["leaks"],
        "skipped": record["skipped"],
        "settings": record["settings"],
    }


def summarise(result: dict[str, Any]) -> None:
    from sic.data.labels import SCORE_NAMES

    score = next(name for name in SCORE_NAMES if name in result)
    measured = result["measured_on"]
    figures = result["figures"][measured]
    chosen = " (on which the best epoch was chosen)" if measured == "validation" else ""
    if score == "map":
        chosen += f", all labels right in {figures['exact_match']:.1%} of them"
    answered = figures["similar_case"] if result["settings"]["method"] == "sic" else 1
    marked = "" if answered == 1 else f" {1 - answered:.1%} of them are marked as no similar case."
    OUT.print(
        f"{SCORE_NAMES[score]} {result[score]:.1%} on {figures['images']} {measured} images{chosen}.{marked}\n"
        f"{result['seconds']:.0f} s, {len(result['skipped'])} files skipped. Model: {result['model']}",
    )
    if answered < 0.5:
        OUT.print("! Most images resemble no case yet: train for more --epochs or with more images.")
    OUT.print(f"Next: sic explain {result['model']} IMAGE --out why.png")
