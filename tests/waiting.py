"""Waiting for events: generously, because the machine may be busy with something else."""

import subprocess
import time
from collections.abc import Callable
from typing import Any

LONG = 600.0
"""Seconds after which something must have gone wrong."""


def wait_until(condition: Callable[[], Any], process: "subprocess.Popen[Any] | None" = None) -> None:
    """Return as soon as `condition` holds; fail if `process` ends before."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, "this takes too long"
        time.sleep(0.02)
