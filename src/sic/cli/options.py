"""Command-line options that several commands share, and those made from the table of settings."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Optional

import typer

from sic.settings import Network, Option, table

Devices = Annotated[int | None, typer.Option(min=1, help="GPUs (or processes) of this machine to train on.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Machines, each with one process started per device.")]
Workers = Annotated[int | None, typer.Option(min=0, help="Loader processes (no effect on the result).")]

Command = Callable[..., None]


def with_settings(*without: str, several: bool = False) -> Callable[[Command], Command]:
    """Give a command an option for each setting except `without`; they arrive in its keyword arguments, by setting.

    `several`: settings that can be searched take several values, as text.
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
        shown["help"] += " Several values: with commas."
    elif kind is bool:
        flags = (f"{option.flag}/--no-{option.flag[2:]}", *flags[1:])
    elif kind is int:  # of a number that is not whole, `Option.check` says the range: typer takes NaN for too small
        shown |= {"min": option.low, "max": option.high}
    if option.name == "preset":
        shown |= {"callback": _list_presets, "is_eager": True}
    annotation: Any = Annotated[Optional[kind], typer.Option(*flags, **shown)]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


def tokens(options: Mapping[str, Any]) -> list[str]:
    """Options as on a command line; None is left out.

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


def _list_presets(name: str | None) -> str | None:
    """`--preset list` answers without data."""
    if name != "list":
        return name
    from rich.table import Table

    from sic.cli.console import OUT
    from sic.training.presets import PRESETS

    shown = Table("preset", "data", "method", "backbone", "T", "rate", "epochs", "batch", "weights", "reported", "from")
    for key, preset in PRESETS.items():
        temperature = "" if preset.temperature is None else f"{preset.temperature:g}"
        numbers = (temperature, f"{preset.lr:g}", str(preset.epochs), str(preset.batch_size))
        words = (preset.weights or "none", preset.reported, preset.source)
        shown.add_row(key, preset.data, preset.method, preset.backbone, *numbers, *words)
    OUT.print(shown)
    raise typer.Exit
