"""`sic export`: the model as a file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.cli.options import Json, ModelFolder


def export(
    model: ModelFolder,
    to: Annotated[Path, typer.Option(help="The file to write: .onnx (ONNX) or .pt2 (torch.export).")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Also what every pixel contributes to the best class's score.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the model as one file that answers without sic, checked against the model."""
    from sic.export import export as write
    from sic.model import load

    with Talker() as talker:
        talker.say(f"Exporting {model}; large networks take minutes.")
        done = write(load(model), to, explain)
    if json:
        size = done.file.stat().st_size
        print_json({"file": str(to), "bytes": size, "outputs": done.outputs, "difference": done.difference})
        return
    OUT.print(f"{to}: images → {', '.join(done.outputs)}; as the model itself to within {done.difference:.1e}.")
