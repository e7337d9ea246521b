"""The application: pages, HTTP interface, and the guard around both."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from importlib import resources

from fastapi import Depends, FastAPI
from fastapi.responses import Response

from sic.serve import api_clinic, api_images, api_model
from sic.serve.answers import V1, Site, answer_errors
from sic.serve.clinic import ServedClinic
from sic.serve.decoder import Decoder
from sic.serve.engine import Engine
from sic.serve.guard import Guard
from sic.serve.limits import Limits, Refused
from sic.serve.metrics import Metrics
from sic.serve.work import Worker
from sic.version import __version__

PAGES = {"/": "viewer.html", "/cases": "cases.html", "/clinic": "clinic.html"}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def create_app(
    engine: Engine,
    clinic: ServedClinic,
    limits: Limits | None = None,
    token: str | None = None,
    names: frozenset[str] = frozenset(),
) -> Guard:
    """`token`: what callers must present, if anything; `names`: host names the server goes by beside localhost."""
    limits = limits or Limits()
    worker, decoder = Worker(limits), Decoder(limits)
    metrics = Metrics(lambda: worker.unfinished)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()
        decoder.close()

    async def current() -> None:
        if clinic.outdated:
            await worker.run(lambda _: clinic.catch_up())

    app = FastAPI(
        dependencies=[Depends(current)],
        title="sic",
        version=__version__,
        description="Classification that can be checked: every score is a sum of similarities to training images.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=f"{V1}/openapi.json",
        lifespan=lifespan,
        # What FastAPI would tell a collector named in the environment; older versions tell nothing and take no notice.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    answer_errors(app)
    _pages(app)
    site = Site(engine, clinic, limits, worker, decoder, metrics)
    for room in (api_model, api_images, api_clinic):
        room.add(app, site)
    return Guard(app, token, names, metrics)


def _pages(app: FastAPI) -> None:
    """Static files, read once: no path of a request ever reaches the disk."""
    folder = resources.files("sic.serve") / "static"
    files = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}

    def answer(name: str) -> Response:
        if name not in files:
            raise Refused(404, "There is nothing here.")
        return Response(files[name], media_type=TYPES[name.rsplit(".")[-1]], headers={"Cache-Control": "no-cache"})

    for path, name in PAGES.items():
        app.add_api_route(path, partial(answer, name), include_in_schema=False)
    app.add_api_route("/static/{name}", answer, include_in_schema=False)
