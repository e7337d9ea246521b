"""Routes about the server, its model and its test images: `/healthz`, `/metrics`, `/model`, `/supports`, `/tests`."""

import asyncio
import contextlib
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from fastapi.responses import PlainTextResponse, Response

from sic.explain.picture import png
from sic.serve import schemas
from sic.serve.answers import V1, Site, image_answer
from sic.serve.limits import Refused
from sic.serve.work import Check


def add(app: FastAPI, site: Site) -> None:
    _add_server(app, site)
    _add_supports(app, site)
    _add_tests(app, site)


def _add_server(app: FastAPI, site: Site) -> None:
    engine = site.engine

    @app.get("/healthz", tags=["server"], summary="Whether the server is there")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse, summary="Counters for Prometheus")
    async def read_metrics() -> Response:
        return PlainTextResponse(site.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get(f"{V1}/model", tags=["model"], response_model=schemas.Description, summary="What the model is")
    async def model() -> dict[str, Any]:
        return engine.describe()


def _add_supports(app: FastAPI, site: Site) -> None:
    engine, worker = site.engine, site.worker

    @app.get(f"{V1}/supports", tags=["model"], response_model=schemas.Supports, summary="The cases of the model")
    async def supports() -> dict[str, Any]:
        return {"model": engine.name, "supports": engine.supports()}

    png_only: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}, 404: {"model": schemas.Error}}

    @app.get(f"{V1}/supports/{{number}}/image", tags=["model"], responses=png_only, summary="A support's image")
    def image(number: int) -> Response:  # not the model's work: it need not wait in line
        return image_answer(engine.support_image(number))

    @app.get(f"{V1}/supports/{{number}}/picture", tags=["model"], responses=png_only, summary="What is kept of it")
    async def picture(number: int) -> Response:
        """The colours that the model looks for in the support's own image, strong where they count."""
        return image_answer(await worker.run(lambda _: engine.support_picture(number)))

    @app.get(f"{V1}/supports/{{number}}/map", tags=["model"], summary="The support contribution")
    async def own_map(number: int) -> Response:
        """Contributions of the support's own pixels: little-endian float32, row by row."""
        return Response(await worker.run(lambda _: engine.support_map(number)), media_type="application/octet-stream")


def _add_tests(app: FastAPI, site: Site) -> None:
    engine, worker = site.engine, site.worker

    tasks: set[asyncio.Task[None]] = set()

    async def embed() -> None:
        """Embed all test images, a few at a time, whenever nobody waits."""
        tests = engine.tests
        while tests is not None and not tests.done:
            if worker.unfinished:
                await asyncio.sleep(0.1)
                continue
            with contextlib.suppress(Refused):
                await worker.run(lambda _: tests.embed_more(engine.model))

    def embed_all() -> None:
        if engine.tests is None:
            raise Refused(404, "The model's test images are not at hand.")
        if not engine.tests.done and not tasks:
            task = asyncio.create_task(embed())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    @app.get(f"{V1}/tests", tags=["test images"], response_model=schemas.TestImages, summary="Browse the test images")
    async def listed(
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
        show: Annotated[Literal["all", "wrong", "unlike"], Query(description="unlike: no similar case.")] = "all",
    ) -> Any:
        """`wrong` and `unlike` look at all images, in the background: `looked_at` says how far that is."""
        embed_all()
        tests = engine.tests
        assert tests is not None

        def job(_: Check) -> dict[str, Any]:
            if show == "all":
                places = list(range(len(tests.samples)))
            else:
                key = "right" if show == "wrong" else "similar_case"
                known = engine.test_list(range(tests.embedded))
                places = [entry["test"] for entry in known if entry.get(key) is False]
            return {
                "set": tests.name,
                "images": engine.test_list(places[offset : offset + limit]),
                "matching": len(places),
                "looked_at": tests.embedded,
                "of": len(tests.samples),
            }

        return await worker.run(job)

    @app.get(f"{V1}/tests/{{number}}/image", tags=["test images"], summary="A test image as the model sees it")
    def image(number: int) -> Response:  # not the model's work: it need not wait in line
        return image_answer(png(engine.test_view(number)[1]))

    @app.get(
        f"{V1}/supports/{{number}}/relying",
        tags=["test images"],
        response_model=schemas.Relying,
        summary="Which test images rely on a support",
    )
    async def relying(number: int) -> Any:
        embed_all()
        return await worker.run(lambda _: engine.relying(number))

    @app.get(
        f"{V1}/overview",
        tags=["model"],
        response_model=schemas.Overview,
        summary="How alike the classes are, and where images and supports lie",
    )
    async def overview() -> Any:
        """Test images take part as far as they have been looked at, which goes on in the background."""
        if engine.tests is not None:
            embed_all()
        return await worker.run(lambda _: engine.overview())
