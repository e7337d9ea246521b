"""`sic serve` as a process."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.serve.conftest import Served, address_of

pytestmark = pytest.mark.slow


def test_it_listens_answers_and_ends(served: Served) -> None:
    command = [sys.executable, "-m", "sic", "serve", str(served.folder), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = address_of(server)
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}healthz") as answer:
            assert json.load(answer) == {"status": "ok"}
        port = address.rstrip("/").rsplit(":", 1)[1]
        again = subprocess.run([*command[:-2], port], capture_output=True, text=True, check=False)
        assert again.returncode == 1 and f"--port {port} cannot be used" in again.stderr
        assert "Traceback" not in again.stderr
    finally:
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=600)
    assert server.returncode == 0 and "Traceback" not in said
