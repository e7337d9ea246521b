"""`sic data`: making data."""

from pathlib import Path
from typing import Annotated

import typer

from sic.cli.console import OUT, Talker

app = typer.Typer(help="Make data to try things on.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    pass


@app.command("birds")
def birds(
    out: Annotated[Path, typer.Argument(help="The folder to write, in the FunnyBirds layout.")],
    classes: Annotated[int, typer.Option(min=2, max=500, help="Number of species.")] = 12,
    train: Annotated[int, typer.Option(min=1, help="Training images per class.")] = 100,
    test: Annotated[int, typer.Option(min=1, help="Test images per class.")] = 20,
    size: Annotated[int, typer.Option(min=32, max=1024, help="Side in pixels.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of species and poses.")] = 0,
    interventions: Annotated[
        bool, typer.Option("--interventions/--no-interventions", help="Also draw test images without parts.")
    ] = True,
) -> None:
    """Draw birds: species defined by five parts, with part maps and every part removable."""
    from sic.data import birds_layout
    from sic.errors import SicError

    with Talker() as talker:
        try:
            birds_layout.write(
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
    OUT.print(f"{classes * train} training and {classes * test} test images: {out}", markup=False)
