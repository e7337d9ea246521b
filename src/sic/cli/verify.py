"""`sic verify`: check that the files are unchanged and that explanations show what the model computes."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sic.cli.console import ERR, OUT, Talker, print_json, styled
from sic.cli.options import Device, Json, ModelFolder, image_files, labelled_images, pick_device
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.evaluate.checks import Check
    from sic.run import Run


def verify(
    model: ModelFolder,
    data: Annotated[str | None, typer.Argument(help="Images to measure on; default: the model's own data.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most images to use, drawn at random.")] = 64,
    compiled: Annotated[
        bool, typer.Option("--compiled/--no-compiled", help="Also check a compiled model (takes a minute).")
    ] = False,
    device: Device = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")] = 0,
    files_only: Annotated[bool, typer.Option("--files", help="Only compare the files with their checksums.")] = False,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Require a signature made with the secret in this file."),
    ] = None,
    sign: Annotated[bool, typer.Option("--sign", help="Sign the files with --key if they are unchanged.")] = False,
    json: Json = False,
) -> None:
    """Check that the files are unchanged and that explanations show what the model computes.

    The exit code is not 0 if a file was changed or a check fails.
    """
    checked = _files(model, key, sign, files_only)
    if files_only:
        if json:
            print_json({"model": str(model), "files": checked, "signed": key is not None})
        else:
            signed = f", signed with {key}" if key is not None else ""
            OUT.print(f"The {checked} files of {model} are unchanged{signed}.")
        return
    from sic.evaluate.checks import as_json

    name, images, checks = _measure(model, data, limit, seed, compiled, device)
    result = {"model": str(model), "files": checked, "data": name, "images": images, **as_json(checks)}
    result["statement"] = _statement(result)
    if json:
        print_json(result)
    else:
        _show(checks)
        if result["undecided"]:
            OUT.print(
                "Undecided (too few images, no evidence in them, or the score hardly changes): "
                f"{', '.join(result['undecided'])}."
            )
    if not result["passed"]:
        ERR.print(result["statement"])
        raise typer.Exit(1)
    if not json:
        OUT.print(result["statement"])


def _statement(result: dict[str, Any]) -> str:
    """One line about the scope of the checks; it must not read as an approval of the model."""
    if result["failed"]:
        return f"The explanations of {result['model']} fail: {', '.join(result['failed'])}."
    if len(result["undecided"]) == len(result["axioms"]):
        return f"Nothing was checked: {result['model']} finds no evidence in these images."
    return (
        f"Checked on {result['images']} images: the explanations of {result['model']} agree with its scores. This says "
        "nothing about whether its answers are right or whether it may be used (see sic evaluate)."
    )


def _measure(
    model: Path, data: str | None, limit: int, seed: int, compiled: bool, device: str | None
) -> "tuple[str, int, list[Check]]":
    """The name and number of the images, and the checks."""
    import torch

    from sic.data.loading import readable, view_batches
    from sic.evaluate.verification import measure, require_promise
    from sic.model import load
    from sic.run import Run

    with Talker() as talker:
        where = pick_device(device)
        if where.startswith("mps"):
            raise SicError("sic verify computes in double precision, which Apple's GPUs do not have: --device cpu.")
        loaded = load(model, where)
        require_promise(loaded.classifier)
        name, files = _images(Run(model, loaded.config, f"sic verify {model} DATA"), data, talker)
        files, bad = readable(_some(files, limit, seed))
        for file, reason in bad:
            talker.warn(f"Skipped {file}: {reason}.")
        if not files:
            raise SicError("None of the images can be read.")
        talker.say(f"Measuring on {len(files)} images: {name}.")
        images = torch.cat(list(view_batches(files, loaded.config.preprocessing)))
        checks = measure(
            loaded,
            load(model, where),
            images,
            seed=seed,
            compiled=compiled,
            watch=talker.advance,
        )
    return name, len(files), checks


def _show(checks: "list[Check]") -> None:
    from rich.table import Table

    table = Table("check", "statement", "worst", "limit", "a wrong explanation", "checks", "")
    for check in checks:
        verdict = styled(check.verdict, {"pass": "green", "FAIL": "red"}.get(check.verdict, "yellow"))
        worst, allowed = f"{check.worst:.1e}", f"{check.limit:.0e}" if check.limit else "0"
        if check.name == "completeness":
            residuals = check.details
            worst = f"{residuals['residual_float32']:.1e} (32 bit)\n{residuals['residual_float64']:.1e} (64 bit)"
            allowed = "1e-04\n1e-10"
        elif check.name == "weights times input":
            worst = f"{check.details['float32']:.1e} (32 bit)\n{check.details['float64']:.1e} (64 bit)"
            allowed = "1e-05\n1e-09"
        wrong = f"{check.wrong[1]:.1e}: {check.wrong[0]}"
        table.add_row(check.name, check.statement, worst, allowed, wrong, str(check.checks), verdict)
    OUT.print(table)
    for note in _notes(checks):
        OUT.print(note)


def _notes(checks: "list[Check]") -> Iterator[str]:
    """Remarks that are not in the table."""
    details = {check.name: check.details for check in checks}
    if apart := details["completeness"]["input_independent_share"]:
        yield f"{apart:.1%} of the evidence comes from positions, not from pixels (positional code)."
    if details["completeness"]["mean_evidence"] < 1e-6:
        yield "! This model finds no evidence for any class, so there was nothing to add up; train it longer."
    deletion = details["deletion"]
    (low, high), (flat_low, flat_high) = deletion["interval"], deletion["uniform_interval"]
    if next(check.checks for check in checks if check.name == "deletion") < 2:
        return
    yield (
        f"Deletion: removing the top fifth of the map lowers the score by {deletion['drop_beyond_random']:.2f} more "
        f"than removing random pixels (95 % interval {low:.2f} to {high:.2f}); with a uniform map it would be "
        f"{deletion['uniform_map']:.2f} ({flat_low:.2f} to {flat_high:.2f})."
    )
    if lag := deletion["lag_interval"]:
        yield (
            f"Removing the top fifth by the network's own arithmetic lowers it by {deletion['lag']:.2f} more than by "
            f"the map (95 % interval {lag[0]:.2f} to {lag[1]:.2f}); for a right map this is 0."
        )


def _files(model: Path, key: Path | None, sign: bool, files_only: bool) -> int:
    """Check the files and return their number; sign them, if wanted. SicError if one was changed."""
    from sic import directory
    from sic.backbones.distilled import distilled_file
    from sic.integrity import MANIFEST, read_key

    if key is None and not sign and not files_only and not directory.stored(model, MANIFEST).is_file():
        if distilled_file(model) is not None:  # it comes with sic
            return 0
        ERR.print(f"! {model} has no {MANIFEST}: an older sic saved it, so changes of its files cannot be detected.")
        return 0
    if sign and key is None:
        raise SicError("--sign needs --key FILE: the secret to sign with.")
    secret = None if key is None else read_key(key)
    if sign and secret is not None:
        directory.sign(model, secret)
    return directory.check_files(model, secret)


def _some(files: list[Path], limit: int, seed: int) -> list[Path]:
    """At most `limit` files, drawn at random: sorted by class, the first ones show few classes."""
    return files if limit >= len(files) else sorted(random.Random(seed).sample(files, limit))


def _images(run: "Run", data: str | None, talker: Talker) -> tuple[str, list[Path]]:
    """The test images of a dataset (else validation, else training), or all images in a folder."""
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
