"""Shared by several commands: options, also those generated from the settings, and the images that users name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from sic.cli.console import OUT, Talker
from sic.errors import SicError
from sic.machines import best_device
from sic.settings import Network, Option, table

if TYPE_CHECKING:
    from sic.data import ImageData
    from sic.model import Model
    from sic.predictions import Predictions
    from sic.run import Run

ModelFolder = Annotated[Path, typer.Argument(help="A model directory, photos, photos-small, or a file of sic distill.")]
Labelled = Annotated[str | None, typer.Argument(help="Labelled images; default: the dataset of the model.")]
Images = Annotated[list[Path], typer.Argument(help="Image files or folders.")]

LayoutName = Annotated[
    str | None, typer.Option("--layout", help="Layout of the dataset, if it is not recognised correctly.")
]
Group = Annotated[
    str | None,
    typer.Option("--group", help="A regular expression that extracts the patient or specimen from an image's path."),
]
Roi = Annotated[
    bool | None,
    typer.Option(
        "--roi/--no-roi",
        help="Crop every image to its bounding box, as in the paper for CUB-200-2011; the crops are cached.",
    ),
]
Devices = Annotated[int | None, typer.Option(min=1, help="GPUs (or processes) of this machine to train on.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Number of machines; start one process per device on each.")]
Workers = Annotated[int | None, typer.Option(min=0, help="Data loader processes (no effect on the result).")]
Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of images per protocol.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: a GPU if available.")]
Attribution = Annotated[
    str | None, typer.Option("--attribution", help="The attribution method, for models that support several.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Command = Callable[..., None]


def with_settings(*without: str, several: bool = False) -> Callable[[Command], Command]:
    """Add an option for each setting except `without` to a command, which gets them as keyword arguments.

    `several`: settings that can be searched accept several values, as text.
    """

    def extend(command: Command) -> Command:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = sorted(table().values(), key=lambda option: option.name in Network.__dataclass_fields__)
        parameters = [*own, *(_parameter(option, several) for option in options if option.name not in without)]
        setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return extend


def _parameter(option: Option, several: bool) -> inspect.Parameter:
    panel = "Network" if option.name in Network.__dataclass_fields__ else "Training"
    shown: dict[str, Any] = {"help": option.help, "rich_help_panel": panel}
    kind = option.type
    flags = option.flags
    if several and option.search:
        kind = str
        shown["help"] += " Accepts several values, separated by commas."
    elif kind is bool:
        flags = (f"{option.flag}/--no-{option.flag[2:]}", *flags[1:])
    elif kind is int:  # `Option.check` checks the range of floats, because typer rejects NaN as too small
        shown |= {"min": option.low, "max": option.high}
    if option.name == "preset":
        shown |= {"callback": _list_presets, "is_eager": True}
    annotation: Any = Annotated[Optional[kind], typer.Option(*flags, **shown)]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


def tokens(options: Mapping[str, Any]) -> list[str]:
    """Options in the form of a command line; None is left out.

    >>> tokens({"lr": 0.1, "supports_per_class": 2, "relu": False, "layout": None, "roi": True})
    ['--lr', '0.1', '--supports', '2', '--no-relu', '--roi']
    """
    result = []
    for name, value in given(options).items():
        flag = table()[name].flag if name in table() else f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            result.append(flag if value else f"--no-{flag[2:]}")
        else:
            result += [flag, str(value)]
    return result


def pick_device(wanted: str | None) -> str:
    """The device that the user names, else a GPU if there is one."""
    import torch

    if wanted is None:
        return best_device()
    try:
        torch.zeros(1, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise SicError(f"--device {wanted} is not available ({str(error).splitlines()[0]}).") from None
    return wanted


def explain_with(model: "Model", attribution: str | None) -> None:
    """Use the attribution method that the user names."""
    if attribution is not None:
        model.classifier.explain_with(attribution)


def _list_presets(name: str | None) -> str | None:
    """Print the presets for `--preset list`, which needs no data."""
    if name != "list":
        return name
    from rich.table import Table

    from sic.training.presets import PRESETS

    shown = Table("preset", "data", "method", "backbone", "T", "rate", "epochs", "batch", "weights", "reported", "from")
    for key, preset in PRESETS.items():
        temperature = "" if preset.temperature is None else f"{preset.temperature:g}"
        numbers = (temperature, f"{preset.lr:g}", str(preset.epochs), str(preset.batch_size))
        words = (preset.weights or "none", preset.reported, preset.source)
        shown.add_row(key, preset.data, preset.method, preset.backbone, *numbers, *words)
    OUT.print(shown)
    raise typer.Exit


def image_files(given: Sequence[Path]) -> list[Path]:
    """The given files, and all images below the given folders in sorted order."""
    from sic.data.images import SUFFIXES

    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
            if not inside:
                raise SicError(f"There are no images in {path}.")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise SicError(f"{path} does not exist.")
    return found


def as_trained(files: list[Path], run: "Run", talker: Talker) -> list[Path]:
    """The files; for a model trained with `--roi`, the crops of those that are in its dataset."""
    cut = run.cut(files)
    unknown = [file for file, own in zip(files, cut, strict=True) if own is None]
    if unknown:
        talker.warn(
            f"{run.folder} was trained on images cropped to their boxes, and there is no box for {unknown[0]}"
            + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
            + ": crop such images yourself, or expect worse predictions."
        )
    return [own or file for file, own in zip(files, cut, strict=True)]


def labelled_images(run: "Run", data: str | None, talker: Talker) -> "ImageData":
    """The labelled images in `data`; without it, those that the model was trained on."""
    progress = talker.progress("preparing images")
    return run.open(progress) if data is None else run.open_other(data, progress, talker.warn)


def held_out_predictions(
    model: "Model", run: "Run", opened: "ImageData", limit: int | None, talker: Talker, *, own: bool = False
) -> "Predictions":
    """The predictions for held-out images of a dataset, at most `limit`.

    `own`: as in `Predictor.embed_samples`.
    """
    images = run.held_out(opened, limit)
    if not run.is_own(opened):
        images = run.compare(images, talker.progress("comparing"))
    if images.caution is not None:
        talker.warn(images.caution)
    predictions = model.predictions(
        images.samples,
        name=images.name,
        caution=images.caution,
        own=own,
        progress=talker.progress("predictions"),
    )
    for file, reason in predictions.unreadable.items():
        talker.warn(f"Skipped {file}: {reason}.")
    if not len(predictions):
        raise SicError(f"None of the {predictions.name} can be read.")
    return replace(predictions, copies=images.copies)
