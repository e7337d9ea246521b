"""`sic verify`: does the model keep the promises that its explanations rest on?"""

from pathlib import Path
from typing import Annotated

import typer

from sic.cli.console import OUT, Talker, print_json
from sic.errors import SicError


def verify(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    data: Annotated[str | None, typer.Argument(help="Images to measure on; default: the model's own data.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Look at no more images than this.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled/--no-compiled", help="Include a compiled model (takes a minute).")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random pixels.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the six axioms on real images; the exit code is not 0 if one fails."""
    import torch
    from rich.table import Table

    import sic.data
    from sic.evaluate.axioms import as_json, measure
    from sic.evaluate.outputs import readable, view_batches
    from sic.model import load

    with Talker() as talker:
        loaded = load(model)
        where = data or loaded.config.data.get("root", "")
        if data is None and not Path(where).is_dir():
            raise SicError(
                f"The data that {model} was trained on is not at {where}; name images: sic verify {model} DATA."
            )
        opened = sic.data.open(where, talker.progress("drawing birds"))
        split = next(name for name in ("test", "val", "train") if opened.splits.get(name))
        samples, bad = readable(opened.splits[split][:limit])
        for sample, reason in bad:
            talker.warn(f"Skipped {sample.id}: {reason}.")
        if not samples:
            raise SicError(f"None of the images in {where} can be read.")
        talker.say(f"Measuring on {len(samples)} {split} images of {opened.root}.")
        images = torch.cat(list(view_batches([s.path for s in samples], loaded.config.preprocessing)))
        axioms = measure(
            loaded.classifier,
            load(model).classifier,
            images,
            seed=seed,
            compiled=compiled,
            progress=talker.progress("completeness"),
        )
    result = {"model": str(model), "data": str(opened.root), "split": split, "images": len(samples), **as_json(axioms)}
    if json:
        print_json(result)
    else:
        table = Table("axiom", "what was measured", "worst", "limit", "checks", "")
        for axiom in axioms:
            verdict = "[green]pass[/green]" if axiom.passed else "[red]FAIL[/red]"
            if axiom.name == "completeness":
                residuals = axiom.details
                worst = f"{residuals['residual_float32']:.1e} (32 bit)\n{residuals['residual_float64']:.1e} (64 bit)"
                allowed = "1e-04\n1e-10"
            else:
                worst, allowed = f"{axiom.worst:.1e}", f"{axiom.limit:.0e}" if axiom.limit else "0"
            table.add_row(axiom.name, axiom.statement, worst, allowed, str(axiom.checks), verdict)
        OUT.print(table)
    if not result["passed"]:
        raise typer.Exit(1)
