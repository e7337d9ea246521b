"""`sic`: the commands, and the handling of errors."""

import errno
import io
import os
import sys

import typer

from sic.cli import (
    compare,
    data,
    demo,
    distill,
    evaluate,
    explain,
    export,
    predict,
    report,
    search,
    serve,
    supports,
    train,
    verify,
)
from sic.cli.console import harmless
from sic.cli.jobs import leave_when_told, started
from sic.errors import SicError
from sic.version import __version__

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

app = typer.Typer(
    help="Image classifiers that people can check: every decision is a sum of similarities to real training images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("search")(search.search)
app.command("distill")(distill.distill)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.command("verify")(verify.verify)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.add_typer(data.app, name="data")
app.add_typer(supports.app, name="supports")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sic {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> None:
    """Run a command; an error is one sentence on standard error and a non-zero exit code."""
    # Must be set before torch is loaded. Its threads otherwise spin while they wait for each other, which makes
    # training several times slower as soon as anything else, such as the data loader, uses the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the terminal lacks become question marks
    if not started():  # a launcher of several processes ends them in its own way
        leave_when_told()
    try:
        app()
    except SicError as error:
        _fail(str(error))
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _fail(
                "Interrupted; finished work is kept. Run the same command again to continue (training: with --resume).",
                INTERRUPTED,
            )
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _fail("The disk is full; free some space and run the command again (training: with --resume).")
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}; choose another place or change its permissions.")
        _unexpected(error)
    except Exception as error:
        _unexpected(error)


def _fail(sentence: str, code: int = 1) -> None:
    print(f"sic: {harmless(sentence)}", file=sys.stderr)
    sys.exit(code)


def _lack_of_memory(error: BaseException) -> str | None:
    """What to do about an error that says that memory ran out; None for other errors."""
    kind, text = type(error).__name__, str(error)
    if kind == "OutOfMemoryError":  # torch's, which is not imported here
        return "The memory of the GPU is full; end other programs that use it, or use a smaller --batch-size or --size."
    if "DataLoader worker" in text and ("killed by signal" in text or "exited unexpectedly" in text):
        return (
            "The system ended a loader process, probably because memory ran out; end other programs or use fewer "
            "--workers, and run the command again (training: with --resume)."
        )
    return None


def _unexpected(error: BaseException) -> None:
    if os.environ.get("SIC_DEBUG"):
        raise error
    unknown = f"Unexpected error ({type(error).__name__}: {error}); set SIC_DEBUG=1 to see the traceback."
    _fail(_lack_of_memory(error) or unknown)
