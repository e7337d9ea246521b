"""Commands of `sic` as a user would give them."""

import json
import shlex
import subprocess
import sys
from typing import Any


def sic(*arguments: str) -> Any:
    """The JSON that one prints."""
    command = [sys.executable, "-m", "sic", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sic {' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def draw_birds(folder: str, classes: int, train: int, test: int, size: int) -> None:
    """So many of each class."""
    numbers = {"--classes": classes, "--train": train, "--test": test, "--size": size}
    sic("data", "birds", folder, *(part for flag, number in numbers.items() for part in (flag, str(number))))


def as_typed() -> str:
    """The command that runs this benchmark, for the record."""
    return shlex.join(["python", *sys.argv])


def ours_and_passed_on() -> tuple[list[str], list[str]]:
    """The arguments of a benchmark before and after `--`: its own, and those that it hands to `sic`."""
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    return given[:end], given[end + 1 :]
