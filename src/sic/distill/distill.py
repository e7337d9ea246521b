"""From a conventional network and unlabelled images to a file of B-cos weights."""

import math
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sic.backbones import require
from sic.backbones.distilled import Distilled, read_distilled
from sic.backbones.registry import build
from sic.backbones.weights import Weights, loader, terms
from sic.bcos import remove_biases
from sic.data.dataset import Progress
from sic.data.images import Preprocessing
from sic.distill.examination import Examination
from sic.distill.fit import CHECKPOINT, Plan, fit
from sic.distill.images import decode, image_files
from sic.distill.student import Student, create_student
from sic.distill.teacher import Teacher, load_teacher
from sic.errors import SicError
from sic.evaluate.localisation import GRIDS, confident
from sic.machines import Machines, exact_arithmetic
from sic.methods import Classifier, device_of
from sic.methods.blackbox import GRAD_CAM
from sic.training import Reporter, Silent

HELD_OUT = 1000
"""Images that are not trained on, to measure how often student and teacher agree."""
SHOWN_AT = 224
"""Side in pixels at which student and teacher are compared in the end."""
GRIDS_ON_CPU = 100
"""Most grids of test images without a GPU."""


@dataclass
class Outcome:
    """A finished distillation."""

    file: Path
    images: int
    """Crops that the student saw."""
    seconds: float
    """Time spent in training."""
    agreement: float | None
    """Share of held-out images to which student and teacher give the same answer."""
    top1: dict[str, float] | None
    """Share of right answers on the labelled test images, of student and teacher."""
    grid_2x2: dict[str, Any] | None
    """Grid pointing of student and teacher on the test images, as from `Examination.point`."""
    curve: list[dict[str, float]]


def distill(
    teacher: str,
    images: Path,
    out: Path,
    plan: Plan,
    *,
    weights: str = "imagenet",
    student: str | None = None,
    start: Path | None = None,
    test: Path | None = None,
    resume: bool = False,
    workers: int = 2,
    machines: Machines | None = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Teach a B-cos network what `teacher` knows and write it to `out`.

    `weights`: the teacher's, a file or a published name. `student`: the student's architecture, the teacher's by
    default. `start`: an earlier result to go on from, of the same network or of one with more layers. `test`: a folder
    for each of the teacher's classes.
    """
    machines = machines or Machines()
    reporter = reporter if reporter is not None and machines.first else Silent()
    name = student or teacher
    require(teacher)
    require(name)
    folder = _run_folder(out, resume)
    files = image_files(images)

    def counting(task: str) -> Progress:
        return lambda done, total: reporter.advance(task, done, total)

    teaching = load_teacher(teacher, loader(weights, teacher, "conventional", counting("downloading")))
    alike = _alike(name, teaching)
    if plan.fade and (start is not None or not alike):
        raise SicError("--fade needs a student with the teacher's layers that starts from the teacher; leave it out.")
    learning = create_student(name, teaching, alike=alike, fading=plan.fade > 0)
    earlier = None if start is None else read_distilled(start)
    if earlier is not None:
        _start_from(learning, earlier, name, str(start))
    examination = right = None
    if test is not None:
        examination = Examination.read(test, teaching.classes, workers, counting("reading test images"))
        if machines.first:
            right = _examine_teacher(examination, teaching, reporter)
    stored = Preprocessing(max(plan.size, plan.final_size), max(plan.size, plan.final_size), "crop")
    pixels, _ = decode(files, stored, workers, counting("reading images"))
    pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(plan.seed))]
    held_out, shown = pixels.split([number := min(HELD_OUT, len(pixels) // 10), len(pixels) - number])
    module = fit(
        learning,
        teaching,
        shown,
        plan,
        folder,
        resume=resume,
        examination=examination,
        machines=machines,
        progress=counting("distilling (‰)"),
    )
    if not machines.first:
        raise SystemExit(0)
    agreement = _agreement(learning, teaching, held_out) if teaching.classes and len(held_out) else None
    top1 = grid = tested_on = None
    if test is not None and examination is not None and right is not None and learning.classifier is not None:
        exact_arithmetic()
        box = teaching.to(module.device).classifier(GRAD_CAM)
        top1, grid = _examine(examination, learning.classifier, box, right, counting("pointing in grids"))
        tested_on = {"name": f"images of {test.resolve().name}", "images": len(examination.labels)}
    origin: dict[str, Any] = {
        "teacher": f"{teacher} ({Path(weights).name})",
        "images": len(shown),
        "seen": module.seen + (0 if earlier is None else earlier.origin.get("seen", 0)),
        "agreement": agreement,
        "top1": top1,
        "tested_on": tested_on,
        "grid_2x2": grid,
        "plan": asdict(plan),
        "terms": _joint_terms(weights, earlier),
    }
    _described(learning, name, origin).write(out)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(out, module.seen, module.curve[-1]["seconds"], agreement, top1, grid, module.curve)


def _run_folder(out: Path, resume: bool) -> Path:
    """Where an unfinished distillation keeps its state."""
    folder = out.with_name(f"{out.name}.run")
    found = (folder / CHECKPOINT).is_file()
    if resume and not found:
        raise SicError(f"There is nothing to resume: {folder / CHECKPOINT} does not exist.")
    if found and not resume:
        raise SicError(f"{folder} holds an unfinished distillation; continue it with --resume, or remove the folder.")
    out.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _described(student: Student, name: str, origin: dict[str, Any]) -> Distilled:
    """The student's weights, without biases, and what they come from."""
    network, classifier = student.backbone.network, student.classifier
    remove_biases(network)
    if classifier is None:
        return Distilled(name, network.state_dict(), origin=origin)
    return Distilled(name, network.state_dict(), classifier.head.weight.detach(), classifier.temperature, origin)


def _alike(name: str, teacher: Teacher) -> bool:
    """Whether a network of that name has the teacher's layers, so that it can start from their weights."""
    own = [value.shape for value in build(name).network.state_dict().values()]
    return own == [value.shape for value in teacher.backbone.network.state_dict().values()]


def _start_from(student: Student, earlier: Distilled, name: str, file: str) -> None:
    """Take over the student's layers; an earlier network with more layers than these lends those that both have."""
    places = student.backbone.network.state_dict()
    shared = {place: value for place, value in earlier.network.items() if place in places}
    if any(place not in shared or shared[place].shape != value.shape for place, value in places.items()):
        raise SicError(f"{file} holds a {earlier.backbone}, without the layers of {name}; leave out --start.")
    Weights(shared, file)(student.backbone.network)
    if student.classifier is not None and earlier.head is not None:
        if student.classifier.head.weight.shape != earlier.head.shape:
            raise SicError(f"{file} was distilled from a teacher of other classes.")
        with torch.no_grad():
            student.classifier.head.weight.copy_(earlier.head)


def _joint_terms(weights: str, earlier: Distilled | None) -> str:
    """The terms of the teacher's weights and of the network that the student started from."""
    own, before = terms(weights), "" if earlier is None else str(earlier.origin.get("terms", ""))
    return before if own in before else f"{own} {before}".strip()


def _examine_teacher(examination: Examination, teacher: Teacher, reporter: Reporter) -> Tensor:
    """Its answers, N×C, before anybody learns from them: a teacher with damaged weights still teaches."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    answers = examination.answers(teacher.to(device).classifier(GRAD_CAM))
    teacher.cpu()
    share, number, chance = examination.top(answers), len(examination.labels), 1 / teacher.classes
    reporter.say(f"The teacher answers {share:.1%} of {number:,} test images correctly.")
    if share < chance + 3 * math.sqrt(chance * (1 - chance) / number):
        reporter.warn(
            "This is not clearly better than chance. Do the weights belong to this network, and are the folders of "
            "--test in the order of its classes?"
        )
    return answers


def _examine(
    examination: Examination, student: Classifier, teacher: Classifier, right: Tensor, progress: Progress | None
) -> tuple[dict[str, float], dict[str, Any] | None]:
    """The share of right answers of both, and their grid pointing on images that both answer with confidence.

    `right`: the teacher's answers.
    """
    answers = {"student": examination.answers(student), "teacher": right}
    usable = torch.stack([confident(found, examination.labels) for found in answers.values()]).all(0)
    ways = {"student": student, "teacher_grad_cam": teacher}
    grids = GRIDS if device_of(student).type == "cuda" else GRIDS_ON_CPU
    top1 = {who: examination.top(found) for who, found in answers.items()}
    return top1, examination.point(ways, usable, grids=grids, progress=progress)


@torch.inference_mode()
def _agreement(student: Student, teacher: Teacher, pixels: Tensor) -> float:
    """Share of images, bytes N×3×H×W, to which both give the same answer."""
    device = next(student.parameters()).device
    student, teacher = student.to(device).eval(), teacher.to(device)
    same = 0
    for batch in pixels.split(100):
        images = torch.nn.functional.interpolate(batch.to(device).float() / 255, SHOWN_AT, mode="bilinear")
        own, right = student(images).logits, teacher(images).logits
        assert own is not None and right is not None
        same += int((own.argmax(1) == right.argmax(1)).sum())
    return same / len(pixels)
