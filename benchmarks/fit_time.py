"""Which share of the time of a fit is spent in training steps? For a fit on a GPU, from the first image to the model.

    PYTHONPATH=src python3 benchmarks/fit_time.py DATA [epochs=8 size=160 …] [--out results/speed.json]

Settings are given by their names; the default is the recipe `tuned` with the weights for photographs.

`share`: of the time of `sic.fit`, the part in training steps of the network (forward, backward, optimiser; the device
is waited for after each). The first step does not count, because it compiles the network (`first_step`, in seconds).
The rest is reading images, looking for copies, the fit of the projection, choosing supports, validation, and measuring
the model in the end; `parts` has the seconds of each part, in which `training` is everything around the steps, too.
Importing torch is not counted. Adds the key `fit`.
"""

import argparse
import functools
import shutil
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning
import record
import torch
from command import as_typed

import sic
from sic.cli.console import Talker
from sic.cli.entries import read_setting
from sic.training import trainer

PARTS = {
    "reading": ("sic.training.fit", "gather"),
    "projection": ("sic.training.fit", "fit_projection"),
    "training": ("sic.training.fit", "_train"),
    "keeping the better model": ("sic.training.fit", "_keep_better"),
    "measuring": ("sic.fitting", "_figures"),
    "saving": ("sic.directory", "save"),
}
"""The functions whose time is taken, by the name of the part."""
DEFAULTS: dict[str, Any] = {"weights": "photos", "recipe": "tuned", "epochs": 8, "size": 160}


def timed(seconds: dict[str, float], part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose time is added to `seconds[part]`."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **more)
        finally:
            seconds[part] += time.perf_counter() - began

    return wrapper


class Clock(lightning.Callback):
    """Adds up the seconds of all training steps but the first."""

    def __init__(self) -> None:
        self.seconds, self.first, self.steps, self._began = 0.0, 0.0, 0, 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        if self.steps:
            self.seconds += seconds
        else:
            self.first = seconds
        self.steps += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--model", type=Path, default=Path("runs/fit_time"))
    parser.add_argument("--out", type=Path, default=Path("results/speed.json"))
    options = parser.parse_args()
    shutil.rmtree(options.model, ignore_errors=True)
    clock, original = Clock(), trainer.lightning_trainer
    trainer.lightning_trainer = lambda folder, machines, callbacks, **more: original(
        folder, machines, [*callbacks, clock], **more
    )
    parts = dict.fromkeys(PARTS, 0.0)
    for part, (module, name) in PARTS.items():
        place = import_module(module)
        setattr(place, name, timed(parts, part, getattr(place, name)))
    pairs = (each.partition("=") for each in options.settings)
    said = {name: read_setting(name, value) for name, _, value in pairs}
    began = time.perf_counter()
    with Talker() as talker:
        model = sic.fit(
            options.data,
            options.model,
            reporter=talker,
            **DEFAULTS | said,
        )
    seconds = time.perf_counter() - began
    found = {
        "command": as_typed(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "images": model.config.data["images"]["train"],
        "classes": len(model.config.classes),
        "compiled": model.config.training["compiled"],
        "seconds": round(seconds, 1),
        "steps": clock.steps,
        "first_step": round(clock.first, 1),
        "in_steps": round(clock.seconds, 1),
        "share": round(clock.seconds / seconds, 3),
        "parts": {part: round(each, 1) for part, each in parts.items()},
    }
    print(found)
    print(model.config.figures)
    record.add(options.out, {"fit": found})


if __name__ == "__main__":
    main()
