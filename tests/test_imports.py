"""Imports go one way: DESIGN's rooms may only use the rooms below them."""

import ast
from pathlib import Path

import sic

ROOT = Path(sic.__file__).parent

USES: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "settings": {"errors"},
    "machines": set(),
    "files": {"errors"},
    "evaluate.metrics": set(),
    "integrity": {"errors", "evaluate.metrics", "settings"},
    "bcos": {"errors", "settings"},
    "backbones": {"bcos", "errors", "integrity"},
    "calibration": {"settings"},
    "methods": {"bcos", "backbones", "calibration", "errors"},
    "supports": {"errors", "files"},
    "data": {"errors", "files", "machines"},
    "evaluate.headline": set(),
    "evaluate.localisation": {"data", "errors", "methods"},
    "card": {"backbones", "calibration", "evaluate.headline", "evaluate.metrics", "methods"},
    "directory": {
        "backbones",
        "calibration",
        "card",
        "data",
        "errors",
        "evaluate.headline",
        "files",
        "integrity",
        "machines",
        "methods",
        "supports",
    },
    "predictions": {"calibration", "data", "evaluate.headline", "methods"},
    "latents": {"data", "files", "methods", "version"},
    "training": {"backbones", "bcos", "data", "directory", "errors", "files", "machines", "methods"},
    "explain": {
        "backbones",
        "bcos",
        "calibration",
        "data",
        "directory",
        "errors",
        "methods",
        "predictions",
        "supports",
        "version",
    },
}
for above_settings in ("backbones", "methods", "supports", "data", "directory", "predictions", "training", "explain"):
    USES[above_settings].add("settings")
USES["directory"] |= {"version"}
USES["training"] |= {"card", "predictions", "supports"}
USES["distilled_model"] = {"backbones", "data", "directory", "errors", "machines", "methods", "supports"}
USES["distill"] = {"backbones", "bcos", "data", "errors", "evaluate.localisation", "machines", "methods", "training"}
USES["predictor"] = {
    "calibration",
    "card",
    "data",
    "directory",
    "errors",
    "latents",
    "methods",
    "predictions",
    "supports",
}
USES["model"] = set(USES) - {"distill"}
USES["fitting"] = {"calibration", "card", "data", "directory", "errors", "machines", "model", "training"}
USES["fitting"] |= {"evaluate.headline", "predictions", "settings", "supports"}
USES["run"] = {"card", "data", "directory", "errors"}
USES["evaluate"] = set(USES)
USES["clinic"] = set(USES)
USES["report"] = set(USES)
USES["export"] = {"model", "methods", "directory", "errors", "files", "version"}
USES["serve"] = set(USES) - {"report", "export"}
USES["cli"] = set(USES)
TOP = {"__init__", "__main__"}
"""The package's front doors: the lazy names of `sic` and `python -m sic`."""

HEAVY_FROM_START = {"lightning", "matplotlib", "fastapi", "jinja2", "pydicom", "onnx", "onnxruntime"}


def _room(module: str) -> str:
    """The room of a module; one that lies lower than the rest of its folder has a row of its own."""
    _, *parts = module.split(".")
    own = ".".join(parts[:2])
    return own if own in USES else parts[0]


def rooms(file: Path) -> tuple[str, set[str]]:
    """The room that a file belongs to, and the rooms it imports anywhere in it."""
    room = _room(".".join(file.relative_to(ROOT.parent).with_suffix("").parts))
    used = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names = [
                f"{node.module}.{alias.name}" if node.module == "sic" else str(node.module) for alias in node.names
            ]
        else:
            continue
        used |= {_room(name) for name in names if name.startswith("sic.")}
    return room, used - {"__version__"}


def test_imports_go_down_only() -> None:
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        room, used = rooms(file)
        if room in TOP:
            continue
        assert room in USES, f"{room} is a new room: say what it may use"
        if upwards := used - {room} - USES[room]:
            wrong.append(f"{file.relative_to(ROOT)} uses {', '.join(sorted(upwards))}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_cycle() -> None:
    order = list(USES)
    for room, used in USES.items():
        assert all(order.index(other) <= order.index(room) for other in used)


def test_predicting_needs_no_optional_or_training_packages() -> None:
    """What is imported at module level by `sic.model` must not include the heavy packages."""
    import subprocess
    import sys

    names = "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    script = f"import sys, sic.cli.main; {names}; import sic.model; {names}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    started, predicting = (set(line.split()) for line in done.stdout.splitlines())
    assert not (HEAVY_FROM_START | {"torch", "sklearn", "scipy"}) & started
    assert "torch" in predicting and not (HEAVY_FROM_START | {"sklearn"}) & predicting
