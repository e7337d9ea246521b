"""A checkpoint is whole or not there, and a damaged one is replaced by the next best."""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import sic
from sic.errors import SicError
from sic.training import fit
from sic.training.base import Training
from sic.training.history import (
    BEST,
    LAST,
    SLOW,
    History,
    Silent,
    WholeCheckpoints,
    checkpoint_folder,
    read_checkpoint,
)
from tests.listening import Listening
from tests.training.test_fit import Interrupting, outputs, small


def test_a_kill_while_a_checkpoint_is_written_leaves_the_old_one(tmp_path: Path) -> None:
    """Killed at the moment of the rename, with everything written: also where TMPDIR is another file system."""
    file = tmp_path / "run" / "checkpoints" / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"epoch": 1, "state_dict": {}}, file)
    child = os.fork()
    if child == 0:
        try:

            def kill(*_: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            Path.replace = kill  # type: ignore[assignment]
            shutil.move = shutil.copyfile = kill  # type: ignore[assignment]
            tempfile.tempdir = "/dev/shm" if Path("/dev/shm").is_dir() else None
            WholeCheckpoints().save_checkpoint({"epoch": 2, "state_dict": {}}, file)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert torch.load(file, weights_only=True)["epoch"] == 1
    left = [path for path in file.parent.iterdir() if path != file]
    assert len(left) == 1  # written beside the target, on the same file system
    assert [path.name for path in checkpoint_folder(tmp_path / "run").iterdir()] == ["last.ckpt"]


@pytest.fixture(scope="module")
def whole(bird_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit that nobody interrupts."""
    folder, data = tmp_path_factory.mktemp("whole") / "run", sic.data.open(bird_folders)
    fit(data, small(data, epochs=3), folder, workers=0)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 0.5])
def test_resume_falls_back_to_the_best_checkpoint_and_says_so(
    bird_folders: Path, whole: Path, tmp_path: Path, share: float
) -> None:
    data = sic.data.open(bird_folders)
    settings, folder = small(data, epochs=3), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(data, settings, folder, workers=0, reporter=Interrupting(12))
    last = folder / "checkpoints" / "last.ckpt"
    content = last.read_bytes()
    best = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["epoch"] + 1
    last.write_bytes(content[: int(share * len(content))])
    listening = Listening()
    fit(data, settings, folder, workers=0, resume=True, reporter=listening)
    assert [f"best.ckpt of epoch {best} is used instead" in words for words in listening.warned].count(True) == 1
    assert torch.equal(outputs(whole, bird_folders), outputs(folder, bird_folders))


def test_without_any_readable_checkpoint_it_is_one_sentence(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path, (LAST, BEST), Silent()) is None
    (tmp_path / "last.ckpt").write_bytes(b"")
    (tmp_path / "best.ckpt").write_bytes(b"PK\3\4")
    with pytest.raises(SicError, match="last.ckpt and .*best.ckpt can no longer be read"):
        read_checkpoint(tmp_path, (LAST, BEST), Silent())
    torch.save({"epoch": 4}, tmp_path / "best.ckpt")
    listening = Listening()
    found = read_checkpoint(tmp_path, (LAST, BEST), listening)
    assert found is not None and found[0].name == "best.ckpt" and "epoch 5" in listening.warned[0]


@pytest.mark.slow
def test_no_checkpoint_goes_through_a_link(bird_folders: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "run" / "pixels.bin").symlink_to(tmp_path / "victim")
    data = sic.data.open(bird_folders)
    with pytest.raises(SicError, match="is a link"):
        fit(data, small(data, epochs=1), tmp_path / "run", workers=0)
    assert not any((tmp_path / "elsewhere").iterdir())
    assert (tmp_path / "victim").read_text() == "mine"


def told_while_at_chance(folder: Path, epochs: int, every: int) -> list[str]:
    """Of a fit of two classes that is validated after every so many epochs, and stays at chance."""
    listening, module = Listening(), Mock(spec=Training, collapsed=None, chance=0.5)
    module.settings, module.figures = SimpleNamespace(check_every=every), {"val_score": 0.5}
    history = History(folder / "history.csv", listening)
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}])
    for epoch in range(epochs):
        trainer = Mock(is_global_zero=True, current_epoch=epoch, max_epochs=epochs, optimizers=[optimizer])
        history.on_train_epoch_end(trainer, module)
    return listening.said


@pytest.mark.parametrize("every", [1, 4])
def test_a_slow_start_is_told_in_epochs(tmp_path: Path, every: int) -> None:
    (told,) = told_while_at_chance(tmp_path, 20, every)
    assert f"after {SLOW * every} of 20 epochs" in told


def test_a_slow_start_is_not_told_at_the_end(tmp_path: Path) -> None:
    assert told_while_at_chance(tmp_path, SLOW * 4, 4) == []
