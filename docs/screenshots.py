"""Take the pictures of the documentation: the viewer's pages, the report, and explanations, of one model.

    python docs/screenshots.py runs/demo
    python docs/screenshots.py photos cat.png   # the viewer of the shipped classifier, with one photograph

Needs Chromium and the extras `dev` and `serve`. The model's supports are looked at but not changed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

import sic
import sic.data

DOCS = Path(__file__).parent
OUT = DOCS / "pictures"
WIDTHS = {"": 1280, "-phone": 390}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TEST = 3
"""The test image that the viewer shows; the demo model is rather sure of it."""
EXPLAINED = {
    "explanation.png": ("test", 30),
    "pictures/explanation-yes.png": ("test", TEST),
    "pictures/explanation-unlike.png": ("train", 17),
    "pictures/explanation-wrong.png": ("test", 82),
}
"""Images to draw explanations of. Which are wrong or unlike depends on the model: look before you publish."""


def shrink(picture: Path, width: int | None = None) -> None:
    """256 colours, chosen so that rare ones stay what they are."""
    image = Image.open(picture).convert("RGB")
    if width is not None:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    palette = image.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=5, dither=Image.Dither.NONE)
    palette.save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size // 1000} kB")


@contextmanager
def served(model: Path) -> Iterator[str]:
    """The address of a viewer of the model."""
    command = [sys.executable, "-m", "sic", "serve", str(model), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = "".join(iter(server.stdout.readline, "}\n")) + "}"
        yield json.loads(said)["address"].rstrip("/")
    finally:
        server.terminate()
        server.wait()


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit("There is no Chromium on this machine: apt-get install chromium.")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield started
        started.close()


def shoot(page: Any, name: str, height: int, start: str | None = None, drawn: int | None = None) -> None:
    """The page from the top, or from an element, `height` pixels of it; `drawn`: the width of the picture."""
    top = 0
    if start is not None:
        top = page.locator(start).first.evaluate("element => element.getBoundingClientRect().top + scrollY - 8")
    bottom = page.evaluate("document.documentElement.scrollHeight")
    width = page.viewport_size["width"]
    picture = OUT / f"{name}.png"
    clip = {"x": 0, "y": top, "width": width, "height": min(height, bottom - top)}
    page.screenshot(path=picture, full_page=True, clip=clip, animations="disabled")
    shrink(picture, drawn)


def answer(page: Any, address: str, end: str) -> None:
    page.goto(address)
    page.wait_for_selector("#examples-list img")
    page.wait_for_timeout(1000)
    if not end:
        shoot(page, "viewer-start", 570)
    page.goto(f"{address}/?test={TEST}")
    page.wait_for_selector(".panel canvas")
    page.wait_for_timeout(1000)
    shoot(page, f"viewer-answer{end}", 980, "#result")
    stage = page.locator(".panel .stage").first
    stage.focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    shoot(page, f"viewer-region{end}", 980, ".panel .stage")


def matches(page: Any, end: str) -> None:
    page.keyboard.press("Escape")
    page.locator('[data-mode="matches"]').click()
    page.wait_for_selector(".panel .regions")
    page.wait_for_timeout(1000)
    page.locator(".panel .regions button").nth(2).focus()
    shoot(page, f"viewer-matches{end}", 1080, ".panel .stage")


def cases(page: Any, address: str, end: str) -> None:
    page.goto(f"{address}/cases")
    page.wait_for_selector("#plane-count:has-text('placed by')")
    page.wait_for_timeout(1000)
    shoot(page, f"viewer-cases{end}", 900 if end else 700)
    if not end:
        shoot(page, "viewer-classes", 545, "[aria-labelledby=alike-title]")
        page.select_option("#plane-class", "0")
        shoot(page, "viewer-plane", 720, "[aria-labelledby=plane-title]")


def clinic(page: Any, address: str, end: str) -> None:
    page.goto(f"{address}/clinic")
    page.wait_for_selector("#open:not([hidden]), #supports li")
    if page.locator("#open").is_visible():
        page.locator("#open").click()
    page.wait_for_selector("#supports li", timeout=300_000)
    page.locator("#supports li").nth(1).get_by_role("button", name="Take out").click()
    page.wait_for_selector("#do")
    page.wait_for_timeout(500)
    shoot(page, f"viewer-clinic{end}", 1000, "#desk")
    page.locator("#leave").click()


def report(page: Any, file: Path, end: str) -> None:
    page.goto(file.as_uri())
    for picture in page.locator("#examples details.example").first.locator("img").all():
        picture.scroll_into_view_if_needed()  # they are loaded when they are looked at
    page.wait_for_timeout(500)
    shoot(page, f"report{end}", 900)
    shoot(page, f"report-case{end}", 560, "#examples details.example")


def explanations(folder: Path) -> None:
    model, data = sic.load(folder), sic.data.open("birds")
    for name, (split, number) in EXPLAINED.items():
        sample = data.splits[split][number]
        truth = " or ".join(data.classes[label] for label in sample.labels)
        explanation = model.explain(sample.path, truth=truth, matches=True)
        explanation.save(DOCS / name)
        print(explanation.text)
        shrink(DOCS / name, 1300)


def photos(photo: Path) -> None:
    """The answer of the shipped classifier. The picture in docs/ shows scikit-image's `chelsea` (CC0)."""
    with browser() as started, served(Path("photos")) as address:
        page = started.new_page(viewport={"width": WIDTHS[""], "height": 900}, color_scheme="light")
        page.goto(address)
        page.set_input_files("#file", photo)
        page.wait_for_selector(".panel canvas", timeout=120_000)
        page.locator('[data-mode="colours"]').click()
        page.wait_for_timeout(1000)
        page.mouse.move(0, 0)
        shoot(page, "viewer-photos", 860, "#result", drawn=900)


def main(model: Path) -> None:
    OUT.mkdir(exist_ok=True)
    explanations(model)
    with tempfile.TemporaryDirectory() as folder, browser() as started, served(model) as address:
        page_file = Path(folder) / "report.html"
        subprocess.run([sys.executable, "-m", "sic", "report", str(model), "--out", str(page_file)], check=True)
        for end, width in WIDTHS.items():
            context = started.new_context(
                viewport={"width": width, "height": 900}, color_scheme="light", has_touch=bool(end)
            )
            page = context.new_page()
            page.set_default_timeout(60_000)
            answer(page, address, end)
            matches(page, end)
            cases(page, address, end)
            clinic(page, address, end)
            report(page, page_file, end)
            context.close()


if __name__ == "__main__":
    if sys.argv[1] == "photos":
        photos(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
