"""Checksums show damage; a signature shows tampering."""

import json
from pathlib import Path
from typing import Any

import pytest

import sic
from sic.directory import CONFIG, SUPPORTS, WEIGHTS, check_files, sign
from sic.errors import SicError
from sic.integrity import MANIFEST, manifest, read_key
from tests.cli.conftest import Sic, here
from tests.test_directory import model, save

KEY, OTHER = b"0123456789abcdef" * 2, b"fedcba9876543210" * 2


@pytest.fixture
def command() -> Sic:
    return Sic(here)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(model(), tmp_path / "model")
    return tmp_path / "model"


def swap_classes(folder: Path) -> None:
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    content["classes"].reverse()
    (folder / CONFIG).write_text(json.dumps(content), encoding="utf-8")


def test_a_saved_model_is_as_it_was_saved(folder: Path) -> None:
    assert check_files(folder) == 10  # six pictures, their list, card, weights, configuration
    save(model(seed=1, per_class=1), folder)
    assert check_files(folder) == 7


def test_swapped_class_names_are_found(folder: Path) -> None:
    swap_classes(folder)
    assert sic.load(folder).classes[0] == "c"  # nothing else gives it away
    with pytest.raises(SicError, match="config.json is not the file that was saved"):
        check_files(folder)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, f"{SUPPORTS}/supports.json", f"{SUPPORTS}/00003.png", "README.md"])
def test_every_file_counts(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data + b" ")
    if name == CONFIG:
        assert len(sic.load(folder).supports) == 6
    with pytest.raises(SicError, match=f"{name} is not the file that was saved"):
        check_files(folder)
    (folder / name).write_bytes(data)
    assert check_files(folder) == 10


def test_checksums_alone_can_be_made_again_and_a_signature_cannot(folder: Path) -> None:
    sign(folder, KEY)
    assert check_files(folder, KEY) == check_files(folder) == 10
    with pytest.raises(SicError, match="signed with another key"):
        check_files(folder, OTHER)
    swap_classes(folder)
    names = list(json.loads((folder / MANIFEST).read_text())["files"])
    signature = json.loads((folder / MANIFEST).read_text())["signature"]

    def read(name: str) -> bytes:
        return (folder / name).read_bytes()

    (folder / MANIFEST).write_bytes(manifest(names, read))
    assert check_files(folder) == 10  # the attacker's own checksums
    with pytest.raises(SicError, match="is not signed"):
        check_files(folder, KEY)
    for forged in ({"signature": signature}, {"signature": 7}, json.loads(manifest(names, read, OTHER))):
        (folder / MANIFEST).write_text(json.dumps(json.loads(manifest(names, read)) | forged))
        with pytest.raises(SicError, match="signed with another key, or changed"):
            check_files(folder, KEY)


def test_what_is_not_listed_is_not_trusted(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(manifest(["README.md"], lambda name: (folder / name).read_bytes(), KEY))
    with pytest.raises(SicError, match="config.json is not listed"):
        check_files(folder, KEY)


def test_a_changed_model_is_not_signed_and_a_save_takes_the_signature_away(folder: Path) -> None:
    sign(folder, KEY)
    save(model(seed=1), folder)
    with pytest.raises(SicError, match="is not signed"):
        check_files(folder, KEY)
    swap_classes(folder)
    with pytest.raises(SicError, match="is not the file that was saved"):
        sign(folder, KEY)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": []}', '{"files": {"../x": 1}}', "[" * 100_000, '{"files": {"a\\u0000": "1"}}']
)
def test_a_damaged_manifest_is_one_sentence(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(SicError) as caught:
        check_files(folder)
    assert str(folder) in str(caught.value)
    assert len(sic.load(folder).supports) == 6  # loading needs none


def test_names_in_a_manifest_do_not_lead_out(folder: Path) -> None:
    (folder.parent / "secret").write_text("mine")
    files = json.loads((folder / MANIFEST).read_text())["files"]
    (folder / MANIFEST).write_text(json.dumps({"files": files | {"../secret": "0"}}))
    with pytest.raises(SicError, match="link out of|not the file"):
        check_files(folder)


def test_the_command(command: Sic, folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    assert command.json("verify", folder, "--files") == {"model": str(folder), "files": 10, "signed": False}
    assert "is not signed" in command.refuse("verify", folder, "--files", "--key", key)
    assert "needs --key" in command.refuse("verify", folder, "--sign")
    signed: dict[str, Any] = command.json("verify", folder, "--files", "--key", key, "--sign")
    assert signed["signed"] and "signed with" in command("verify", folder, "--files", "--key", key).stdout
    swap_classes(folder)
    assert "config.json is not the file that was saved" in command.refuse("verify", folder, "--files")
    assert "config.json is not the file that was saved" in command.refuse("verify", folder, tmp_path)
    (folder / MANIFEST).unlink()
    assert "has no manifest.json" in command.refuse("verify", folder, "--files")
    key.write_bytes(b"short")
    assert "fewer than 32 bytes" in command.refuse("verify", folder, "--key", key)
    with pytest.raises(SicError, match="cannot be read"):
        read_key(tmp_path / "none")


@pytest.mark.parametrize("name", ["verify", "evaluate", "report", "train"])
def test_a_negative_seed_is_a_wrong_call(command: Sic, folder: Path, name: str) -> None:
    assert "--seed" in command(name, folder, "--seed", -1, code=2).stderr
