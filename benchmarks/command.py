"""Commands of `sic` as a user would give them."""

import json
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
