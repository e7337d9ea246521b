"""The routes of the HTTP interface, apart from the clinic's: the server, its model, its test images, and uploads."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import PlainTextResponse, Response
from torch import Tensor

from sic.explain.html import shared_page
from sic.explain.picture import png
from sic.explain.prose import match_sentence
from sic.explain.render import as_json
from sic.serve import schemas
from sic.serve.decoder import Decoder
from sic.serve.engine import Engine
from sic.serve.gateway import Metrics
from sic.serve.limits import Check, Limits, Refused, Worker
from sic.serve.messages import IMAGES, REFUSALS, V1, image_answer, receive, wants_png

Classes = Annotated[list[str] | None, Query(alias="class", description="Explain these classes instead of the answer.")]
Format = Annotated[Literal["json", "png"] | None, Query(description="Instead of an Accept header.")]
Test = Annotated[int | None, Query(description="The number of a held-out image, instead of an upload.")]
Case = Annotated[
    int | None, Query(alias="support", description="The number of a support, instead of an upload: its image as kept.")
]
Versus = Annotated[
    str | None,
    Query(description="Compare the (first) class with this one, region by region; if it is the answer: the next best."),
]
Found = list[tuple[str, Tensor, str | None]]
"""The name, the model's view and, for a test image or a support, the true class of each image."""
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}, 404: {"model": schemas.Error}}


@dataclass
class Site:
    """The objects that the routes of one server share."""

    engine: Engine
    limits: Limits
    worker: Worker
    decoder: Decoder
    metrics: Metrics


def add_routes(app: FastAPI, site: Site) -> None:
    """Add all routes of this module to the application."""
    _add_server(app, site)
    _add_supports(app, site)
    _add_tests(app, site)
    _add_predict(app, site)
    _add_explain(app, site)
    _add_share(app, site)


def _add_server(app: FastAPI, site: Site) -> None:
    @app.get("/healthz", tags=["server"], summary="Whether the server is running")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse, summary="Counters for Prometheus")
    async def read_metrics() -> Response:
        return PlainTextResponse(site.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get(f"{V1}/model", tags=["model"], response_model=schemas.Description, summary="Describe the model")
    async def model() -> dict[str, Any]:
        return site.engine.describe()


def _add_supports(app: FastAPI, site: Site) -> None:
    engine, worker = site.engine, site.worker

    @app.get(f"{V1}/supports", tags=["model"], response_model=schemas.Supports, summary="List the supports")
    async def supports() -> dict[str, Any]:
        return {"model": engine.name, "supports": await worker.run(lambda _: engine.supports())}

    @app.get(f"{V1}/supports/{{number}}/image", tags=["model"], responses=PNG, summary="The image of a support")
    def image(number: int) -> Response:  # does not use the model, so it need not wait in line
        return image_answer(engine.support_image(number))

    @app.get(f"{V1}/supports/{{number}}/picture", tags=["model"], responses=PNG, summary="The colours of a support")
    async def picture(number: int) -> Response:
        """The colours that the model looks for, on the support's own image; opaque where they count."""
        return image_answer(await worker.run(lambda _: engine.support_picture(number)))

    @app.get(f"{V1}/supports/{{number}}/map", tags=["model"], summary="The support contribution")
    async def own_map(number: int) -> Response:
        """Contributions of the support's own pixels: little-endian float32, row by row."""
        return Response(await worker.run(lambda _: engine.support_map(number)), media_type="application/octet-stream")


def _add_tests(app: FastAPI, site: Site) -> None:
    engine, worker, embed_all = site.engine, site.worker, _background(site)

    @app.get(
        f"{V1}/tests",
        tags=["held-out images"],
        response_model=schemas.TestImages,
        summary="List the held-out images: test images, or validation images if there are none",
    )
    async def listed(
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
        show: Annotated[Literal["all", "wrong", "unlike"], Query(description="unlike: no similar case.")] = "all",
    ) -> Any:
        """All images are classified in the background; `looked_at` says how many have been so far."""
        embed_all()
        return await worker.run(lambda _: engine.test_page(show, offset, limit))

    @app.get(f"{V1}/tests/{{number}}/image", tags=["held-out images"], summary="A held-out image as the model sees it")
    def image(number: int) -> Response:  # does not use the model, so it need not wait in line
        return image_answer(png(engine.test_view(number)[1]))

    @app.get(
        f"{V1}/supports/{{number}}/relying",
        tags=["held-out images"],
        response_model=schemas.Relying,
        summary="List the held-out images that rely on a support",
    )
    async def relying(number: int) -> Any:
        embed_all()
        return await worker.run(lambda _: engine.relying(number))

    @app.get(
        f"{V1}/overview",
        tags=["model"],
        response_model=schemas.Overview,
        summary="Similarity of the classes, and a projection of images and supports",
    )
    async def overview() -> Any:
        """Includes the held-out images that have been classified so far, which goes on in the background."""
        if engine.tests is not None:
            embed_all()
        return await worker.run(lambda _: engine.overview())


def _background(site: Site) -> Callable[[], None]:
    """A function that starts to embed all test images, a few at a time, whenever no request waits."""
    engine, worker = site.engine, site.worker
    tasks: set[asyncio.Task[None]] = set()

    async def embed() -> None:
        tests = engine.tests
        while tests is not None and not tests.done:
            if worker.unfinished:
                await asyncio.sleep(0.1)
                continue
            await worker.in_background(lambda: tests.embed_more(engine.model))

    def start() -> None:
        if engine.tests is None:
            raise Refused(404, "The held-out images of this model are not available.")
        if not engine.tests.done and not tasks:
            task = asyncio.create_task(embed())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    return start


async def _images(site: Site, request: Request, test: int | None, case: int | None) -> Callable[[Check], Found]:
    """Receive the images of a request. The worker calls the result to decode them."""
    engine = site.engine
    if test is not None:
        return lambda _: [engine.test_image(test)]
    if case is not None:
        return lambda _: [engine.support_view(case)]
    with site.worker.arrival():
        uploads = await receive(request, site.limits)

    def decoded(check: Check) -> Found:
        found: Found = []
        for upload in uploads:
            check()
            found.append((upload.name, engine.model.tensor(site.decoder(upload, check)), None))
        return found

    return decoded


def _add_predict(app: FastAPI, site: Site) -> None:
    engine = site.engine

    @app.post(
        f"{V1}/predict",
        tags=["images"],
        response_model=schemas.Predictions,
        responses=REFUSALS,
        openapi_extra=IMAGES,
        summary="Classify images",
    )
    async def predict(
        request: Request,
        promise: Annotated[
            bool, Query(description="Give no labels to images that the promise of the model does not cover.")
        ] = False,
        test: Test = None,
        case: Case = None,
    ) -> Any:
        """Labels, probabilities and the evidence of every support, for all images of the request."""
        if wants_png(request, None):
            raise Refused(406, "Predictions are JSON; /api/v1/explain draws figures.")
        find = await _images(site, request, test, case)

        def job(check: Check) -> list[dict[str, Any]]:
            found = find(check)
            check()
            return engine.predict([name for name, _, _ in found], [view for _, view, _ in found], promise)

        images = await site.worker.run(job)
        site.metrics.images("predict", len(images))
        return {"model": engine.name, "images": images}


def _add_explain(app: FastAPI, site: Site) -> None:
    engine = site.engine

    @app.post(
        f"{V1}/explain",
        tags=["images"],
        response_model=schemas.Explanations,
        responses={**REFUSALS, 200: {"content": {"image/png": {}}, "description": "JSON, or the figure as PNG."}},
        openapi_extra=IMAGES,
        summary="Explain images",
    )
    async def explain(
        request: Request,
        classes: Classes = None,
        maps: Annotated[bool, Query(description="Include raw contribution maps.")] = False,
        pictures: Annotated[bool, Query(description="Include pictures.")] = False,
        matches: Annotated[bool, Query(description="Include the regions that match; this takes longer.")] = False,
        versus: Versus = None,
        specific: Annotated[
            bool, Query(description="Include how much more pixels add to a class than to all classes on average.")
        ] = False,
        test: Test = None,
        case: Case = None,
        format: Format = None,
    ) -> Any:
        """The evidence of the supports behind each score and, with `maps`, the contribution of every pixel."""
        drawn = wants_png(request, format)
        find = await _images(site, request, test, case)

        def job(check: Check) -> Any:
            found = find(check)
            if drawn and len(found) != 1:
                raise Refused(400, "A figure shows one image; send one image, or ask for JSON.")
            answers = []
            for name, view, truth in found:
                check()
                explanation = engine.explain(name, view, classes or [], truth, matches, versus, specific)
                if drawn:
                    return engine.figure(explanation)
                right = None if test is None else engine.test_right(test)
                told = as_json(explanation, maps=maps, pictures=pictures)
                for one, explained in zip(told["classes"], explanation.classes, strict=True):
                    one["words"] = match_sentence(explained)
                answers.append({**told, "right": right})
            return answers

        answers = await site.worker.run(job)
        site.metrics.images("explain", 1 if drawn else len(answers))
        return image_answer(answers) if drawn else {"model": engine.name, "images": answers}


def _add_share(app: FastAPI, site: Site) -> None:
    engine = site.engine

    @app.post(
        f"{V1}/share",
        tags=["images"],
        responses={**REFUSALS, 200: {"content": {"text/html": {}}, "description": "One self-contained file."}},
        openapi_extra=IMAGES,
        summary="An explanation as a web page in one file",
    )
    async def share(
        request: Request, classes: Classes = None, versus: Versus = None, test: Test = None, case: Case = None
    ) -> Response:
        """The explanation of one image, including the image and its supports, to keep or to send."""
        find = await _images(site, request, test, case)

        def job(check: Check) -> str:
            found = find(check)
            if len(found) != 1:
                raise Refused(400, "The page shows one image; send one image.")
            name, view, truth = found[0]
            check()
            return shared_page(engine.explain(name, view, classes or [], truth, True, versus), engine.name)

        text = await site.worker.run(job)
        return Response(
            text, media_type="text/html", headers={"Content-Disposition": 'attachment; filename="case.html"'}
        )
