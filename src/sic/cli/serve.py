"""`sic serve`: the viewer in a web browser, and the HTTP interface."""

import contextlib
import socket
import sys
from typing import Annotated

import typer

from sic.cli.console import ERR, print_json
from sic.cli.options import ModelFolder
from sic.errors import SicError
from sic.machines import best_device

LOCAL = ("127.0.0.1", "::1", "localhost")
SHORTEST_TOKEN = 12


def serve(
    model: ModelFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than localhost needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="SIC_TOKEN", help="Token that every request needs (also read from $SIC_TOKEN).")
    ] = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="Allow everybody who can reach --host.")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="A host name of this server; can be repeated.")] = None,
    allow_edits: Annotated[
        bool, typer.Option("--allow-edits", help="Allow other machines to edit the supports, too.")
    ] = False,
    max_megabytes: Annotated[float, typer.Option(min=0.1, help="Largest upload in MB.")] = 32,
    max_megapixels: Annotated[float, typer.Option(min=0.01, help="Largest image, in millions of pixels.")] = 40,
    max_images: Annotated[int, typer.Option(min=1, help="The most images per request.")] = 16,
    max_waiting: Annotated[int, typer.Option(min=1, help="Maximum number of waiting requests.")] = 16,
    max_seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of a request in seconds.")] = 60,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready to listen.")] = False,
) -> None:
    """Serve the viewer and the HTTP interface of a model."""
    _refuse_open_doors(host, token, no_token)
    listening = _listen(host, port)  # before anything that takes time
    try:
        import uvicorn

        from sic.serve.app import create_app
        from sic.serve.gateway import configuration
    except ImportError:
        raise SicError("The viewer needs FastAPI: pip install 'sic[serve]'.") from None

    from sic.directory import stamp
    from sic.model import load
    from sic.serve.clinic import ServedClinic
    from sic.serve.engine import Engine, HeldOutImages
    from sic.serve.limits import Limits

    limits = Limits(int(max_megabytes * 2**20), int(max_megapixels * 1e6), max_images, max_waiting, max_seconds)
    known = stamp(model)  # before it is loaded, so that every later edit is noticed
    loaded = load(model, best_device())
    if not loaded.classifier.traceable:
        raise SicError(
            f"sic serve shows models of --method sic and bcos; this one was trained with --method "
            f"{loaded.config.method}. Use sic explain {model} IMAGE instead."
        )
    tests, clinic = None, None
    if loaded.supports:
        try:
            tests = HeldOutImages.find(loaded)
        except (SicError, OSError) as error:
            ERR.print(f"{error} The viewer shows uploaded images only.")
    engine = Engine(loaded, model.resolve().name, tests)
    if loaded.supports:
        clinic = ServedClinic(model, engine, host in LOCAL or allow_edits, known)
    names = frozenset(allow_host or ()) | ({host} if host not in LOCAL else set())
    app = create_app(engine, clinic, limits, token, names)
    config = configuration(app, limits)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    if json:
        print_json({"address": address, "model": str(model), "token": token is not None})
        sys.stdout.flush()
    else:
        ERR.print(f"Serving {model} at {address}{'?token=…' if token else ''}; stop with Ctrl-C.")
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise SicError(f"--host {host} --port {port} cannot be used ({error.strerror}); choose another port.") from None


def _refuse_open_doors(host: str, token: str | None, no_token: bool) -> None:
    if token is not None and no_token:
        raise SicError("--token and --no-token exclude each other.")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isalnum()):
        raise SicError(
            f"--token must be {SHORTEST_TOKEN} or more letters and digits; "
            "python -c 'import secrets; print(secrets.token_hex(16))' makes one."
        )
    if host not in LOCAL and token is None and not no_token:
        raise SicError(
            f"--host {host} gives other machines access: add --token TOKEN, or --no-token if everybody there may see "
            "the images of the model."
        )
