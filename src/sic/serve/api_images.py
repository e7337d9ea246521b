"""`/api/v1/predict`, `/explain` and `/share`: answers about images that a request brings, or about test images."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from torch import Tensor

from sic.explain.html import shared_page
from sic.explain.render import as_json
from sic.serve import schemas
from sic.serve.answers import IMAGES, REFUSALS, V1, Site, image_answer, wants_png
from sic.serve.limits import Refused
from sic.serve.uploads import receive
from sic.serve.work import Check

Classes = Annotated[list[str] | None, Query(alias="class", description="Explain these classes instead of the answer.")]
Format = Annotated[Literal["json", "png"] | None, Query(description="Instead of an Accept header.")]
Test = Annotated[int | None, Query(description="A test image's number, instead of an upload.")]
Found = list[tuple[str, Tensor, str | None]]
"""Name, the model's view and, for test images, the true class."""


def add(app: FastAPI, site: Site) -> None:
    engine, limits, worker, metrics = site.engine, site.limits, site.worker, site.metrics

    async def pictures(request: Request, test: int | None) -> Callable[[Check], Found]:
        """What decodes the request's images, to be called by the worker."""
        if test is not None:
            return lambda _: [_test(site, test)]
        with worker.arrival():
            uploads = await receive(request, limits)

        def decoded(check: Check) -> Found:
            found: Found = []
            for upload in uploads:
                check()
                found.append((upload.name, engine.model.tensor(site.decoder(upload, check)), None))
            return found

        return decoded

    @app.post(
        f"{V1}/predict",
        tags=["images"],
        response_model=schemas.Predictions,
        responses=REFUSALS,
        openapi_extra=IMAGES,
        summary="Classify images",
    )
    async def predict(request: Request, test: Test = None) -> Any:
        """Labels, probabilities and the evidence of every support, for up to as many images as the server takes."""
        if wants_png(request, None):
            raise Refused(406, "A prediction comes as JSON; /api/v1/explain draws.")
        find = await pictures(request, test)

        def job(check: Check) -> list[dict[str, Any]]:
            found = find(check)
            check()
            return engine.predict([name for name, _, _ in found], [view for _, view, _ in found])

        images = await worker.run(job)
        metrics.images("predict", len(images))
        return {"model": engine.name, "images": images}

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
        maps: Annotated[bool, Query(description="With raw contribution maps.")] = False,
        pictures_too: Annotated[bool, Query(alias="pictures", description="With pictures.")] = False,
        test: Test = None,
        format: Format = None,
    ) -> Any:
        """Where each score comes from: the supports' evidence and, with `maps`, every pixel's part in it."""
        drawn = wants_png(request, format)
        find = await pictures(request, test)

        def job(check: Check) -> Any:
            found = find(check)
            if drawn and len(found) != 1:
                raise Refused(400, "A figure is drawn of one image at a time; ask for JSON or send one image.")
            answers = []
            for name, view, truth in found:
                check()
                explanation = engine.explain(name, view, classes or [], truth)
                if drawn:
                    return engine.figure(explanation)
                answers.append(as_json(explanation, maps=maps, pictures=pictures_too))
            return answers

        answers = await worker.run(job)
        metrics.images("explain", 1 if drawn else len(answers))
        return image_answer(answers) if drawn else {"model": engine.name, "images": answers}

    @app.post(
        f"{V1}/share",
        tags=["images"],
        responses={**REFUSALS, 200: {"content": {"text/html": {}}, "description": "One file that needs no other."}},
        openapi_extra=IMAGES,
        summary="A case as a web page in one file",
    )
    async def share(request: Request, classes: Classes = None, test: Test = None) -> Response:
        """The explanation of one image, with the image and its supports inside, to keep or to send on."""
        find = await pictures(request, test)

        def job(check: Check) -> str:
            name, view, truth = find(check)[0]
            check()
            return shared_page(engine.explain(name, view, classes or [], truth), engine.name)

        text = await worker.run(job)
        return Response(
            text, media_type="text/html", headers={"Content-Disposition": 'attachment; filename="case.html"'}
        )


def _test(site: Site, number: int) -> tuple[str, Tensor, str | None]:
    name, view, truth = site.engine.test_view(number)
    return name, view, truth[0] if len(truth) == 1 else None
