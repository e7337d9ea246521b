"""Does a bcosified network keep what the conventional one has learnt? SIC on it against SIC from scratch and against
the conventional network itself, fine-tuned the same way: same images, same schedule, same number of epochs.

    python benchmarks/bcosified.py DATA --weights FILE --name NAME [--group REGEX] [--size 160] [--epochs 30] …

The epoch is chosen on images held out from the training set; what counts is the official val or test split, which
nothing else sees. Writes results/bcosified/NAME.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

import sic.data
from sic import backbones, directory, training
from sic.backbones.weights import loader
from sic.data.dataset import ImageData
from sic.data.labels import average_precisions, mean_precision, targets
from sic.data.transforms import TrainingTransform
from sic.evaluate.accuracy import accuracy_figures
from sic.evaluate.outputs import logits
from sic.training.batches import Batch, TrainingBatches, Views, training_loader, view_loader
from sic.training.history import Silent
from sic.training.losses import binary_loss
from sic.training.material import gather
from sic.training.schedule import learning_rate_factor
from sic.training.settings import Settings

BACKBONE = "timm/tf_efficientnet_lite0"
ARMS: dict[str, dict[str, Any]] = {
    "bcosified": {"form": "bcosified"},
    "scratch": {"form": "bcos", "weights": None},
    "conventional": {},
}
GPU = "cuda" if torch.cuda.is_available() else "cpu"


class Conventional(nn.Module):
    """The black box: the network as its authors made it, and a linear classifier."""

    def __init__(self, classes: int, weights: str) -> None:
        super().__init__()
        self.backbone = backbones.create(BACKBONE, "conventional", load=loader(weights, BACKBONE, "conventional"))
        self.head = nn.Linear(self.backbone.features, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))


class FineTuning(lightning.LightningModule):
    """Binary cross-entropy, the optimiser, schedule and choice of the epoch of SIC."""

    def __init__(self, classifier: nn.Module, settings: Settings, steps: int, multi_label: bool) -> None:
        super().__init__()
        self.classifier, self.settings, self.steps, self.multi_label = classifier, settings, steps, multi_label
        self.outputs: list[tuple[Tensor, Tensor]] = []
        self.best, self.best_state = -1.0, {}

    def configure_optimizers(self) -> Any:
        optimiser = torch.optim.AdamW(self.parameters(), lr=self.settings.lr, weight_decay=0.0)
        total = self.steps * self.settings.epochs
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: learning_rate_factor(s, self.steps, total))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: Batch, index: int) -> Tensor:
        out = self.classifier((batch.queries.float() / 255).contiguous(memory_format=torch.channels_last))
        return binary_loss(out.float(), batch.targets)

    def on_validation_epoch_start(self) -> None:
        self.outputs = []

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        with torch.autocast(self.device.type, enabled=False):
            self.outputs.append((self.classifier(batch[0].float() / 255).cpu(), batch[1].cpu()))

    def on_validation_epoch_end(self) -> None:
        out, truth = (torch.cat(part) for part in zip(*self.outputs, strict=True))
        if self.multi_label:
            score = mean_precision(average_precisions(out, truth))
        else:
            score = truth.gather(1, out.argmax(1, keepdim=True)).mean().item()
        if score >= self.best:
            self.best = score
            self.best_state = {name: value.cpu().clone() for name, value in self.classifier.state_dict().items()}


def fine_tune(data: ImageData, settings: Settings, weights: str, folder: Path, workers: int) -> nn.Module:
    lightning.seed_everything(settings.seed, verbose=False)
    directory.exact_arithmetic()
    classes = len(data.classes)
    folder.mkdir(parents=True, exist_ok=True)
    material = gather(data, settings, folder / "pixels.bin", workers, Silent())
    views = settings.preprocessing
    batches = TrainingBatches(
        material.train,
        targets(material.train.samples, classes),
        {0: material.candidates[0]},  # it needs no supports; one image is the least that a batch holds
        views,
        TrainingTransform(settings.augmentation, views),
        settings.batch_size,
        1,
        settings.seed,
    )
    module = FineTuning(
        Conventional(classes, weights).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        settings,
        len(batches),
        data.task == "multi",
    )
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        devices=1,
        precision="bf16-mixed" if GPU == "cuda" else "32-true",
        gradient_clip_val=settings.clip,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    held_out = Views(material.validation, targets(material.validation.samples, classes), views)
    trainer.fit(module, training_loader(batches, workers, 0), view_loader(held_out, workers))
    (folder / "pixels.bin").unlink()
    module.classifier.load_state_dict(module.best_state)
    return module.classifier.eval()


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """One arm with one seed."""
    data = sic.data.open(arguments.data, group=arguments.group)
    unseen = "test" if "test" in data.splits else "val"
    data = replace(data, splits={"train": data.splits["train"], "test": data.splits[unseen]})
    said = {"backbone": BACKBONE, "size": arguments.size, "fit": arguments.fit, "epochs": arguments.epochs}
    said |= {"lr": arguments.lr, "batch_size": 64, "seed": arguments.seed, "augmentation": "photo"}
    arm = {"form": "bcosified", "weights": arguments.weights} | ARMS[arguments.arm]
    settings, _ = training.choose(data, said | arm)
    with tempfile.TemporaryDirectory(dir=arguments.runs) as scratch:
        folder = Path(scratch) / "run"
        if arguments.arm == "conventional":
            classifier = fine_tune(data, settings, arguments.weights, folder, arguments.workers)
        else:
            training.fit(data, settings, folder, workers=arguments.workers)
            classifier = directory.load(folder).classifier
    samples = data.splits["test"]
    out = logits(classifier.to(GPU), [sample.path for sample in samples], settings.preprocessing)
    figures = accuracy_figures(out, samples, data.task, data.classes)
    if data.task == "single":
        truth = [sample.labels[0] for sample in samples]
        figures["balanced_accuracy"] = float(balanced_accuracy_score(truth, out.argmax(1)))
    return {"arm": arguments.arm, "seed": arguments.seed, "figures": figures, "settings": asdict(settings)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", required=True, help="EfficientNet-Lite0, trained on ImageNet")
    parser.add_argument("--name", default="data")
    parser.add_argument("--note", default="", help="what a reader must know about the data")
    parser.add_argument("--group")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--fit", default="crop")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, help="one rate for all arms; else each arm's recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("results/bcosified"))
    parser.add_argument("--arm", choices=ARMS, help="run this one only, with --seed, and print its result")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    if arguments.arm:
        print(json.dumps(run(arguments)))
        return

    def one(arm: str, seed: int) -> dict[str, Any]:
        command = [sys.executable, *sys.argv, "--arm", arm, "--seed", str(seed)]
        with (arguments.runs / f"{arguments.name}-{arm}-{seed}.log").open("w") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"arm": arm, "seed": seed}

    with ThreadPoolExecutor(arguments.parallel) as pool:
        jobs = [pool.submit(one, arm, seed) for arm in ARMS for seed in arguments.seeds]
    content = {
        "command": " ".join(["python", *sys.argv]),
        "note": arguments.note,
        "device": torch.cuda.get_device_name() if GPU == "cuda" else "CPU",
        "torch": torch.__version__,
        "runs": [job.result() for job in jobs],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{arguments.name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
