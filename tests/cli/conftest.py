"""Running commands as users do, and a model that `sic train` made."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class Sic:
    """`sic …` in a process of its own."""

    def __call__(self, *arguments: object, code: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "sic", *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "160", **environment}
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def refuse(self, *arguments: object) -> str:
        """The one sentence that a wrong call is answered with."""
        done = self(*arguments, code=1)
        sentence = done.stderr.strip().splitlines()[-1]
        assert sentence.startswith("sic: ")
        return sentence


@pytest.fixture(scope="session")
def sic() -> Sic:
    return Sic()


@pytest.fixture(scope="session", params=["resnet_tiny", "vit_small"])
def trained(
    request: pytest.FixtureRequest, sic: Sic, bird_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A model directory and what `sic train --json` said; a convolutional and an attention backbone."""
    out = tmp_path_factory.mktemp("models") / f"a {request.param}"
    flags = ["--epochs", 4, "--backbone", request.param, "--size", 40, "--batch-size", 16]
    return out, sic.json("train", bird_folders, "--out", out, *flags)
