"""`/healthz`, `/metrics` and `/api/v1/model`: the server about itself."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response

from sic.serve import schemas
from sic.serve.answers import V1, Site


def add(app: FastAPI, site: Site) -> None:
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
