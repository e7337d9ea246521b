"""The model directory: `config.json`, `model.safetensors` and `supports/`. No pickle; everything needed is in it."""

import hashlib
import json
import os
import platform
import shutil
import time
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from sic import backbones
from sic.backbones import Load
from sic.calibration import Calibration, calibration_from_json
from sic.card import model_card
from sic.data.dataset import Task
from sic.data.images import Preprocessing
from sic.errors import SicError
from sic.evaluate.headline import Headline, quality_lines
from sic.files import inside, locked, real_folder, write_atomically, write_json
from sic.integrity import (
    MANIFEST,
    check_classes,
    check_fields,
    check_figures,
    check_finite,
    check_manifest,
    check_settings,
    manifest,
)
from sic.machines import exact_arithmetic
from sic.methods import Classifier, method
from sic.settings import Network
from sic.supports import Support, read_supports, remove_unlisted, support_files, write_supports
from sic.version import __version__

FORMAT = 2
CONFIG, WEIGHTS, SUPPORTS, CARD = "config.json", "model.safetensors", "supports", "README.md"
RUN = "run.json"
"""The record of a training run, beside the model: settings, split, where the data was."""
STAGING, NEXT = ".staging", ".next"
"""A model that is being written, and one that is completely written and on its way to the places of the old one."""
ATTEMPTS = 20
"""To read a directory in which a new model is saved at the same time."""


@dataclass
class Config(Network):
    """What a model is, as written to `config.json`; the settings of `Network` are part of it."""

    backbone: str
    classes: list[str]
    task: Task
    preprocessing: Preprocessing
    supports_per_class: int
    temperature: float
    data: dict[str, Any] = field(default_factory=dict)
    """Where the training data came from and how it was split."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings of the fit: recipe, epochs, learning rate, seed."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures reached, each with the images it was measured on."""
    calibration: Calibration = Calibration()
    """How logits become probabilities, fitted on held-out images."""
    edits: list[dict[str, Any]] = field(default_factory=list)
    """What was done to the supports since training (see `sic.clinic.history`)."""


ALWAYS = ("form", "antialiased", "latent", "b", "data", "training", "figures")
"""Every file has these, besides the fields without a default. Files from before a setting existed lack it; its default
is what sic did then."""


def build(
    config: Config, supports: int, *, biases: bool = False, load: Load | None = None, measure: bool = False
) -> Classifier:
    """A classifier of this configuration with room for `supports` cases; `load`, `biases` and `measure` as in
    `backbones.create`."""
    kind = method(config.method)
    backbone = backbones.create(
        config.backbone,
        config.form,
        b=config.b if config.backbone_b is None else config.backbone_b,
        antialiased=config.antialiased,
        padding=config.padding,
        biases=biases,
        load=load,
        measure=measure,
    )
    arguments: dict[str, Any] = {name: getattr(config, name) for name in kind.options}
    if kind.with_supports:
        arguments["supports"] = supports
    classifier = kind(backbone, len(config.classes), **arguments)
    classifier.calibration = config.calibration
    return classifier


def save(
    classifier: Classifier, config: Config, supports: list[Support], folder: Path, *, replacing: str | None = None
) -> str:
    """Write the model directory and return its `version`: all files beside the old ones first, so that a failure
    leaves those as they were.

    `replacing`: the version that is to be replaced; any other one is refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if replacing is not None and version(folder) != replacing:
            raise SicError(f"Somebody else has changed {folder} since it was opened here; open it again.")
        _finish_saving(folder)
        staging = real_folder(folder / STAGING)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            _write(classifier, config, supports, staging)
            for file in _files(staging):
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            staging.replace(folder / NEXT)  # from here on the new model counts
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        written_version = version(folder)
        _finish_saving(folder)
    return written_version


def _finish_saving(folder: Path) -> None:
    """Move a completely written model to its places, also one whose process was interrupted there. The caller has
    locked the folder.

    Only the files of a model are moved, only into `folder` itself; each step is harmless if done twice.
    """
    staged = real_folder(folder / NEXT)
    if not staged.is_dir():
        return
    real_folder(staged / SUPPORTS)
    real_folder(folder / SUPPORTS).mkdir(exist_ok=True)
    for file in _files(staged):
        file.replace(folder / file.relative_to(staged))
    remove_unlisted(folder / SUPPORTS)
    shutil.rmtree(staged, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    """The files of a model, as far as they are in `folder`; `config.json` last."""
    names = [MANIFEST, *_names(folder)]
    return [path for name in names if (path := folder / name).is_file() and not path.is_symlink()]


def _names(folder: Path) -> list[str]:
    """The names of a model's files, `config.json` last."""
    return [*(f"{SUPPORTS}/{name}" for name in support_files(folder / SUPPORTS)), CARD, WEIGHTS, CONFIG]


def check_files(folder: Path, key: bytes | None = None) -> int:
    """Compare the files of a model with the manifest that was saved with them, and its signature with `key`; returns
    their number. SicError where something was changed."""
    read_config(folder)
    needed = [CONFIG, WEIGHTS, f"{SUPPORTS}/supports.json"]
    return check_manifest(folder, lambda name: read_stored(folder, name), needed, key)


def sign(folder: Path, key: bytes) -> None:
    """Sign the files of a model as they were saved. The next save removes the signature."""
    with locked(folder):
        _finish_saving(folder)
        check_files(folder)
        listed = manifest(_names(folder), lambda name: read_stored(folder, name), key)
        write_atomically(folder / MANIFEST, listed)


def stored(folder: Path, name: str) -> Path:
    """Where a file of the model is: among those of a complete save that was interrupted, or in its place."""
    staged = folder / NEXT / name
    return inside(staged if staged.is_file() else folder / name, folder)


def read_stored(folder: Path, name: str) -> bytes:
    """The content of a file of the model; reading changes nothing in the directory."""
    for _ in range(ATTEMPTS):
        try:
            return stored(folder, name).read_bytes()
        except FileNotFoundError:  # unless a writer moved it to its place just now
            if not (folder / name).exists():
                break
    return stored(folder, name).read_bytes()


def version(folder: Path) -> str:
    """Differs between any two saves of a model directory that hold other models; empty where there is none."""
    try:
        return hashlib.sha256(read_stored(folder, CONFIG)).hexdigest()
    except OSError:
        return ""


def stamp(folder: Path) -> tuple[int, int] | None:
    """Changes with every save, also of the same model; None where there is no model."""
    try:
        about = stored(folder, CONFIG).stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


def _write(classifier: Classifier, config: Config, supports: list[Support], folder: Path) -> None:
    """The files of a model, `config.json` last."""
    write_supports(supports, folder / SUPPORTS)
    data = save_tensors({name: value.contiguous().cpu() for name, value in classifier.state_dict().items()})
    write_atomically(folder / WEIGHTS, data)
    content = {
        "format": FORMAT,
        **asdict(config),
        "bias": classifier.bias,
        "weights_sha256": hashlib.sha256(data).hexdigest(),
        "versions": {"sic": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    write_atomically(folder / CARD, model_card(content))
    write_json(folder / CONFIG, content)
    listed = manifest(_names(folder), lambda name: (folder / name).read_bytes())
    write_atomically(folder / MANIFEST, listed)


def read_config(folder: Path) -> tuple[Config, str]:
    """The configuration, and the checksum that the weights should have."""
    if not folder.is_dir():
        raise SicError(f"{folder} is not a model directory: there is no such folder.")
    file = folder / CONFIG
    try:
        data = read_stored(folder, CONFIG)
    except FileNotFoundError:
        unfinished = (folder / RUN).is_file()
        hint = "training has not finished there; continue it with --resume" if unfinished else f"it has no {CONFIG}"
        raise SicError(f"{folder} is not a model directory: {hint}.") from None
    except OSError as error:
        raise SicError(f"{file} cannot be read ({error.strerror}).") from None
    try:
        content = json.loads(data)
        if content["format"] > FORMAT:
            raise SicError(f"{file} was written by a newer sic (format {content['format']}); update sic to read it.")
        if content["format"] < FORMAT:
            raise SicError(f"{file} was written by an older sic (format {content['format']}); train the model again.")
        if content.get("carried_biases"):
            raise SicError(f"{folder} holds a network with carried biases, which sic no longer has; train it again.")
        found = {each.name: content[each.name] for each in fields(Config) if each.name in content or _needed(each)}
        found["preprocessing"] = Preprocessing(**content["preprocessing"])
        found["calibration"] = calibration_from_json(content.get("calibration", {}))
        config = Config(**found)
        check_fields(config)
        check_classes(config.classes)
        check_settings(config.training)
        for figures in config.figures.values():
            check_figures(figures)
            if (headline := Headline.of(figures)) is not None:
                check_fields(headline)
            quality_lines(figures)
        return config, content["weights_sha256"]
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = "it is not JSON" if isinstance(error, json.JSONDecodeError) else repr(error)
        raise SicError(f"{file} is damaged ({reason}); copy the model directory again.") from None


def _needed(each: Field[Any]) -> bool:
    """Whether every `config.json` has this field of `Config`."""
    return each.name in ALWAYS or (each.default is MISSING and each.default_factory is MISSING)


def load(folder: Path, device: torch.device | str = "cpu") -> tuple[Classifier, Config, list[Support]]:
    """Read a model directory; weights and support images must be the ones that were saved."""
    for attempt in range(ATTEMPTS):
        time.sleep(attempt * 0.01)
        before = stamp(folder)
        try:
            model = _load(folder, device)
        except SicError:
            if stamp(folder) == before:
                raise
            continue
        if stamp(folder) == before:
            return model
    raise SicError(f"{folder} is written to all the time; try again later.")


def _load(folder: Path, device: torch.device | str) -> tuple[Classifier, Config, list[Support]]:
    config, checksum = read_config(folder)
    file = folder / WEIGHTS
    try:
        data = read_stored(folder, WEIGHTS)
    except OSError as error:
        raise SicError(f"{file} cannot be read ({error.strerror}); copy the model directory again.") from None
    if hashlib.sha256(data).hexdigest() != checksum:
        raise SicError(f"{file} is not the file that was saved (truncated or edited); copy the model directory again.")
    side = config.preprocessing.size
    supports = read_supports(folder / SUPPORTS, lambda name: read_stored(folder, f"{SUPPORTS}/{name}"), side)
    exact_arithmetic()
    # Parameters made inside a caller's inference mode could never be explained: they would lack a gradient.
    with torch.inference_mode(False):
        try:
            classifier = build(config, len(supports))
            tensors = load_tensors(data)
            check_finite(tensors)
            classifier.load_state_dict(tensors)
            if classifier.support_labels != [support.label for support in supports]:
                raise ValueError("the supports are of other classes")
            if not all(0 <= label < len(config.classes) for label in classifier.support_labels):
                raise ValueError("there are supports of unknown classes")
        except (RuntimeError, TypeError, ValueError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise SicError(f"The parts of {folder} do not fit together ({reason}); copy the directory again.") from None
        return classifier.to(device).eval(), config, supports


def read_run(folder: Path) -> dict[str, Any]:
    """What `run.json` recorded when the run was started."""
    file = inside(folder / RUN, folder)
    if not file.is_file():
        raise SicError(f"There is nothing to resume in {folder}: it has no {RUN}; leave out --resume to start there.")
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise SicError(f"{file} is damaged ({error}); start again with another --out.") from None
