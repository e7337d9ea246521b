"""The client in the documentation works as it stands there."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.conftest import Served

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"


def test_the_client_of_the_documentation(running: tuple[Served, str]) -> None:
    served, address = running
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    client = names["Client"](address)
    image = served.image.read_bytes()
    assert client.predict(image)["labels"] == served.model.predict(served.image).labels
    wanted = served.model.explain(served.image, served.model.classes[:2])
    for told, expected in zip(client.explain(image, served.model.classes[:2])["classes"], wanted.classes, strict=True):
        np.testing.assert_allclose(told["map"], expected.contributions.maps.numpy(), atol=1e-6)
        assert told["map"].sum() + told["constant"] == pytest.approx(told["logit"], abs=1e-4)


def test_every_address_is_documented(client: Any) -> None:
    text = PAGE.read_text()
    for path in client.get("/api/v1/openapi.json").json()["paths"]:
        room = "/" + "/".join(path.split("/")[1:4]) if path.startswith("/api") else path
        assert room in text, path
