"""The web application: the pages and the HTTP interface, behind the guard."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from importlib import resources

from fastapi import Depends, FastAPI
from fastapi.responses import Response

from sic.serve.api import Site, add_routes
from sic.serve.clinic import ServedClinic, add_clinic
from sic.serve.decoder import Decoder
from sic.serve.engine import Engine
from sic.serve.gateway import Guard, Metrics
from sic.serve.limits import Limits, Refused, Worker
from sic.serve.messages import V1, answer_errors
from sic.version import __version__

PAGES = {"/": "viewer.html", "/cases": "cases.html", "/clinic": "clinic.html"}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def create_app(
    engine: Engine,
    clinic: ServedClinic | None,
    limits: Limits | None = None,
    token: str | None = None,
    names: frozenset[str] = frozenset(),
) -> Guard:
    """Create the application.

    Args:
        engine: The model.
        clinic: Its clinic; None for a model without cases.
        limits: Limits of a request.
        token: The token that requests must have; None for no token.
        names: Host names of the server besides localhost.
    """
    limits = limits or Limits()
    worker, decoder = Worker(limits), Decoder(limits)
    metrics = Metrics(lambda: worker.unfinished)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()
        decoder.close()

    async def current() -> None:
        if clinic is not None and clinic.outdated:
            await worker.run(lambda _: clinic.catch_up())

    app = FastAPI(
        dependencies=[Depends(current)],
        title="sic",
        version=__version__,
        description="Image classification with explanations: every score is a sum that is traced back to the pixels.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=f"{V1}/openapi.json",
        lifespan=lifespan,
        # Newer versions would report to a collector that the environment names; older ones ignore this.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    answer_errors(app)
    _pages(app, PAGES if clinic is not None else {"/": PAGES["/"]})
    add_routes(app, Site(engine, limits, worker, decoder, metrics))
    if clinic is not None:
        add_clinic(app, clinic, worker, limits)
    return Guard(app, token, names, metrics)


def _pages(app: FastAPI, pages: Mapping[str, str]) -> None:
    """Add the static files. They are read once, so no path of a request reaches the disk."""
    folder = resources.files("sic.serve") / "static"
    files = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}

    def answer(name: str) -> Response:
        if name not in files:
            raise Refused(404, "Not found.")
        return Response(files[name], media_type=TYPES[name.rsplit(".")[-1]], headers={"Cache-Control": "no-cache"})

    for path, name in pages.items():
        app.add_api_route(path, partial(answer, name), include_in_schema=False)
    app.add_api_route("/static/{name}", answer, include_in_schema=False)
