"""`sic train`: from a folder of images to a model directory."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.errors import SicError


def train(
    data: Annotated[str, typer.Argument(help="A folder of class folders (or train/val/test of them), or `birds`.")],
    out: Annotated[Path, typer.Option(help="Where the model directory goes.")] = Path("runs/model"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training images.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Feature extractor.")] = None,
    size: Annotated[int | None, typer.Option(min=16, max=1024, help="Side of the model's input in pixels.")] = None,
    fit: Annotated[str | None, typer.Option(help="crop: central square; squash: whole image.")] = None,
    recipe: Annotated[str | None, typer.Option(help="scratch (no weights) or paper (pretrained weights).")] = None,
    weights: Annotated[Path | None, typer.Option(help="A sic model directory to start from.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", "-T", help="T of the evidence.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Queries per step.")] = None,
    supports: Annotated[int | None, typer.Option(min=1, help="Supports per class.")] = None,
    latent: Annotated[int | None, typer.Option(min=1, help="Size of the latent vectors.")] = None,
    b: Annotated[float | None, typer.Option("--b", min=1, help="B of the B-cos units.")] = None,
    augmentation: Annotated[str | None, typer.Option(help="none, affine or photo.")] = None,
    validation: Annotated[float | None, typer.Option(min=0.01, max=0.9, help="Share held out.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    support_images: Annotated[
        bool | None,
        typer.Option("--support-images/--no-support-images", help="Keep copies of the supports in the model."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Loader processes (no effect on the result).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a SIC model on a folder of images; what you do not say is chosen and told."""
    said = {
        "epochs": epochs,
        "backbone": backbone,
        "size": size,
        "fit": fit,
        "recipe": recipe,
        "weights": None if weights is None else str(weights),
        "lr": lr,
        "temperature": temperature,
        "batch_size": batch_size,
        "supports_per_class": supports,
        "latent": latent,
        "b": b,
        "augmentation": augmentation,
        "validation": validation,
        "seed": seed,
        "keep_support_images": support_images,
    }
    with Talker() as talker:
        result = run(data, out, said, resume, talker, workers)
    if json:
        print_json(result)
    else:
        summarise(result)


CHOICES = {"fit": ("crop", "squash"), "recipe": ("scratch", "paper"), "augmentation": ("none", "affine", "photo")}


def run(
    where: str, out: Path, said: dict[str, Any], resume: bool, talker: Talker, workers: int | None = None
) -> dict[str, Any]:
    """Train, measure on the test images where there are any, and say what came out."""
    for name, allowed in CHOICES.items():
        if said.get(name) not in (None, *allowed):
            raise SicError(f"--{name} must be one of {', '.join(allowed)}, not {said[name]!r}.")
    talker.say("Loading …")
    import sic.data
    from sic import training
    from sic.directory import read_run
    from sic.evaluate.accuracy import accuracy_figures
    from sic.evaluate.outputs import logits, readable
    from sic.model import load

    data = sic.data.open(where, talker.progress("drawing birds"))
    images = ", ".join(f"{len(samples)} {split}" for split, samples in data.splits.items())
    talker.say(f"{data.root}: {data.layout}, {len(data.classes)} classes, images: {images}.")
    if resume:
        settings = training.recorded_settings(out)
        changed = [name for name, value in said.items() if value is not None and _recorded(settings, name) != value]
        if changed:
            flag = "--" + changed[0].replace("_", "-")
            raise SicError(f"{flag} differs from what {out} was started with; leave it out to resume.")
        talker.say(f"Resuming {out} with its own settings.")
    else:
        settings, notes = training.choose(data, said)
        talker.say("Chosen: " + "; ".join(notes) + ".")
    result = training.fit(data, settings, out, resume=resume, workers=workers, reporter=talker)
    model = load(out)
    record = read_run(out)
    kept = set(record["validation"])
    held_out = [s for split in ("train", "val") for s in data.splits.get(split, []) if s.id in kept]
    figures: dict[str, Any] = {}
    for split, samples in (("validation", held_out), ("test", data.splits.get("test", []))):
        samples, bad = readable(samples)
        for sample, reason in bad:
            talker.warn(f"Left {sample.id} out of the {split} figures: {reason}.")
        if samples:
            outputs = logits(model.classifier, [s.path for s in samples], model.config.preprocessing)
            figures[split] = accuracy_figures(outputs, samples, data.task)
    figures["validation"]["note"] = "the best epoch was chosen on these images"
    model.config.figures = figures
    model.save(out)
    measured = "test" if "test" in figures else "validation"
    score = "map" if data.task == "multi" else "accuracy"
    return {
        "model": str(out),
        score: figures[measured][score],
        "measured_on": measured,
        "figures": figures,
        "seconds": round(result.seconds, 1),
        "skipped": [{"file": entry.file, "reason": entry.reason} for entry in result.skipped],
        "settings": record["settings"],
    }


def _recorded(settings: Any, name: str) -> Any:
    owner = settings.preprocessing if name in ("size", "fit") else settings
    return getattr(owner, name)


def summarise(result: dict[str, Any]) -> None:
    score = "map" if "map" in result else "accuracy"
    figures = result["figures"][result["measured_on"]]
    name = "Mean average precision" if score == "map" else "Accuracy"
    OUT.print(
        f"{name} {result[score]:.1%} on {figures['images']} {result['measured_on']} images, "
        f"{result['seconds']:.0f} s, {len(result['skipped'])} files skipped.\nModel: {result['model']}",
        markup=False,
    )
    OUT.print(f"Next: sic explain {result['model']} IMAGE --out why.png", markup=False)
