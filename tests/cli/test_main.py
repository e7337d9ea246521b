"""What the outermost function says about errors that no command expects."""

import os
import signal
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import Dataset

from sic.cli import main
from sic.data.loading import loader


class Dies(Dataset[int]):
    """The process that loads an item is killed, as the system does when memory runs out."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def full_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def other() -> None:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            lambda: list(loader(Dies(), 1, workers=1)),
            "ended a loader process, probably because memory ran out; end other",
        ),
        (full_gpu, "memory of the GPU is full; end other programs"),
        (other, "Unexpected error (RuntimeError: no such kernel)"),
    ],
    ids=["loader", "gpu", "other"],
)
def test_a_lack_of_memory_is_one_sentence_with_a_way_out(
    command: Callable[[], None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(main, "app", command)
    monkeypatch.setattr(main, "leave_when_told", lambda: None)
    with pytest.raises(SystemExit) as end:
        main.main()
    said = capsys.readouterr().err
    assert end.value.code == 1 and words in said and said.count("\n") == 1
