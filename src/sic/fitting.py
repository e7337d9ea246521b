"""`sic.fit`: from a folder of images to a trained and measured model."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sic import directory, training
from sic.calibration import WRONG, needed_images, one_of_each
from sic.card import candidates, models_compared, validation_note
from sic.data import open as open_data
from sic.data.dataset import ImageData, Sample, require_outside
from sic.data.images import UnreadableImage
from sic.data.labels import MAIN_SCORE, SCORE_NAMES
from sic.directory import Config
from sic.errors import SicError
from sic.evaluate.headline import Headline
from sic.machines import Machines, best_device
from sic.model import Model, load
from sic.predictions import Predictions
from sic.settings import check, to_json
from sic.supports import resembling_others, support_names
from sic.training import Fitted, Reporter, Settings, Silent, choose, recorded_settings, rival
from sic.training.history import CHECKPOINTS, HISTORY

NAMED = 5
"""The most supports that a training warns of one by one."""
RIVAL = ".photos"
"""Ends the name of the folder beside a model where its rival is until one of them is kept."""


def fit(
    data: str | Path,
    out: str | Path = "runs/model",
    *,
    layout: str | None = None,
    group: str | None = None,
    roi: bool | None = None,
    resume: bool = False,
    workers: int | None = None,
    reporter: Reporter | None = None,
    devices: int = 1,
    nodes: int = 1,
    **overrides: Any,
) -> Model:
    """Train a model on a folder of images and measure it.

    Args:
        data: A folder or table of images, or "birds".
        out: The model directory to write.
        layout: The layout of the data; recognised by default.
        group: A regular expression that finds the patient or specimen in a path; groups are not split apart.
        roi: Whether to crop every image to its bounding box.
        resume: Continue an interrupted run in `out` with its own settings.
        workers: Loader processes; they do not affect the result.
        reporter: Told about choices, warnings and progress; silent by default.
        devices: GPUs (or processes) of each machine. Lightning runs the script again for each process, and only the
            first one returns.
        nodes: Machines.
        **overrides: Settings as in `sic train` (`epochs`, `backbone`, `size`, …); the others are chosen for the data.

    Returns:
        The trained model, with the metrics reached in `config.figures`.

    Raises:
        SicError: The data or a setting cannot be used.
    """
    machines = Machines(devices, nodes)
    reporter = reporter if reporter is not None and machines.first else Silent()
    folder = Path(out)
    check({name: value for name, value in overrides.items() if value is not None})
    if machines.first and not resume:
        training.require_new(folder)  # before the images are looked at
    opened = _opened(data, folder, layout, group, roi, resume, reporter)
    beside = folder.with_name(folder.name + RIVAL)
    alternative = None if resume or machines.processes > 1 else rival(opened, overrides)
    settings, notes = (recorded_settings(folder, overrides), []) if resume else choose(opened, overrides)
    rivals = _rivals(folder, beside, settings) if resume else 0
    unreadable: list[UnreadableImage] = []

    def trained(settings: Settings, where: Path, rivals: int) -> Fitted:
        def measure(fitted: Fitted) -> dict[str, Any]:
            fitted.config.training["compared"] += rivals
            model = Model(fitted.classifier, fitted.config, fitted.supports, folder).to(best_device())
            try:
                return _figures(model, {"validation": fitted.validation, "test": fitted.test}, fitted.tainted, reporter)
            except UnreadableImage as error:
                unreadable.append(error)
                return {}
            finally:
                model.to("cpu")

        how: dict[str, Any] = {"resume": resume, "workers": workers, "reporter": reporter, "machines": machines}
        return training.fit(opened, settings, where, measure=measure, **how)

    if alternative is not None:
        reporter.say(
            "These images are not colour photographs. Two models are trained, one with the network for photographs and "
            "one from scratch; the validation images decide (--weights photos or --recipe scratch trains only one)."
        )
        _make_room(beside)
        photographs, reasons = choose(opened, alternative)
        reporter.say(_chosen(reasons))
        trained(photographs, beside, candidates(to_json(settings)))
        rivals = candidates(to_json(photographs))
    reporter.say(f"Resuming {folder} with its own settings." if resume else _chosen(notes))
    fitted = trained(settings, folder, rivals)
    if unreadable:
        raise SicError(
            f"A held-out image in {opened.root} can no longer be read: the model in {folder} is complete, "
            "but how good it is was not measured."
        )
    model = Model(fitted.classifier, fitted.config, fitted.supports, folder)
    if rivals and (beside / directory.CONFIG).is_file() and _rival_wins(folder, beside, reporter):
        model = load(folder)
    if model.config.task == "single":
        copies = fitted.tainted.get("validation", set())
        held_out = [sample.group for sample in fitted.validation if sample.id not in copies]
        reporter.say(_promise(model.config, len(one_of_each(held_out))))
    return model


def _rivals(folder: Path, beside: Path, settings: Settings) -> int:
    """The models that a run which is resumed is compared with: those of its rival `beside`, or of one that was there
    when the run finished."""
    if (beside / directory.CONFIG).is_file():
        return candidates(directory.read_config(beside)[0].training)
    if (folder / directory.CONFIG).is_file():
        return max(0, int(directory.read_config(folder)[0].training.get("compared", 0)) - settings.compared)
    return 0


def _chosen(notes: Sequence[str]) -> str:
    return "Chosen: " + "; ".join(notes) + "."


def _opened(
    data: str | Path,
    folder: Path,
    layout: str | None,
    group: str | None,
    roi: bool | None,
    resume: bool,
    reporter: Reporter,
) -> ImageData:
    """The images to train on, for the model directory `folder`."""
    cut = bool(directory.read_run(folder)["data"].get("roi")) if resume else bool(roi)
    if roi is not None and roi != cut:
        raise SicError(f"--roi differs from what {folder} was started with; leave it out to resume.")
    opened = open_data(
        data,
        lambda done, total: reporter.advance("preparing images", done, total),
        layout=layout,
        group=group,
        roi=cut,
    )
    require_outside(folder, opened)
    images = ", ".join(f"{len(samples)} {split}" for split, samples in opened.splits.items())
    kind = "images, cropped to their boxes" if cut else "images"
    reporter.say(f"{opened.root}: {opened.layout}, {len(opened.classes)} classes, {kind}: {images}.")
    for problem in opened.problems:
        reporter.warn(problem)
    return opened


def _make_room(beside: Path) -> None:
    """Remove what an interrupted fit has left; other folders are in the way."""
    if (beside / directory.RUN).is_file():
        shutil.rmtree(beside)
    elif beside.exists():
        raise SicError(f"{beside} is in the way of a second model; move it, or choose another --out.")


def _rival_wins(folder: Path, beside: Path, reporter: Reporter) -> bool:
    """Keep the model with the higher validation score in `folder`: the one from scratch, or its rival `beside`."""
    configs = [directory.read_config(each)[0] for each in (folder, beside)]
    name = MAIN_SCORE[configs[0].task]
    scratch, photos = (config.figures["validation"][name] for config in configs)
    wins = photos >= scratch
    if wins:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        (folder / HISTORY).unlink(missing_ok=True)
        for part in beside.iterdir():
            if (target := folder / part.name).is_dir():
                shutil.rmtree(target)
            part.replace(target)
    shutil.rmtree(beside)
    reporter.say(
        f"{SCORE_NAMES[name]} on the validation images: {photos:.1%} with the network for photographs, {scratch:.1%} "
        f"from scratch. The {'first' if wins else 'second'} model is kept."
    )
    return wins


def _promise(config: Config, images: int) -> str:
    """The promise of the model about its answers, or why it cannot promise anything with so many held-out images,
    without copies and with one image of each group."""
    promise = config.calibration.promise
    if promise is not None:
        return f"{promise} `sic predict --promise` gives only these answers."
    nothing, figures = "The model promises nothing about new images", config.figures["validation"]
    if not images:
        return f"{nothing}: all held-out images are copies of training images."
    needed = needed_images(models_compared(config.training))
    headline = Headline.of(config.figures.get("validation_without_copies", figures))
    assert headline is not None  # it has just been measured
    answers = headline.right
    if images < needed:
        reason = f"are too few (at least {needed} are needed)"
    elif answers.images < needed:
        reason = f"have too few answers ({answers.images}; at least {needed} are needed)"
    elif answers.count < (1 - WRONG) * answers.images:
        reason = "show too many mistakes"
    else:
        reason = f"are too few for the mistakes among them ({needed} would do without any)"
    everyone = images == figures["images"]
    kind = "" if everyone else " (without copies, one of each group)"
    return f"{nothing}: {images} held-out images{kind} {reason}."


def _figures(
    model: Model, held_out: dict[str, list[Sample]], tainted: dict[str, set[str]], reporter: Reporter
) -> dict[str, Any]:
    """How good the model is on the validation images, and on the test images if there are any.

    Splits with images that were trained on are measured with and without these. Warns of supports that the validation
    images do not bear out.
    """
    figures: dict[str, Any] = {}
    for split, samples in held_out.items():
        if not samples:
            continue
        predictions = model.predictions(samples)
        if predictions.unreadable:
            raise UnreadableImage(*predictions.unreadable)
        predictions = replace(predictions, copies=frozenset(tainted.get(split, ())))
        if split == "validation":
            model.calibrate(predictions, models_compared(model.config.training))
            for sentence in doubtful_supports(model, predictions):
                reporter.warn(sentence)
        figures |= replace(predictions, calibration=model.config.calibration).measured(split)
    if decided := validation_note(model.config.training, model.config.calibration.images):
        figures["validation"]["note"] = decided
    return figures


def doubtful_supports(model: Model, held_out: Predictions) -> list[str]:
    """A sentence for each support that resembles another class more than its own, the clearest first; at most `NAMED`,
    then their number. Often such an image has a wrong label."""
    if held_out.latents is None:  # it is not about similarities
        return []
    strength = held_out.latents.norm(dim=1, keepdim=True) / model.config.temperature
    likeness = held_out.evidence / strength.clamp_min(1e-12)
    labels = [sample.labels[0] if len(sample.labels) == 1 else None for sample in held_out.samples]
    names = support_names(model.supports, model.classes)
    doubtful = resembling_others(likeness.T, held_out.owners.tolist(), labels)
    found = []
    for each in sorted(doubtful, key=lambda each: each.own - each.theirs)[:NAMED]:
        name, source, other = names[each.support], model.supports[each.support].source, model.classes[each.other]
        found.append(
            f"{name} ({source}) resembles images of {other} more than those of its own class (mean likeness "
            f"{each.theirs:.0%} and {each.own:.0%}, validation images). Look at it; does it show the wrong thing? "
            f"{shlex.join(['sic', 'supports', str(model.folder), 'show', name])}"
        )
    if len(doubtful) > NAMED:
        found.append(
            f"So do {len(doubtful) - NAMED} more: {shlex.join(['sic', 'supports', str(model.folder), 'check'])}"
        )
    return found
