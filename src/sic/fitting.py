"""`sic.fit`: from a folder of images to a trained and measured model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sic import directory, training
from sic.calibration import needed_images
from sic.data import open as open_data
from sic.data.dataset import Sample, require_outside
from sic.data.images import UnreadableImage
from sic.directory import Config
from sic.errors import SicError
from sic.machines import Machines, best_device
from sic.model import Model
from sic.training import Fitted, Reporter, Silent, choose, recorded_settings


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
    kind = "images, cut to their boxes" if cut else "images"
    reporter.say(f"{opened.root}: {opened.layout}, {len(opened.classes)} classes, {kind}: {images}.")
    for problem in opened.problems:
        reporter.warn(problem)
    if resume:
        settings = recorded_settings(folder, overrides)
        reporter.say(f"Resuming {folder} with its own settings.")
    else:
        settings, notes = choose(opened, overrides)
        reporter.say("Chosen: " + "; ".join(notes) + ".")
    unreadable: list[UnreadableImage] = []

    def measure(fitted: Fitted) -> dict[str, Any]:
        model = Model(fitted.classifier, fitted.config, fitted.supports, folder).to(best_device())
        try:
            return _figures(model, {"validation": fitted.validation, "test": fitted.test}, fitted.tainted)
        except UnreadableImage as error:
            unreadable.append(error)
            return {}
        finally:
            model.to("cpu")

    fitted = training.fit(
        opened, settings, folder, resume=resume, workers=workers, reporter=reporter, machines=machines, measure=measure
    )
    if unreadable:
        raise SicError(
            f"A held-out image in {opened.root} can no longer be read: the model in {folder} is complete, "
            "but how good it is was not measured."
        )
    if fitted.config.task == "single":
        reporter.say(_promise(fitted.config))
    return Model(fitted.classifier, fitted.config, fitted.supports, folder)


def _promise(config: Config) -> str:
    """What the model promises about its answers, or why it cannot promise anything."""
    promise, images = config.calibration.promise, config.figures["validation"]["images"]
    if promise is not None:
        return f"{promise} `sic predict --promise` gives only these answers."
    few = images < needed_images(_checks(config))
    reason = f"are too few (at least {needed_images(_checks(config))} are needed)" if few else "show too many mistakes"
    return f"The model promises nothing about new images: {images} held-out images {reason}."


def _checks(config: Config) -> int:
    """How many checkpoints were compared on the validation images."""
    training = config.training
    if "best_epoch" not in training:
        return 1
    return int(training["epochs"] // training["check_every"]) + (training["recipe"] == "tuned")  # and the frozen one


def _figures(model: Model, held_out: dict[str, list[Sample]], tainted: dict[str, set[str]]) -> dict[str, Any]:
    """How good the model is on the validation images, and on the test images if there are any.

    Splits with images that were trained on are measured with and without these.
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
            model.calibrate(predictions.without_copies or predictions, _checks(model.config))
        predictions = replace(predictions, calibration=model.config.calibration)
        figures[split] = predictions.quality
        clean = predictions.without_copies
        if clean is not None:
            note = f"images that are in training, too, are left out: {len(samples) - len(clean)}"
            figures[f"{split}_without_copies"] = clean.quality | {"note": note}
    if "best_epoch" in model.config.training:
        figures["validation"]["note"] = "the best epoch was chosen on these images"
    return figures
