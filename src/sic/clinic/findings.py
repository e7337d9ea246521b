"""What a finding is, and how it says what to do."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """Something about the supports that a person should look at."""

    title: str
    severity: Literal["serious", "notice"]
    sentence: str
    command: str
    """What acts on it."""
    supports: list[int] = field(default_factory=list)
    """Numbers of the supports it is about."""
    images: list[str] = field(default_factory=list)
    """Ids of the images that show it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was measured, and the limit."""


@dataclass(frozen=True)
class Commands:
    """Writes commands about the model in `folder`; `data`: where its images are, if that must be said."""

    folder: Path
    data: str | None = None
    trained_on: str = "DATA"
    """What `sic train` was given."""

    def supports(self, *words: object) -> str:
        data = [] if self.data is None else ["--data", self.data]
        return shlex.join(["sic", "supports", *map(str, [self.folder, *words, *data])])

    def explain(self, image: Path) -> str:
        return shlex.join(["sic", "explain", str(self.folder), str(image), "--out", f"why-{image.stem}.png"])

    def train(self, temperature: float) -> str:
        out = self.folder.with_name(f"{self.folder.name}-T{temperature:g}")
        where = self.data or self.trained_on
        words = ["sic", "train", where, "--weights", self.folder, "-T", f"{temperature:g}", "--out", out]
        return shlex.join(map(str, words))
