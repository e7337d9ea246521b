"""The notebook runs from top to bottom, and was saved with what it then shows."""

import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
LARGEST = 200_000
"""Bytes."""


def shown(notebook: Any) -> str:
    """All text that its cells put out."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def check(text: str) -> None:
    """What the words around the cells promise."""
    right = re.search(r"(\d+)% of the test images answered rightly", text)
    assert right is not None and int(right[1]) >= 60
    missing = re.search(r"missing: (\S+)", text)
    assert missing is not None and float(missing[1]) < 1e-4
    assert "shows bird 1, not bird 0; use --force to take it anyway" in text
    assert "is a support of bird 0, but the data says bird 1" in text
    assert "[('replace', 'bird 0', True)]" in text


def test_saved_notebook_is_complete_and_small() -> None:
    import nbformat

    assert NOTEBOOK.stat().st_size <= LARGEST
    saved = nbformat.read(NOTEBOOK, as_version=4)
    check(shown(saved))
    assert all(cell.execution_count for cell in saved.cells if cell.cell_type == "code")
    assert any("image/png" in output.get("data", {}) for cell in saved.cells for output in cell.get("outputs", []))


@pytest.mark.slow
def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    check(shown(notebook))
