"""From labelled images to a model directory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor

from sic import directory
from sic.backbones import Load
from sic.bcos import remove_biases
from sic.data.dataset import ImageData, Sample
from sic.data.images import Preprocessing
from sic.data.labels import targets
from sic.directory import CONFIG, RUN, Config, read_config, read_run
from sic.errors import SicError
from sic.files import write_json
from sic.machines import Machines, exact_arithmetic
from sic.methods import SIC, Classifier, NWHead, ProtoPNet, method
from sic.settings import Settings, check, flag, from_json, to_json
from sic.supports import Support
from sic.training.base import Training, positive_weights
from sic.training.choose import loader_workers
from sic.training.comparing import NWHeadTraining
from sic.training.data import Images, TrainingData, gather
from sic.training.frozen import fit_projection
from sic.training.history import BEST, LAST, Reporter, Silent, checkpoint_folder, read_checkpoint
from sic.training.protopnet import ProtoPNetTraining
from sic.training.sic import SICTraining
from sic.training.start import origin, published_weights, start_from
from sic.training.teacher import Teacher, load_teacher, seen_by
from sic.training.trainer import bound_step, optimise, quiet_lightning, validated

TRAININGS: dict[type[Classifier], type[Training]] = {
    SIC: SICTraining,
    NWHead: NWHeadTraining,
    ProtoPNet: ProtoPNetTraining,
}
"""Methods that are not trained like any classifier."""


@dataclass
class Fitted:
    """A trained classifier, and the readable images that it was not trained on."""

    classifier: Classifier
    config: Config
    supports: list[Support]
    validation: list[Sample]
    test: list[Sample]
    tainted: dict[str, set[str]]
    """By split, the ids of those that are in training, too, or of whose group some are."""


def fit(
    data: ImageData,
    settings: Settings,
    folder: Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    reporter: Reporter | None = None,
    machines: Machines | None = None,
    measure: Callable[[Fitted], dict[str, Any]] | None = None,
) -> Fitted:
    """Train on `data` and write the model directory `folder`, with the figures of `measure`.

    `resume` continues after the last finished epoch. Where several processes train together, the first of them
    returns, and the others end.
    """
    machines = machines or Machines()
    reporter = reporter if reporter is not None and machines.first else Silent()
    workers = loader_workers() if workers is None else workers
    if machines.first:
        (require_unedited if resume else require_new)(folder)
    data = _held_out(data) if settings.hold_out else data
    _set_up_libraries(settings.seed)
    with _pixel_cache(folder, machines) as cache:
        load = published_weights(settings, reporter)
        images = gather(data, settings, cache, workers, reporter)
        _tell(data, settings, images, reporter)
        config = _config(data, settings, images)
        module = _module(config, settings, images, load)
        if settings.teacher is not None:
            module.teacher = _teacher(Path(settings.teacher), images, reporter)
        if machines.first:
            _record(data, settings, images, folder, resume)
        if settings.recipe != "frozen":
            bound_step(module, images, machines, reporter)
        if isinstance(module, SICTraining) and settings.projection_first:
            fit_projection(module, images, settings, workers, reporter)
            config.temperature = module.classifier.temperature
        if settings.recipe != "frozen":
            before = _copied(module) if settings.projection_first else None
            _train(module, images, folder, resume, workers, reporter, machines)
            if machines.first:
                config.training["best_epoch"] = _take_best(module, folder, reporter)
                if before is not None:
                    _keep_better(module, before, config, images, workers, reporter)
        if not machines.first:
            raise SystemExit(0)
        supports = _describe_supports(module, images.train, settings, data.classes)
    fitted = Fitted(_finished(module), config, supports, images.validation.samples, images.test, images.tainted)
    if measure is not None:
        config.figures = measure(fitted)
    directory.save(fitted.classifier, config, supports, folder)
    return fitted


def require_new(folder: Path) -> None:
    """Refuse a folder that holds a run."""
    if (folder / RUN).is_file():
        raise SicError(f"{folder} already holds a run; continue it with --resume, or choose another --out.")


def require_unedited(folder: Path) -> None:
    """Refuse a model whose supports were edited: the end of a training would replace them."""
    if (folder / CONFIG).is_file() and read_config(folder)[0].edits:
        raise SicError(
            f"{folder} is trained, and its supports were edited since; --resume would lose the edits. To train again, "
            "choose another --out."
        )


def _held_out(data: ImageData) -> ImageData:
    """The data with its own validation images among the test images: no epoch is chosen on these."""
    if "val" not in data.splits:
        return data
    unseen = data.splits.get("test", []) + data.splits["val"]
    return replace(data, splits={"train": data.splits["train"], "test": unseen})


@contextmanager
def _pixel_cache(folder: Path, machines: Machines) -> Iterator[Path]:
    """A file for the pixels of this process, in `folder`. It is removed in the end, and so is an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    cache = folder / ("pixels.bin" if machines.first else f"pixels-{machines.rank}.bin")
    cache.unlink(missing_ok=True)
    try:
        yield cache
    finally:
        cache.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def _train(
    module: Training,
    images: TrainingData,
    folder: Path,
    resume: bool,
    workers: int,
    reporter: Reporter,
    machines: Machines,
) -> None:
    """Train the whole network; without compiling it where that fails."""
    try:
        optimise(module, images, folder, resume, workers, reporter, machines)
    except RuntimeError as error:
        if not _failed_to_compile(error):
            raise
        reason = str(error).strip().split("\n")[0][:160]
        reporter.warn(f"The network cannot be compiled here ({reason}); training continues without compiling it.")
        module.compile_nothing()
        bound_step(module, images, machines, reporter)
        optimise(module, images, folder, resume, workers, reporter, machines)


def _take_best(module: Training, folder: Path, reporter: Reporter) -> int:
    """Give `module` the weights of the best epoch, counted from 1."""
    found = read_checkpoint(checkpoint_folder(folder), (BEST, LAST), reporter)
    if found is None:
        raise SicError(f"{folder} has lost its checkpoints; start again with another --out.")
    module.load_state_dict(found[1]["state_dict"])
    return int(found[1]["epoch"]) + 1


def _keep_better(
    module: Training,
    before: dict[str, Tensor],
    config: Config,
    images: TrainingData,
    workers: int,
    reporter: Reporter,
) -> None:
    """Undo the training of the whole network where the frozen one is at least as good on the validation images."""
    after = _copied(module)
    tuned = validated(module, images.validation, workers)
    module.load_state_dict(before)
    frozen = validated(module, images.validation, workers)
    better = tuned.rank > frozen.rank
    if better:
        module.load_state_dict(after)
    else:
        config.training["best_epoch"] = 0
    reporter.say(
        f"Validation score {frozen.score:.1%} with the network as it was, {tuned.score:.1%} after training it: the "
        f"{'trained' if better else 'untrained'} one is kept."
    )


def _copied(module: Training) -> dict[str, Tensor]:
    """The state of a module as it is now."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def _failed_to_compile(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)


def _set_up_libraries(seed: int) -> None:
    quiet_lightning()
    lightning.seed_everything(seed, verbose=False)
    exact_arithmetic()


def _data_card(data: ImageData, images: TrainingData) -> dict[str, Any]:
    return {
        "name": data.name,
        "layout": data.layout,
        "roi": bool(data.opened_with.get("roi")),
        "images": {
            "train": len(images.train),
            "validation": len(images.validation),
            "skipped": len(images.skipped),
        },
        "leaks": images.leaks,
    }


def _tell(data: ImageData, settings: Settings, images: TrainingData, reporter: Reporter) -> None:
    """Warn about skipped files and small classes before the long part begins."""
    for entry in images.skipped:
        reporter.warn(f"Skipped {entry.file}: {entry.reason}.")
    if not method(settings.method).selections:  # a part of an image can be a case many times over
        return
    wanted = settings.supports_per_class
    for label, members in sorted(images.candidates.items()):
        if len(members) < wanted:
            reporter.warn(
                f"{data.classes[label]} has {len(members)} images that can be supports, fewer than the {wanted} "
                "requested."
            )


def _record(data: ImageData, settings: Settings, images: TrainingData, folder: Path, resume: bool) -> None:
    """`run.json`: the settings and the split; a resumed run must find the same."""
    record = {
        "settings": to_json(settings),
        "data": _data_card(data, images) | {"opened_with": data.opened_with},
        "train": [sample.id for sample in images.train.samples],
        "validation": [sample.id for sample in images.validation.samples],
        "skipped": [asdict(entry) for entry in images.skipped],
        "copies": {split: sorted(ids) for split, ids in images.tainted.items()},
    }
    if resume:
        before = read_run(folder)
        if any(before[split] != record[split] for split in ("train", "validation")):
            raise SicError(
                f"The images in {data.root} have changed since this run began; start again with another --out."
            )
    else:
        write_json(folder / RUN, record)


def recorded_settings(folder: Path, said: dict[str, Any]) -> Settings:
    """The settings that a run was started with; whoever says others now would not get what they ask for."""
    settings = from_json(read_run(folder)["settings"])
    said = {name: value for name, value in said.items() if value is not None}
    check(said)
    for name, value in said.items():
        if getattr(settings, name) != value:
            raise SicError(f"{flag(name)} differs from what {folder} was started with; leave it out to resume.")
    return settings


def _config(data: ImageData, settings: Settings, images: TrainingData) -> Config:
    return Config(
        settings.backbone,
        list(data.classes),
        data.task,
        Preprocessing.of(settings),
        settings.supports_per_class,
        settings.temperature,
        data=_data_card(data, images),
        training={**to_json(settings), "origin": origin(settings.weights)},
        **settings.network,
    )


def _module(config: Config, settings: Settings, images: TrainingData, load: Load | None) -> Training:
    training = TRAININGS.get(method(settings.method), Training)
    number = training.number_of_supports(settings, images.candidates, len(config.classes))
    classifier = directory.build(config, number, biases=settings.fading > 0, load=load, measure=True)
    patch = classifier.backbone.patch
    if patch is not None and settings.size < patch:
        raise SicError(f"--size {settings.size} is smaller than a patch of {settings.backbone} ({patch} px).")
    if settings.weights is not None and load is None:
        start_from(classifier, Path(settings.weights), settings)
    positive = None
    if settings.balance:
        positive = positive_weights(targets(images.train.samples, len(config.classes)))
    return training(classifier, settings, images.candidates, config.task == "multi", positive)


def _teacher(folder: Path, images: TrainingData, reporter: Reporter) -> Teacher:
    """The teacher in `folder`; the user is told if it knows held-out images, on which the student looks better then."""
    held_out = {sample.id for sample in [*images.validation.samples, *images.test]}
    if seen := seen_by(folder, held_out):
        reporter.warn(
            f"The teacher {folder} was trained on {seen} of the {len(held_out)} held-out images; train it with the "
            "same --seed and --validation to have figures that hold for new images."
        )
    return load_teacher(folder)


def _finished(module: Training) -> Classifier:
    """The trained classifier without what only training needs: biases that have faded, compiled code."""
    module.compile_nothing()
    classifier = module.classifier.cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    remove_biases(classifier)
    return classifier.requires_grad_().eval()


def _describe_supports(module: Training, train: Images, settings: Settings, classes: Sequence[str]) -> list[Support]:
    result, preprocessing = [], Preprocessing.of(settings)
    for chosen in module.chosen_supports():
        if chosen.row is None:
            result.append(Support(chosen.label, f"a mean of images of {classes[chosen.label]}", None))
            continue
        view = preprocessing.crop(train[chosen.row]).copy() if settings.keep_support_images else None
        result.append(Support(chosen.label, train.samples[chosen.row].id, view, chosen.box))
    return result
