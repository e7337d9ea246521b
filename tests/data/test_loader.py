"""Loader processes: bounded in number, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from sic.data.loader import loader, most_workers
from sic.errors import SicError

SCRIPT = """
import os, sys, time
from torch.utils.data import Dataset
from sic.data.loader import loader

class Many(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index):
        open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
        return bytes(1_000_000)  # goes through a pipe that nobody empties any more

batches = iter(loader(Many(), None, 2, prefetch_factor=8))
next(batches)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("workers", [100_000, -1])
def test_too_many_workers_are_refused(workers: int) -> None:
    data = TensorDataset(torch.arange(4))
    with pytest.raises(SicError, match=f"--workers {workers} is not possible"):
        loader(data, 2, workers)
    assert most_workers() >= 16
    assert [batch[0].tolist() for batch in loader(data, 2)] == [[0, 1], [2, 3]]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    workers: list[int] = []
    try:
        assert parent.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < deadline:
            workers = [int(path.name) for path in tmp_path.iterdir()]
        assert len(workers) == 2 and all(map(alive, workers))
        parent.kill()
        parent.wait()
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(alive, workers))
    finally:
        parent.kill()
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)
