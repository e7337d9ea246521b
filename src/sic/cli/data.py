"""`sic data`: check, show and create datasets."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sic.cli.console import OUT, Talker, print_json
from sic.cli.options import Group, Json, LayoutName, Roi

if TYPE_CHECKING:
    from sic.data import ImageData

app = typer.Typer(help="Check and show a dataset before training, or create one.", no_args_is_help=True)

SHOWN = 40
"""The most problems and classes that are printed; --json lists all of them."""

Data = Annotated[str, typer.Argument(metavar="PATH", help="A folder of images, a table of image paths, or birds.")]


@app.command("check")
def check(
    path: Data,
    layout: LayoutName = None,
    group: Group = None,
    roi: Roi = None,
    json: Json = False,
) -> None:
    """Describe a dataset and list its problems. The exit code is 1 if `sic train` would stop."""
    import sic.data

    with Talker() as talker:
        try:
            preparing = talker.progress("preparing images")
            data, stops = sic.data.open(path, preparing, layout=layout, group=group, roi=bool(roi)), []
        except sic.data.UnusableData as error:
            data, stops = error.data, [str(error)]
        found = _summary(data, stops, talker)
    if json:
        print_json(found)
    else:
        _print(found, data)
    if found["usable"] is False:
        raise typer.Exit(1)


def _summary(data: "ImageData", stops: list[str], talker: Talker) -> dict[str, Any]:
    """The output of `--json`. `stops`: the reasons why no model can be trained."""
    from sic.data.checks import examine
    from sic.data.layouts import rsna

    problems, remark = [*map(str, data.skipped), *data.problems], None
    if data.classes:
        findings = examine(data, talker.progress("checking images"))
        problems += findings.problems
        stops, remark = stops or findings.stops, findings.remark
    found: dict[str, Any] = {
        "layout": data.layout,
        "task": data.task,
        "classes": list(data.classes),
        "splits": {split: len(samples) for split, samples in data.splits.items()},
        "groups": len({s.group for samples in data.splits.values() for s in samples} - {None}),
        "boxes": sum(len(sample.boxes) for samples in data.splits.values() for sample in samples),
    }
    if data.layout == rsna.NAME:
        found["sex"], uneven = rsna.sexes(data)
        problems += uneven
    training = [f"sic train stops: {reason}" for reason in stops]
    training = training or [f"sic train accepts this dataset. {remark or ''}".rstrip()]
    return {**found, "problems": [*stops, *problems], "usable": not stops, "training": training}


def _print(found: dict[str, Any], data: "ImageData") -> None:
    """Print the summary, with the number of images of every class."""
    counts = {split: Counter(label for s in samples for label in s.labels) for split, samples in data.splits.items()}
    table = Table("class", *counts, title=f"{data.root}: {data.layout}", title_justify="left")
    for label, name in list(enumerate(data.classes))[:SHOWN]:
        table.add_row(name, *(str(count[label]) for count in counts.values()))
    if len(data.classes) > SHOWN:
        table.add_row(f"… and {len(data.classes) - SHOWN} more", *("" for _ in counts))
    table.add_section()
    table.add_row("images", *(str(number) for number in found["splits"].values()))
    OUT.print(table)
    several = "one or more labels" if data.task == "multi" else "one label"
    groups = f", {found['groups']} groups" if found["groups"] else ""
    OUT.print(f"{len(data.classes)} classes, {several} per image, {found['boxes']} boxes{groups}.")
    for split, by_sex in found.get("sex", {}).items():
        text = "; ".join(f"{sex}: {', '.join(f'{n} {name}' for name, n in by.items())}" for sex, by in by_sex.items())
        OUT.print(f"Sex in {split}: {text}.")
    problems = [sentence for sentence in found["problems"] if f"sic train stops: {sentence}" not in found["training"]]
    for sentence in problems[:SHOWN]:
        OUT.print(f"! {sentence}", style="yellow")
    if len(problems) > SHOWN:
        OUT.print(f"… and {len(problems) - SHOWN} more; --json lists all of them.")
    if not found["problems"]:
        OUT.print("No problems.")
    for sentence in found["training"]:
        OUT.print(sentence, style=None if found["usable"] else "red")


@app.command("show")
def show(
    path: Data,
    out: Annotated[Path, typer.Option("--out", help="The image file to write.")] = Path("contact-sheet.png"),
    per_class: Annotated[int, typer.Option("--per-class", min=1, max=20, help="Images of each class.")] = 4,
    layout: LayoutName = None,
    roi: Roi = None,
    json: Json = False,
) -> None:
    """Draw a contact sheet with a few training images of every class, their labels and boxes."""
    import sic.data
    from sic.data.dataset import require_outside
    from sic.data.sheet import contact_sheet
    from sic.errors import SicError

    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise SicError(f"--out {out} is not an image file name; use .png.")
    with Talker() as talker:
        data = sic.data.open(path, talker.progress("preparing images"), layout=layout, roi=bool(roi))
    require_outside(out, data)
    out.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(data, per_class).save(out)
    if json:
        print_json({"picture": str(out), "classes": list(data.classes)})
    else:
        OUT.print(f"{len(data.classes)} classes: {out}")


@app.command("birds")
def birds(
    out: Annotated[Path, typer.Argument(help="The folder to write, in the FunnyBirds layout.")],
    classes: Annotated[int, typer.Option(min=2, max=500, help="Number of species.")] = 12,
    train: Annotated[int, typer.Option(min=1, help="Training images per class.")] = 100,
    test: Annotated[int, typer.Option(min=1, help="Test images per class.")] = 20,
    size: Annotated[int, typer.Option(min=32, max=1024, help="Side in pixels.")] = 128,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed of species and poses.")] = 0,
    interventions: Annotated[
        bool, typer.Option("--interventions/--no-interventions", help="Also draw test images with parts removed.")
    ] = True,
    json: Json = False,
) -> None:
    """Draw a dataset of birds: species defined by five parts, with part maps and removable parts."""
    from sic.data.layouts.funnybirds import write_funnybirds
    from sic.errors import SicError

    with Talker() as talker:
        try:
            write_funnybirds(
                out,
                classes=classes,
                train=train,
                test=test,
                size=size,
                seed=seed,
                interventions=interventions,
                progress=talker.progress("drawing birds"),
            )
        except FileExistsError as error:
            raise SicError(str(error)) from None
    if json:
        print_json({"folder": str(out), "splits": {"train": classes * train, "test": classes * test}})
    else:
        OUT.print(f"{classes * train} training and {classes * test} test images: {out}")
