"""The images that a model is looked at with: those that the user names, or the model's own data."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sic.cli.console import Talker
from sic.errors import SicError

if TYPE_CHECKING:
    from sic.data.dataset import ImageData
    from sic.evaluate.held_out import HeldOut


def open_data(model: Path, data: str | None, card: dict[str, Any], talker: Talker, command: str) -> "ImageData":
    """The labelled images in `data`; without it, in the data that the model was trained on.

    `card`: what `config.json` says about that data. `command`: who asks, for the way out.
    """
    import sic.data
    from sic.data.boxes import NoBoxes
    from sic.data.source import BUILT_IN
    from sic.directory import RUN, read_run

    arguments: dict[str, Any] = {"where": data, "roi": bool(card.get("roi"))}
    if data is None:
        # Without the record of its run a copied model only knows what its data was called.
        copied = not (model / RUN).is_file() and card.get("name") == BUILT_IN
        if not copied and not (model / RUN).is_file():
            raise SicError(
                f"{model} does not say where its data is (it has no {RUN}); name images: sic {command} {model} DATA."
            )
        arguments = {"where": BUILT_IN} if copied else read_run(model)["data"]["opened_with"]
        where = str(arguments["where"])
        if where != BUILT_IN and not Path(where).exists():
            raise SicError(
                f"The data that {model} was trained on is not at {where}; name images: sic {command} {model} DATA."
            )
    progress = talker.progress("preparing images")
    try:
        return sic.data.open(progress=progress, **arguments)
    except NoBoxes:
        if data is None:
            raise
        talker.warn(f"{model} was trained on images cut to their boxes; those in {data} are taken as they are.")
        return sic.data.open(data, progress)


def judging_images(
    model: Path, opened: "ImageData", classes: list[str], limit: int | None, talker: Talker
) -> "HeldOut":
    """The fairest images of `opened` to judge the model by, at most `limit`; unreadable ones are said and left out."""
    from dataclasses import replace

    from sic.directory import RUN, read_run
    from sic.evaluate.held_out import held_out, spread
    from sic.evaluate.outputs import readable

    run: dict[str, Any] = read_run(model) if (model / RUN).is_file() else {}
    where = run.get("data", {}).get("opened_with", {}).get("where")
    own = where in (opened.opened_with["where"], str(opened.root.resolve()))
    images = held_out(opened, classes, run.get("validation", []) if own else [])
    few = [images.samples[row] for row in spread(len(images.samples), limit)]
    good, bad = readable([sample.path for sample in few])
    for file, reason in bad:
        talker.warn(f"Skipped {file}: {reason}.")
    usable = set(good)
    images = replace(images, samples=[sample for sample in few if sample.path in usable])
    if not images.samples:
        raise SicError(f"None of the {images.name} can be read.")
    return images
