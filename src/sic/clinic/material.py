"""The images that a model was trained and checked on, found again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sic.data import ImageData, Sample
from sic.data import open as open_data
from sic.data.source import BUILT_IN
from sic.directory import RUN, Config, read_run
from sic.errors import SicError


@dataclass
class Material:
    """Where the images of each split are."""

    root: Path
    where: str
    """What the data was opened as."""
    splits: dict[str, list[Sample]]
    """`train`, `validation` and `test` (which may be empty)."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Files that training could not use, with the reason."""
    problems: list[str] = field(default_factory=list)
    """Sentences for the user."""


def find_material(folder: Path, config: Config, data: str | Path | None = None) -> Material:
    """The images of the run that made the model in `folder`, at `data` if they are no longer where they were.

    `run.json` says which of them were held out; without it `data` must come with a validation split of its own.
    """
    run = read_run(folder) if (folder / RUN).is_file() else None
    arguments = _where(folder, run, data)
    opened = open_data(**arguments)
    where = str(arguments["where"])
    if list(opened.classes) != config.classes:
        raise SicError(
            f"{opened.root} holds other classes than {folder} knows; pass the images it was trained on: --data PATH."
        )
    if run is None:
        if not opened.splits.get("val"):
            raise SicError(
                f"{folder} has no {RUN}, so nobody knows which images of {opened.root} were held out; copy that file "
                "there, too, or pass folders train and val with --data PATH."
            )
        splits = {"train": opened.splits["train"], "validation": opened.splits["val"]}
        return Material(opened.root, where, splits | {"test": opened.splits.get("test", [])})
    return _recorded(folder, run, opened, where)


def _where(folder: Path, run: dict[str, Any] | None, data: str | Path | None) -> dict[str, Any]:
    """The arguments to open the data with."""
    recorded = {} if run is None else run["data"].get("opened_with", {})
    if data is not None:
        return {"where": data, "layout": recorded.get("layout"), "roi": bool(recorded.get("roi"))}
    if not recorded:
        raise SicError(
            f"{folder} does not say where the images are that it was trained on ({RUN} is missing or older than that); "
            "pass them: --data PATH."
        )
    where = str(recorded["where"])
    if where != BUILT_IN and not Path(where).exists():
        raise SicError(f"The images that {folder} was trained on are not at {where}; say where they are: --data PATH.")
    return dict(recorded)


def _recorded(folder: Path, run: dict[str, Any], opened: ImageData, where: str) -> Material:
    by_id = {sample.id: sample for split in ("train", "val") for sample in opened.splits.get(split, [])}
    splits = {split: [by_id[id] for id in run[split] if id in by_id] for split in ("train", "validation")}
    problems = []
    for split, samples in splits.items():
        if not samples:
            raise SicError(
                f"None of the {len(run[split])} {split} images of {folder} is in {opened.root}; pass the images it was "
                "trained on: --data PATH."
            )
        if gone := len(run[split]) - len(samples):
            problems.append(f"{gone} of the {len(run[split])} {split} images are no longer in {opened.root}.")
    splits["test"] = opened.splits.get("test", [])
    skipped = {entry["file"]: entry["reason"] for entry in run.get("skipped", [])}
    return Material(opened.root, where, splits, skipped, problems)
