"""One file for figures of several benchmarks."""

import json
from pathlib import Path
from typing import Any


def add(file: Path, figures: dict[str, Any]) -> None:
    """Write `figures` to a JSON file, beside what other benchmarks have written to it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**before, **figures}, indent=1) + "\n")
