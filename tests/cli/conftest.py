"""Running commands as users do, and a model that `sic train` made."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sic.cli.main import main

Done = subprocess.CompletedProcess[str]
ATTENTION = "vit_small"


class Sic:
    """`sic …`: in this process, which has loaded already what takes seconds to load, or in one of its own."""

    def __init__(self, run: Callable[[list[str], dict[str, str]], Done]) -> None:
        self.run = run

    def __call__(self, *arguments: object, code: int = 0, **environment: str) -> Done:
        done = self.run(list(map(str, arguments)), environment)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: object, code: int = 0, **environment: str) -> Any:
        return json.loads(self(*arguments, "--json", code=code, **environment).stdout)

    def refuse(self, *arguments: object) -> str:
        """The one sentence that a wrong call is answered with."""
        done = self(*arguments, code=1)
        sentence = done.stderr.strip().splitlines()[-1]
        assert sentence.startswith("sic: ")
        return sentence


def here(arguments: list[str], environment: dict[str, str]) -> Done:
    code, out, err = 0, io.StringIO(), io.StringIO()
    terminated = signal.getsignal(signal.SIGTERM)
    with (
        patch.object(sys, "argv", ["sic", *arguments]),
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, terminated)
    return Done(arguments, code, out.getvalue(), err.getvalue())


def apart(arguments: list[str], environment: dict[str, str]) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "sic", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "160", **environment},
    )


@pytest.fixture(scope="session")
def sic() -> Sic:
    return Sic(here)


@pytest.fixture(scope="session")
def sic_apart() -> Sic:
    """For what the process itself matters to, and once for each command: here, others have loaded what it needs."""
    return Sic(apart)


@pytest.fixture(scope="session", params=["resnet_tiny", ATTENTION])
def backbone(request: pytest.FixtureRequest) -> str:
    """A convolutional and an attention backbone."""
    return str(request.param)


@pytest.fixture(scope="session")
def sic_once_apart(backbone: str, sic: Sic, sic_apart: Sic) -> Sic:
    """In a process of its own for one of the backbones."""
    return sic_apart if backbone == ATTENTION else sic


@pytest.fixture(scope="session")
def trained(
    backbone: str, sic_once_apart: Sic, bird_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A model directory and what `sic train --json` said."""
    out = tmp_path_factory.mktemp("models") / f"a {backbone}"
    flags = ["--epochs", 4, "--backbone", backbone, "--size", 40, "--batch-size", 16]
    return out, sic_once_apart.json("train", bird_folders, "--out", out, *flags)
