"""`/api/v1/supports`: the cases that the model reasons with."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from sic.serve import schemas
from sic.serve.answers import V1, Site, image_answer


def add(app: FastAPI, site: Site) -> None:
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
