"""`sic verify`: does the model keep the promises that its explanations rest on?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sic.cli.console import ERR, OUT, Talker, print_json, styled
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.run import Run


def verify(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    data: Annotated[str | None, typer.Argument(help="Images to measure on; default: the model's own data.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Look at no more images than this.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled/--no-compiled", help="Include a compiled model (takes a minute).")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random pixels.")] = 0,
    files_only: Annotated[bool, typer.Option("--files", help="Compare the files with their checksums only.")] = False,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="The files must be signed with the secret in this file."),
    ] = None,
    sign: Annotated[
        bool, typer.Option("--sign", help="Sign the files with --key, if they are as they were saved.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that the files are those that were saved, and measure the six axioms on real images.

    The exit code is not 0 if a file was changed or an axiom fails.
    """
    checked = _files(model, key, sign, files_only)
    if files_only:
        if json:
            print_json({"model": str(model), "files": checked, "signed": key is not None})
        else:
            signed = f", signed with {key}" if key is not None else ""
            OUT.print(f"The {checked} files of {model} are those that were saved{signed}.")
        return
    import torch
    from rich.table import Table

    from sic.data.views import readable, view_batches
    from sic.evaluate.axioms import as_json, measure
    from sic.model import load
    from sic.run import Run

    with Talker() as talker:
        loaded = load(model)
        name, files = _images(Run(model, loaded.config, f"sic verify {model} DATA"), data, talker)
        files, bad = readable(files[:limit])
        for file, reason in bad:
            talker.warn(f"Skipped {file}: {reason}.")
        if not files:
            raise SicError("None of the images can be read.")
        talker.say(f"Measuring on {len(files)} images: {name}.")
        images = torch.cat(list(view_batches(files, loaded.config.preprocessing)))
        axioms = measure(
            loaded.sic,
            load(model).sic,
            images,
            seed=seed,
            compiled=compiled,
            progress=talker.progress("completeness"),
        )
    result = {"model": str(model), "files": checked, "data": name, "images": len(files), **as_json(axioms)}
    if json:
        print_json(result)
    else:
        table = Table("axiom", "what was measured", "worst", "limit", "checks", "")
        for axiom in axioms:
            verdict = styled("pass", "green") if axiom.passed else styled("FAIL", "red")
            if axiom.name == "completeness":
                residuals = axiom.details
                worst = f"{residuals['residual_float32']:.1e} (32 bit)\n{residuals['residual_float64']:.1e} (64 bit)"
                allowed = "1e-04\n1e-10"
            else:
                worst, allowed = f"{axiom.worst:.1e}", f"{axiom.limit:.0e}" if axiom.limit else "0"
            table.add_row(axiom.name, axiom.statement, worst, allowed, str(axiom.checks), verdict)
        OUT.print(table)
        evidence = next(axiom.details for axiom in axioms if axiom.name == "completeness")
        if apart := evidence["input_independent_share"]:
            OUT.print(f"{apart:.1%} of the evidence comes from where things are, not from pixels (positional code).")
        if evidence["mean_evidence"] < 1e-6:
            OUT.print("! This model finds no evidence for anything: there was nothing to add up. Train it for longer.")
        outcome = "All six axioms hold" if result["passed"] else "At least one axiom does not hold"
        OUT.print(f"{outcome} for {model} on these {len(files)} images.")
    if not result["passed"]:
        raise typer.Exit(1)


def _files(model: Path, key: Path | None, sign: bool, files_only: bool) -> int:
    """The number of files that are as they were saved; signs them, if wanted. SicError where one was changed."""
    from sic import directory
    from sic.manifest import MANIFEST, read_key

    if key is None and not sign and not files_only and not directory.stored(model, MANIFEST).is_file():
        ERR.print(f"! {model} has no {MANIFEST}: an older sic saved it, so changes of its files cannot be detected.")
        return 0
    if sign and key is None:
        raise SicError("--sign needs --key FILE: the secret to sign with.")
    secret = None if key is None else read_key(key)
    if sign and secret is not None:
        directory.sign(model, secret)
    return directory.check_files(model, secret)


def _images(run: "Run", data: str | None, talker: Talker) -> tuple[str, list[Path]]:
    """The test images of a dataset (else validation, else training); or simply the images in a folder."""
    from sic.cli.files import image_files, labelled_images

    try:
        opened = labelled_images(run, data, talker)
    except SicError:
        if data is None:
            raise
        return data, image_files([Path(data)])
    if opened.layout == "class folders":
        return opened.name, image_files([opened.root])
    split = next(name for name in ("test", "val", "train") if opened.splits.get(name))
    return f"{split} images of {opened.name}", [sample.path for sample in opened.splits[split]]
