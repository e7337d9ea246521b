"""`sic export`: export a model to a file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.options import Json, ModelFolder


def export(
    model: ModelFolder,
    to: Annotated[Path, typer.Option(help="The file to write: .onnx (ONNX) or .pt2 (torch.export).")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Also output the contribution of each pixel to the best score.")
    ] = False,
    json: Json = False,
) -> None:
    """Export a model to one file that runs without sic, and compare its outputs with those of the model."""
    from sic.export import export as write
    from sic.model import load

    with Talker() as talker:
        talker.say(f"Exporting {model}; large networks take minutes.")
        done = write(load(model), to, explain)
    if json:
        size = done.file.stat().st_size
        print_json({"file": str(to), "bytes": size, "outputs": done.outputs, "difference": done.difference})
        return
    OUT.print(f"{to}: images → {', '.join(done.outputs)}; equal to the model up to {done.difference:.1e}.")
