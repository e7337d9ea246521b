"""From labelled images to a model directory."""

import json
import logging
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from sic import directory
from sic.backbones import Load
from sic.bcos import without_biases
from sic.data.dataset import ImageData, Sample
from sic.data.images import Preprocessing
from sic.data.labels import Targets, targets
from sic.data.transforms import TrainingTransform
from sic.directory import RUN, Config, read_run
from sic.errors import SicError
from sic.files import write_atomically
from sic.machines import Machines
from sic.methods import Classifier, method
from sic.settings import Settings, check, flag, from_json, to_json
from sic.supports import Support
from sic.training.base import Training
from sic.training.batches import TrainingBatches, Views, training_loader, view_loader
from sic.training.checkpoints import BEST, LAST, WholeCheckpoints, checkpoint_folder, read_checkpoint, starting_point
from sic.training.choose import loader_workers
from sic.training.history import History, Reporter, Silent
from sic.training.losses import positive_weights
from sic.training.material import Images, Material, gather
from sic.training.module import SICTraining
from sic.training.nwhead import NWHeadTraining
from sic.training.protopnet import ProtoPNetTraining
from sic.training.start import origin, published_weights, start_from
from sic.training.together import LostProcess, SharingOut, lost, strategy

HISTORY = "history.csv"
TRAININGS: dict[str, type[Training]] = {"sic": SICTraining, "nwhead": NWHeadTraining, "protopnet": ProtoPNetTraining}
"""Methods that are not trained like any classifier."""

WAITS_FOR_PYTHON = 300
"""Images of 224 px: a compiled step of fewer is over on a GPU before its kernels are launched (results/speed.json)."""


def worth_replaying(images: int, size: int) -> bool:
    """Whether a compiled step of so many images should be replayed as CUDA graphs."""
    return images * (size / 224) ** 2 <= WAITS_FOR_PYTHON


def fit(
    data: ImageData,
    settings: Settings,
    folder: Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    reporter: Reporter | None = None,
    machines: Machines | None = None,
) -> dict[str, list[Sample]]:
    """Train on `data` and write the model directory `folder`; `resume` continues after the last finished epoch.

    Returns the readable images that the model was not trained on: `validation` and `test`. Where several processes
    train together, that is for the first of them to do, and the others end.
    """
    machines = machines or Machines()
    reporter = reporter if reporter is not None and machines.first else Silent()
    workers = loader_workers() if workers is None else workers
    if not resume and machines.first and (folder / RUN).is_file():
        raise SicError(f"{folder} already holds a run; continue it with --resume, or choose another --out.")
    if settings.hold_out and "val" in data.splits:
        unseen = data.splits.get("test", []) + data.splits["val"]
        data = replace(data, splits={"train": data.splits["train"], "test": unseen})
    _set_up_libraries(settings.seed)
    folder.mkdir(parents=True, exist_ok=True)
    cache = folder / ("pixels.bin" if machines.first else f"pixels-{machines.rank}.bin")
    cache.unlink(missing_ok=True)
    try:
        load = published_weights(settings, reporter)
        material = gather(data, settings, cache, workers, reporter)
        _tell(data, settings, material, reporter)
        config = _config(data, settings, material)
        module = _module(config, settings, material, load)
        if machines.first:
            _record(data, settings, material, folder, resume)
        try:
            _optimise(module, data, settings, material, folder, resume, workers, reporter, machines)
        except RuntimeError as error:
            if not _failed_to_compile(error):
                raise
            reason = str(error).strip().split("\n")[0][:160]
            reporter.warn(f"The network cannot be compiled here ({reason}); the training goes on without.")
            module = _module(config, replace(settings, compiled=False), material, load)
            _optimise(module, data, settings, material, folder, resume, workers, reporter, machines)
        if not machines.first:
            raise SystemExit(0)
        found = read_checkpoint(checkpoint_folder(folder), (BEST, LAST), reporter)
        if found is None:
            raise SicError(f"{folder} has lost its checkpoints; start anew with another --out.")
        best = found[1]
        module.load_state_dict(best["state_dict"])
        supports = _describe_cases(module, material.train, settings, data.classes)
        classifier = _finished(module.classifier, config)
    finally:
        cache.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            folder.rmdir()
    config.training["best_epoch"] = best["epoch"] + 1
    directory.save(classifier, config, supports, folder)
    return {"validation": material.validation.samples, "test": material.test}


def _failed_to_compile(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)


def _set_up_libraries(seed: int) -> None:
    # Lightning talks about things that our users did not choose.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    lightning.seed_everything(seed, verbose=False)
    directory.exact_arithmetic()


def _data_card(data: ImageData, material: Material) -> dict[str, Any]:
    return {
        "name": data.name,
        "layout": data.layout,
        "roi": bool(data.opened_with.get("roi")),
        "images": {
            "train": len(material.train),
            "validation": len(material.validation),
            "skipped": len(material.skipped),
        },
        "leaks": material.leaks,
    }


def _tell(data: ImageData, settings: Settings, material: Material, reporter: Reporter) -> None:
    """What the user should know before the long part begins."""
    for entry in material.skipped:
        reporter.warn(f"Skipped {entry.file}: {entry.reason}.")
    if not method(settings.method).selections:  # a part of an image can be a case many times over
        return
    wanted = settings.supports_per_class
    for label, members in sorted(material.candidates.items()):
        if len(members) < wanted:
            reporter.warn(
                f"{data.classes[label]} has fewer images that can be supports ({len(members)}) than wanted ({wanted})."
            )


def _record(data: ImageData, settings: Settings, material: Material, folder: Path, resume: bool) -> None:
    """`run.json`: the settings and the split; a resumed run must find the same."""
    record = {
        "settings": to_json(settings),
        "data": _data_card(data, material) | {"opened_with": data.opened_with},
        "train": [sample.id for sample in material.train.samples],
        "validation": [sample.id for sample in material.validation.samples],
        "skipped": [asdict(entry) for entry in material.skipped],
    }
    if resume:
        before = read_run(folder)
        if any(before[split] != record[split] for split in ("train", "validation")):
            raise SicError(
                f"The images in {data.root} have changed since this run began; start anew with another --out."
            )
    else:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        write_atomically(folder / RUN, lambda path: path.write_text(text, encoding="utf-8"))


def recorded_settings(folder: Path, said: dict[str, Any]) -> Settings:
    """The settings that a run was started with; whoever says others now would not get what they ask for."""
    settings = from_json(read_run(folder)["settings"])
    said = {name: value for name, value in said.items() if value is not None}
    check(said)
    for name, value in said.items():
        if getattr(settings, name) != value:
            raise SicError(f"{flag(name)} differs from what {folder} was started with; leave it out to resume.")
    return settings


def _config(data: ImageData, settings: Settings, material: Material) -> Config:
    return Config(
        settings.backbone,
        list(data.classes),
        data.task,
        Preprocessing.of(settings),
        settings.supports_per_class,
        settings.temperature,
        data=_data_card(data, material),
        training={**to_json(settings), "origin": origin(settings.weights)},
        **settings.network,
    )


def _module(config: Config, settings: Settings, material: Material, load: Load | None) -> Training:
    training = TRAININGS.get(settings.method, Training)
    number = training.number_of_cases(settings, material.candidates, len(config.classes))
    classifier = directory.build(config, number, biases=settings.fading > 0, load=load, measure=True)
    patch = classifier.backbone.patch
    if patch is not None and settings.size < patch:
        raise SicError(f"--size {settings.size} is less than a patch of {settings.backbone}, {patch} px.")
    if settings.weights is not None and load is None:
        start_from(classifier, Path(settings.weights), settings)
    positive = None
    if settings.balance:
        positive = positive_weights(targets(material.train.samples, len(config.classes)))
    return training(classifier, settings, material.candidates, config.task == "multi", positive)


def _finished(trained: Classifier, config: Config) -> Classifier:
    """The classifier without what faded in training."""
    classifier = directory.build(config, len(trained.case_classes))
    classifier.load_state_dict(without_biases(trained.state_dict(), classifier))
    return classifier.eval()


def _optimise(
    module: Training,
    data: ImageData,
    settings: Settings,
    material: Material,
    folder: Path,
    resume: bool,
    workers: int,
    reporter: Reporter,
    machines: Machines,
) -> None:
    classes = len(data.classes)
    preprocessing = Preprocessing.of(settings)
    train_targets = Targets(material.train.samples, classes)
    gpu = torch.cuda.is_available()
    module.transform = TrainingTransform(settings.augmentation, preprocessing)
    batches = TrainingBatches(
        material.train,
        train_targets,
        material.candidates if module.draws_supports else {0: [0]},  # which draws nothing, 0 of 1
        preprocessing,
        module.transform,
        settings.batch_size,
        settings.supports_per_class if module.draws_supports else 0,
        settings.seed,
        ways=settings.ways,
        on_device=gpu,
    )
    module.steps_per_epoch = len(batches)
    replayed = machines.processes == 1 and worth_replaying(batches.images, preprocessing.size)
    module.classifier.backbone.graphs = replayed
    embedded = Views(material.train, train_targets, preprocessing)
    module.embedding = view_loader(embedded, workers)
    validation = Views(material.validation, Targets(material.validation.samples, classes), preprocessing)
    checkpoints = checkpoint_folder(folder)
    start, epochs_done = starting_point(checkpoints, reporter) if resume else (None, 0)
    common: dict[str, Any] = {
        "dirpath": checkpoints,
        "enable_version_counter": False,
        "save_on_train_epoch_end": True,
        "every_n_epochs": settings.check_every,
    }
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        check_val_every_n_epoch=settings.check_every,
        accelerator="gpu" if gpu else "cpu",
        devices=machines.devices,
        num_nodes=machines.nodes,
        strategy=strategy(module, machines, gpu),
        sync_batchnorm=gpu and machines.processes > 1,
        use_distributed_sampler=False,  # batches and views are shared out by themselves
        precision="bf16-mixed" if gpu else "32-true",
        # Looking for the fastest convolutions takes most of a minute: as compiling, it pays in long fits only.
        benchmark=gpu and settings.compiled,
        gradient_clip_val=settings.clip,
        callbacks=[
            SharingOut([batches, embedded, validation]),
            History(folder / HISTORY, reporter),
            ModelCheckpoint(filename=BEST, monitor="val_rank", mode="max", **common),
            # After the best one, so that it knows which that is.
            ModelCheckpoint(filename=LAST, **common),
        ],
        plugins=[WholeCheckpoints()],
        default_root_dir=folder,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(
            module,
            training_loader(batches, workers, epochs_done),
            view_loader(validation, workers),
            ckpt_path=start,
            weights_only=True,
        )
    except SystemExit:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if machines.processes > 1 and lost(error):
            raise LostProcess from None
        raise
    finally:
        # Left to the garbage collector, its workers would not be told to end, and waited for: 5 seconds a fit.
        del module.embedding


def _describe_cases(module: Training, train: Images, settings: Settings, classes: Sequence[str]) -> list[Support]:
    result, preprocessing = [], Preprocessing.of(settings)
    for case in module.cases():
        if case.row is None:
            result.append(Support(case.label, f"a mean of images of {classes[case.label]}", None))
            continue
        view = preprocessing.crop(train[case.row]).copy() if settings.keep_support_images else None
        result.append(Support(case.label, train.samples[case.row].id, view, case.box))
    return result
