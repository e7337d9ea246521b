"""`sic distill`: a B-cos network from a conventional one and unlabelled images."""

from pathlib import Path
from typing import Annotated

import typer

from sic.cli.console import OUT, Talker, print_json


def distill(
    teacher: Annotated[str, typer.Argument(help="The conventional network: a backbone's name, or timm/NAME.")],
    images: Annotated[Path, typer.Argument(help="A folder of images, searched with all folders below it.")],
    out: Annotated[Path, typer.Option(help="The file to write (.safetensors); use it as --weights.")],
    weights: Annotated[
        str, typer.Option(help="The teacher's weights: a file, or `imagenet` for the published ones.")
    ] = "imagenet",
    student: Annotated[str | None, typer.Option(help="The student's architecture; default: the teacher's.")] = None,
    start: Annotated[
        Path | None, typer.Option(help="Continue from a file of sic distill; the network in it may be deeper.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Labelled images to measure both: a folder for each of the teacher's classes, in order."),
    ] = None,
    crops: Annotated[
        int | None, typer.Option("--images", min=1, help="Random crops to show in all; default: 100 of every image.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Training time in minutes, instead of --images.")] = None,
    size: Annotated[int, typer.Option(min=32, help="Side of the crops in pixels.")] = 128,
    final_size: Annotated[int, typer.Option(min=32, help="Side of the crops in the last part of the training.")] = 192,
    final_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the training that uses --final-size.")
    ] = 0.25,
    mixup: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the crops that are blended with another one (not at the end).")
    ] = 0.0,
    fade: Annotated[
        float, typer.Option(min=0, max=1, help="Turn the teacher into the student over this part of the training.")
    ] = 0.0,
    batch_size: Annotated[int, typer.Option(min=2, help="Crops per step.")] = 512,
    lr: Annotated[
        float, typer.Option(min=0, help="Largest step, relative to a layer's weights; falls to 0 as a cosine.")
    ] = 0.006,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the crops.")] = 0,
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile both networks; default: on a GPU.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="GPUs of this machine.")] = 1,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Processes that read images.")] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last checkpoint.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Turn a conventional network into a true B-cos network with unlabelled images."""
    from dataclasses import asdict

    import torch

    from sic.cli.jobs import launch, machines_of, one_voice, started
    from sic.distill import Plan
    from sic.distill import distill as run
    from sic.distill.images import image_files
    from sic.errors import SicError

    if crops is not None and minutes is not None:
        raise SicError("Give --images or --minutes, not both.")
    if out.suffix != ".safetensors":
        raise SicError(f"--out {out} must end in .safetensors.")
    if crops is None and minutes is None:
        crops = 100 * len(image_files(images))
    machines = machines_of(devices if devices > 1 else None, None)
    if machines.processes > 1 and not started():
        import sys

        raise typer.Exit(launch(machines, sys.argv[1:]))
    plan = Plan(
        images=crops,
        minutes=minutes,
        size=size,
        final_size=final_size,
        final_share=final_share,
        mixup=mixup,
        fade=fade,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        compiled=torch.cuda.is_available() if compiled is None else compiled,
    )
    with Talker() as talker, one_voice(machines):
        done = run(
            teacher,
            images,
            out,
            plan,
            weights=weights,
            student=student,
            start=start,
            test=test,
            resume=resume,
            workers=workers,
            machines=machines,
            reporter=talker,
        )
    if json:
        print_json({**asdict(done), "file": str(done.file)})
        return
    same = "" if done.agreement is None else f" Student and teacher agree on {done.agreement:.1%} of held-out images."
    if done.top1 is not None:
        student_right, teacher_right = done.top1["student"], done.top1["teacher"]
        same += f" Accuracy on the test images: student {student_right:.1%}, teacher {teacher_right:.1%}."
    if done.grid_2x2 is not None:
        own, theirs = (done.grid_2x2[who]["raw"]["share"] for who in ("student", "teacher_grad_cam"))
        same += (
            " Share of the contributions to a class that lies on its image, in 2×2 grids of test images:"
            f" student {own:.1%}, teacher (Grad-CAM) {theirs:.1%}, chance {done.grid_2x2['chance']:.1%}."
        )
    OUT.print(f"Wrote {out} after {done.images:,} crops in {done.seconds / 60:.0f} minutes.{same}", markup=False)
