"""The pages in a real browser (Chromium), as a person would use them."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from sic.calibration import Calibration, Promise
from sic.data import Preprocessing
from sic.explain.picture import signed
from sic.explain.prose import match_sentence, percent
from sic.supports import support_names
from tests.serve.conftest import SIZE, TERMS, Served, Uncased, listening, make_model

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120_000
"""Milliseconds."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        missing = "There is no Chromium on this machine: apt-get install chromium (make test does so as root)."
        if os.environ.get("CI") or os.geteuid() == 0:
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=path, args=flags)
        yield started
        started.close()


class Visit:
    """A page of the server, and everything that went wrong or elsewhere on it."""

    def __init__(self, browser: Any, served: Served | Uncased, address: str, **options: Any) -> None:
        self.served, self.address = served, address
        self.context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self._hear(message))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self._request(request.url))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _request(self, address: str) -> None:
        if urlsplit(address).scheme in ("http", "https", "ws", "wss"):
            self.hosts.add(urlsplit(address).netloc)

    def go(self, path: str) -> Any:
        self.page.goto(self.address + path)
        return self.page

    def upload(self) -> None:
        self.page.set_input_files("#file", self.served.image)
        self.page.wait_for_selector(".panel")

    def until(self, script: str) -> None:
        """Playwright's own way would need a laxer content security policy."""
        deadline = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(script):
            assert time.monotonic() < deadline, f"never: {script}"
            self.page.wait_for_timeout(30)

    def value(self, selector: str, name: str) -> float:
        return float(self.page.locator(selector).first.get_attribute(name))

    def values(self, selector: str, name: str) -> list[float]:
        return [float(one.get_attribute(name)) for one in self.page.locator(selector).all()]


@pytest.fixture
def visit(browser: Any, running: tuple[Served, str]) -> Iterator[Visit]:
    visited = Visit(browser, *running)
    yield visited
    visited.context.close()
    assert visited.problems == []
    assert visited.hosts == {urlsplit(visited.address).netloc}


def circle(x: float, y: float, radius: float) -> np.ndarray:
    rows, columns = np.mgrid[0:SIZE, 0:SIZE] + 0.5
    return (rows - y) ** 2 + (columns - x) ** 2 <= radius**2


def test_upload_switch_and_brush(visit: Visit) -> None:
    page = visit.go("/")
    visit.upload()
    model, image = visit.served.model, visit.served.image
    expected = model.explain(image)
    best = expected.classes[0]
    assert best.name in page.locator("#answer").inner_text()
    shown = {
        row.locator("[data-name]").get_attribute("data-name"): float(
            row.locator("[data-probability]").get_attribute("data-probability")
        )
        for row in page.locator("#classes li").all()
    }
    assert shown == pytest.approx(expected.probabilities, rel=1e-5)
    assert visit.values(".cases [data-evidence]", "data-evidence") == pytest.approx(
        [case.evidence for case in best.cases], rel=1e-5
    )
    assert visit.values(".steps [data-value]", "data-value")[-1] == pytest.approx(best.logit, rel=1e-4)
    drawn = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
    before = page.locator(".panel .stage canvas").first.evaluate(drawn)
    picture = np.array(before).reshape(SIZE, SIZE, 4)[..., :3] / 255
    np.testing.assert_allclose(picture, signed(best.contributions.maps, expected.image)[0], atol=0.03)

    # Another class: another map, its own cases.
    other = next(name for name in model.classes if name != best.name)
    page.locator(f'[data-name="{other}"]').click()
    page.wait_for_selector(f'.panel[data-class="{other}"]')
    wanted = model.explain(image, [other]).classes[0]
    assert visit.values(".cases [data-evidence]", "data-evidence") == pytest.approx(
        [case.evidence for case in wanted.cases], rel=1e-5
    )
    assert page.locator(".panel .stage canvas").first.evaluate(drawn) != before

    # The circle under the pointer: sums of the raw maps inside it.
    stage = page.locator(".panel .stage").first
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.6 * box["height"])
    visit.until("document.querySelector('.cases .region').dataset.value !== ''")
    placed = stage.locator("circle").first
    mask = circle(*(float(placed.get_attribute(name)) for name in ("cx", "cy", "r")))
    assert 5 < mask.sum() < SIZE * SIZE / 2
    assert visit.values(".cases .region", "data-value") == pytest.approx(
        [case.evidence_map.numpy()[mask].sum() for case in wanted.cases], abs=1e-5
    )
    # Marked with the button held: stays when the pointer leaves, and only clearing removes it.
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    page.mouse.up()
    page.mouse.move(2, 2)
    whole = visit.value(".panel p.region", "data-value")
    assert whole == pytest.approx(sum(visit.values(".cases .region", "data-value")), abs=1e-5)
    page.locator("#clear").click()
    assert page.locator(".cases .region").first.get_attribute("data-value") == ""

    # Two classes beside each other, and the map of their difference.
    page.locator(f'[data-tick="{best.name}"]').check()
    page.wait_for_selector("#difference:not([hidden])")
    assert page.locator(".panel").count() == 2
    stage = page.locator("#difference .stage")
    stage.focus()
    for _ in range(40):
        page.keyboard.press("+")
    page.keyboard.press("Enter")
    mask = circle(SIZE / 2, SIZE / 2, SIZE / 2)
    gap = (best.contributions.maps - wanted.contributions.maps).numpy()[mask].sum()  # the class that leads comes first
    assert visit.value("#difference .region", "data-value") == pytest.approx(gap, abs=1e-4)


def test_keyboard_alone_is_enough(visit: Visit) -> None:
    page = visit.go("/?test=1")
    page.wait_for_selector(".panel")
    visit.until("document.activeElement.id === 'result'")

    def tab_to(script: str) -> None:
        for _ in range(80):
            if page.evaluate(script):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"never reached: {script}")

    first = page.locator(".panel").get_attribute("data-class")
    tab_to(f"document.activeElement.dataset?.name && document.activeElement.dataset.name !== {first!r}")
    chosen = page.evaluate("document.activeElement.dataset.name")
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.panel[data-class="{chosen}"]')
    visit.until(f"document.activeElement.dataset.name === {chosen!r}")  # the focus stays where it was
    tab_to("document.activeElement.classList.contains('stage')")
    for key in ("ArrowLeft", "ArrowUp", "+", "Enter"):
        page.keyboard.press(key)
    sample = visit.served.tests.samples[1]
    wanted = visit.served.model.explain(sample.path, [chosen]).classes[0]
    mask = circle(SIZE / 2 - 1, SIZE / 2 - 1, SIZE / 8 + 1)
    # Marked after the circle grew: what the pointer's circle covers.
    assert visit.values(".cases .region", "data-value") == pytest.approx(
        [case.evidence_map.numpy()[mask].sum() for case in wanted.cases], abs=1e-5
    )
    name = f"{wanted.cases[0].name} "
    visit.until(f"document.getElementById('region-words').textContent.includes('{name}')")
    page.keyboard.press("Escape")
    assert page.locator("#clear").is_disabled()
    tab_to("document.activeElement.textContent.startsWith('Which test images')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#relying[open] ul.thumbs", state="attached")  # which may be empty
    page.keyboard.press("Escape")
    assert not page.locator("#relying").is_visible()


def test_the_start_page_introduces_the_model(visit: Visit) -> None:
    page, model = visit.go("/"), visit.served.model
    page.wait_for_selector("#examples-list img")
    assert all(name in page.locator("#knows").inner_text() for name in model.classes)
    assert f"{len(model.supports)} cases" in page.locator("#knows").inner_text()
    assert page.locator("#quality").inner_text() == "No metrics are stored with this model."
    page.locator("#examples-list button").first.click()
    page.wait_for_selector(".panel")
    assert page.locator("#truth").inner_text().startswith("Test image ")


def test_without_held_out_images_cases_are_the_examples(browser: Any, bird_splits: Path, tmp_path: Path) -> None:
    """Of a model that crops: its cases are cropped already."""
    served = make_model(tmp_path / "cropped", bird_splits, preprocessing=Preprocessing(SIZE, SIZE + 12, "crop"))
    alone = replace(served, tests=None)
    with listening(alone.app()) as address:
        visited = Visit(browser, alone, address)
        page = visited.go("/")
        page.wait_for_selector("#examples-list img")
        buttons = page.locator("#examples-list button")
        assert 3 <= buttons.count() <= 6 and "trained on these images" in page.locator("#examples-words").inner_text()
        names, wanted = (
            support_names(served.model.supports, served.model.classes),
            buttons.first.get_attribute("aria-label"),
        )
        (case,) = (case for case, name in zip(served.model.supports, names, strict=True) if f" {name}," in wanted)
        buttons.first.click()
        page.wait_for_selector(".panel")
        view = torch.from_numpy(case.image.copy()).permute(2, 0, 1) / 255
        expected = served.model.explain(view).classes[0].cases
        found = visited.values(".cases [data-evidence]", "data-evidence")
        assert found == pytest.approx([case.evidence for case in expected], rel=1e-4)
        assert f"itself a case of {served.model.classes[case.label]}" in page.locator("#truth").inner_text()
        visited.context.close()
    assert visited.problems == [] and visited.hosts == {urlsplit(address).netloc}


def test_without_the_list_of_cases_images_can_be_looked_at(browser: Any, running: tuple[Served, str]) -> None:
    served, _ = running
    alone = replace(served, tests=None)
    with listening(alone.app()) as address:
        visited = Visit(browser, alone, address)
        visited.page.set_viewport_size({"width": 390, "height": 844})
        visited.page.route(
            "**/api/v1/supports", lambda route: route.fulfill(status=500, json={"error": "Out of order."})
        )
        page = visited.go("/")
        page.wait_for_selector("#message:not([hidden])")
        assert page.locator("#message").inner_text() == "Out of order."
        assert all(name in page.locator("#knows").inner_text() for name in served.model.classes)
        page.set_input_files("#file", served.image)
        page.wait_for_selector(".panel")
        assert not page.locator("#bars").evaluate("e => e.open")  # set on a phone, at the end of the page's script
        assert not page.locator("#message").is_visible()
        visited.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_start_page_fits_a_phone(browser: Any, running: tuple[Served, str], scheme: str) -> None:
    visited = Visit(browser, *running, color_scheme=scheme, has_touch=True)
    page = visited.page
    page.set_viewport_size({"width": 390, "height": 844})
    visited.go("/")
    page.wait_for_selector("#examples-list img")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    example = page.locator("#examples-list button").first
    example.scroll_into_view_if_needed()
    box = example.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and min(box["width"], box["height"]) >= 44
    example.tap()
    page.wait_for_selector(".panel")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visited.context.close()
    assert visited.problems == []


def drawn(canvas: Any) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The red, green, blue and alpha of one pixel after the other; as text, because a list takes seconds."""
    content = "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
    text = canvas.evaluate(f"canvas => Array.from({content}, value => String.fromCharCode(value)).join('')")
    return np.frombuffer(text.encode("latin-1"), np.uint8)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_model_without_cases(browser: Any, uncased: Uncased, width: int) -> None:
    with listening(uncased.app()) as address:
        visited = Visit(browser, uncased, address, has_touch=width < 400)
        page = visited.page
        page.set_viewport_size({"width": width, "height": 844})
        visited.go("/")
        page.wait_for_selector("#quality li")
        start = page.locator("#about").inner_text()
        assert "5 classes" in start and "no cases" in start and "60\u00a0%" in start and TERMS in start
        assert not page.locator("nav").is_visible() and not page.locator("#examples").is_visible()
        visited.upload()
        expected = uncased.model.explain(uncased.image)
        found = expected.classes[0]
        assert found.name in page.locator("#answer").inner_text()
        assert page.locator("#unlike").is_visible() != expected.similar_case
        shown = visited.values("#classes [data-probability]", "data-probability")
        assert shown == pytest.approx(sorted(expected.probabilities.values(), reverse=True), rel=1e-4)
        picture = drawn(page.locator(".panel .stage canvas").first).reshape(224, 224, 4)
        wanted = signed(found.contributions.maps, expected.image)[0]
        np.testing.assert_allclose(picture[..., :3] / 255, wanted, atol=0.03)
        assert visited.values(".steps [data-value]", "data-value")[-1] == pytest.approx(found.logit, rel=1e-4)
        assert page.locator('[data-mode="matches"], .cases').locator("visible=true").count() == 0
        page.locator('[data-mode="colours"]').click()
        visited.until("document.querySelector('.panel figcaption').textContent.includes('recognised')")
        assert "similar" not in page.locator("#result").inner_text().lower()
        page.locator("#classes input").nth(1).check()
        page.wait_for_selector("#difference:not([hidden])")
        assert len(set(drawn(page.locator("#difference .stage canvas").first)[::4])) > 20  # not blank
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        visited.context.close()
        assert [words for words in visited.problems if "willReadFrequently" not in words] == []


def test_the_promise_is_told_with_the_answer(visit: Visit) -> None:
    model, samples = visit.served.model, visit.served.tests.samples
    number = next(n for n, sample in enumerate(samples) if model.predict(sample.path).similar_case)
    page = visit.go(f"/?test={number}")
    page.wait_for_selector(".panel")
    assert not page.locator("#promise").is_visible()
    score = model.explain(samples[number].path).classes[0].logit
    for limit, words in ((score - 0.1, "covers this answer"), (score + 0.1, "does not cover this answer")):
        promise = Promise(limit, 0.05, 0.95, 100, 90, 1)
        model.config.calibration = model.classifier.calibration = Calibration(promise=promise)
        page = visit.go(f"/?test={number}")
        page.wait_for_selector(".panel")
        assert words in page.locator("#promise").inner_text()


def test_bars_start_where_there_is_no_evidence(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    floor = 1 / (1 + np.exp(-visit.served.model.sic.bias))
    for row in page.locator("#classes li").all():
        left, width = row.locator(".fill").evaluate("e => [e.style.left, e.style.width].map(parseFloat)")
        assert left == pytest.approx(100 * floor, abs=0.01)
        probability = float(row.locator("[data-probability]").get_attribute("data-probability"))
        assert left + width == pytest.approx(100 * probability, abs=0.01)
        shown = row.locator("[data-probability]").inner_text()
        assert (shown == "none") == (probability - floor < 0.005) and (shown == "none" or shown.endswith("%"))


def test_a_case_is_enlarged_with_what_is_remembered(visit: Visit) -> None:
    page, supports = visit.page, visit.served.model.supports
    number = next(n for n, support in enumerate(supports) if support.label == 0)
    held: list[Any] = []
    page.route(f"**/api/v1/supports/{number}/map", lambda route: held.append(route))
    visit.go("/cases")
    page.locator("#sheet .pair").first.click()
    deadline = time.monotonic() + PATIENCE / 1000
    while not held:
        assert time.monotonic() < deadline
        page.wait_for_timeout(30)
    assert not page.locator("#large").is_visible()  # it would be blank
    held[0].continue_()
    page.wait_for_selector("#large[open]")
    shown = drawn(page.locator("#large canvas").nth(1))
    assert len(shown) == 4 * SIZE * SIZE and len(set(shown[::4])) > 20
    visit.problems[:] = [words for words in visit.problems if "willReadFrequently" not in words]  # this test reads it


def test_pictures_beside_each_other_blended_and_enlarged(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    assert page.locator(".original").is_visible()
    page.locator("#side").click()
    assert not page.locator(".original").is_visible()
    page.locator("#blend").fill("30")
    assert page.locator(".panel .stage canvas").first.evaluate("e => e.style.opacity") == "0.3"
    drawn = "e => Array.from(e.getContext('2d').getImageData(0, 0, e.width, e.height).data)"
    original = page.locator(".panel .stage .under").first.evaluate(drawn)
    for opener, shown in ((".panel .enlarge", ".panel .stage canvas"), (".cases .pair", ".cases .pair canvas")):
        page.locator(opener).first.click()
        page.wait_for_selector("#large[open]")
        assert page.locator("#large canvas").count() == 2
        pictures = [one.evaluate(drawn) for one in page.locator("#large canvas").all()]
        assert page.locator(shown).first.evaluate(drawn) in pictures
        if opener == ".panel .enlarge":
            assert pictures[1] == original
        page.keyboard.press("Escape")
        assert not page.locator("#large").is_visible()
    page.locator('[data-mode="colours"]').click()
    visit.until("document.querySelector('.panel figcaption').textContent.includes('recognised')")
    assert set(page.locator(".panel .stage canvas").first.evaluate(drawn)[3::4]) == {255}  # on white: no image below
    visit.problems[:] = [words for words in visit.problems if "willReadFrequently" not in words]  # this test reads them


def regions_of(visit: Visit, path: str = "/?test=0") -> Any:
    """A page that shows the regions that match."""
    page = visit.go(path)
    page.wait_for_selector(".panel")
    page.locator('[data-mode="matches"]').click()
    page.wait_for_selector(".panel .regions")
    visit.until("document.querySelectorAll('.cases .outlines g').length > 0")
    return page


def lit(place: Any) -> set[str]:
    """The numbers of the regions that are lit in a part of the page."""
    return {one.get_attribute("data-region") for one in place.locator(".lit").all()}


def test_regions_that_match_have_one_number(visit: Visit) -> None:
    page = regions_of(visit)
    sample = visit.served.tests.samples[0]
    shown = page.locator(".panel").first.get_attribute("data-class")
    wanted = visit.served.model.explain(sample.path, [shown], matches=True).classes[0]
    assert wanted.matches is not None
    parts = [*wanted.matches.parts, *(part for case in wanted.cases for part in case.matches.parts)]
    assert visit.values(".regions [data-share]", "data-share") == pytest.approx(
        [part.evidence for part in parts], rel=1e-4, abs=1e-6
    )
    for button, part in zip(page.locator(".regions button").all(), parts, strict=True):
        named = f"Region {part.number}" if part.number else "No match"
        amount = f"{part.evidence:+.2f}".replace("-", "−")
        share = percent(max(0.0, part.share)).replace(" %", "\u00a0%")
        assert button.get_attribute("aria-label") == f"{named}: {amount}, {share} of the evidence"
    drawn = [one.get_attribute("data-region") for one in page.locator(".panel .stage .outlines g").all()]
    assert drawn == [str(part.number) for part in wanted.matches.groups if part.image.outline]
    sentence = match_sentence(wanted)
    assert sentence is not None and sentence.replace(" %", "\u00a0%") in page.locator(".panel").inner_text()
    page.locator('[data-mode="signed"]').click()
    assert page.locator(".outlines").count() == 0


def test_cases_say_how_alike_they_are(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    wanted = visit.served.model.explain(visit.served.tests.samples[0].path).classes[0].cases
    strength = visit.value("[data-strength]", "data-strength")
    assert page.locator("[data-strength]").count() == 1 and f"{strength:.2f}" in page.locator(".panel").inner_text()
    likeness = visit.values(".cases [data-likeness]", "data-likeness")
    assert likeness == pytest.approx([case.likeness for case in wanted], rel=1e-4)
    evidence = visit.values(".cases [data-evidence]", "data-evidence")
    assert [strength * one for one in likeness] == pytest.approx(evidence, rel=1e-4)


def test_a_region_that_is_pointed_at_lights_its_partners(visit: Visit) -> None:
    page = regions_of(visit)
    panel, told = page.locator(".panel"), page.locator(".told")
    page.mouse.move(2, 2)  # a region may have come to lie below the mouse
    hint = told.inner_text()
    number = panel.locator(".stage .outlines g").first.get_attribute("data-region")
    partners = panel.locator(f'.cases [data-region="{number}"]')
    for place in (".stage .outlines g", ".cases .outlines g", ".regions button"):
        pointed = panel.locator(f'{place}[data-region="{number}"]').first
        (pointed.locator("circle") if place.endswith(" g") else pointed).hover()
        assert lit(panel) == {number}
        assert panel.locator(".stage .lit").count() == 1 and partners.count() >= 2
        assert all("lit" in one.get_attribute("class").split() for one in partners.all())
        others = panel.locator(f'[data-region]:not([data-region="{number}"])')
        assert all("dim" in one.get_attribute("class").split() for one in others.all())
        assert told.inner_text().startswith(f"Region {number}: ") and "of the evidence" in told.inner_text()
        page.mouse.move(2, 2)
        assert not lit(page) and told.inner_text() == hint
    assert panel.locator(".pointer:not(.visually-hidden)").count() == 0  # the circle would be in the way


def test_a_chosen_region_stays_lit(visit: Visit) -> None:
    page = regions_of(visit)
    panel = page.locator(".panel")
    region = panel.locator(".stage .outlines g").first
    number = region.get_attribute("data-region")

    def chosen() -> set[str]:
        return {one.get_attribute("data-region") for one in panel.locator('[aria-pressed="true"]').all()}

    for clear in (
        lambda: region.locator("circle").click(),
        lambda: page.keyboard.press("Escape"),
        panel.locator("h3").first.click,
    ):
        region.locator("circle").click()
        page.mouse.move(2, 2)
        assert lit(panel) == chosen() == {number}
        assert page.locator("#clear").is_disabled()  # nothing was marked by the click
        clear()
        page.mouse.move(2, 2)
        assert not lit(page) and not chosen()
    button = panel.locator(f'.cases button[data-region="{number}"]').first  # with the keyboard as with a pointer
    button.focus()
    assert lit(panel) == {number} and not chosen()
    for expected in ({number}, set()):
        page.keyboard.press("Enter")
        assert chosen() == lit(panel) == expected
    region.locator("circle").click()
    panel.locator(".enlarge").click()
    page.wait_for_selector("#large[open]")
    page.mouse.move(2, 2)
    large = page.locator("#large-body")
    assert large.locator("canvas").count() == 1 + panel.locator(".cases .outlines").count()
    assert lit(large) == {number} and large.locator("g.lit").count() > 1
    other = large.locator(f'.regions button:not([data-region="{number}"])').first
    other.hover()
    assert lit(large) == {other.get_attribute("data-region")}
    page.keyboard.press("Escape")
    page.mouse.move(2, 2)
    assert not page.locator("#large").is_visible() and lit(panel) == {number}
    page.locator('[data-mode="signed"]').click()
    page.locator('[data-mode="matches"]').click()
    assert not lit(page)


def test_a_tap_chooses_a_region(browser: Any, running: tuple[Served, str]) -> None:
    visited = Visit(browser, *running, has_touch=True)
    visited.page.set_viewport_size({"width": 390, "height": 844})
    page = regions_of(visited)
    panel, region = page.locator(".panel"), page.locator(".panel .stage .outlines g circle").first
    number = page.locator(".panel .stage .outlines g").first.get_attribute("data-region")
    for expected in ({number}, set(), {number}):
        region.tap()
        assert lit(panel) == expected
    panel.locator(".cases .regions button").first.tap()
    panel.locator("h3").first.tap()
    assert not lit(page)
    visited.context.close()
    assert visited.problems == []


def test_two_classes_do_not_light_each_other(visit: Visit) -> None:
    page = regions_of(visit)
    page.locator("#classes input:not(:checked)").first.check()
    visit.until("document.querySelectorAll('.panel .stage .outlines').length === 2")
    first, second = page.locator(".panel").nth(0), page.locator(".panel").nth(1)
    number = first.locator(".stage .outlines g").first.get_attribute("data-region")
    first.locator(f'.regions button[data-region="{number}"]').first.hover()
    assert lit(first) == {number} and not lit(second) and second.locator(".dim").count() == 0
    assert not lit(page.locator("#difference"))
    second.locator(".stage .outlines g circle").first.click()
    assert lit(second) and not lit(first)


def test_a_class_is_compared_with_another_one(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    model, path = visit.served.model, visit.served.tests.samples[0].path
    name = page.locator(".panel").get_attribute("data-class")
    offered = page.locator("[data-versus] option").all()
    assert {one.get_attribute("value") for one in offered} == {"", *model.classes} - {name}
    other = next(one for one in model.classes if one != name)
    page.select_option("[data-versus]", other)
    page.wait_for_selector("#difference .differences")
    visit.until(f"document.activeElement.dataset.versus === {name!r}")  # the focus stays where it was
    scores = {one.name: one.logit for one in model.explain(path, [name, other]).classes}
    best, worse = sorted(scores, key=lambda one: -scores[one])
    assert f"Why {best} and not {worse}?" in page.locator("#difference").inner_text()
    expected = model.explain(path, [best], versus=worse).contrast
    *parts, total = visit.values("#difference [data-difference]", "data-difference")
    assert parts == pytest.approx([part.value for part in expected], rel=1e-3, abs=1e-4) and len(parts) > 1
    assert sum(parts) == pytest.approx(total, abs=1e-4) and total == pytest.approx(
        scores[best] - scores[worse], abs=1e-4
    )
    assert page.locator("#difference .stage canvas").first.is_visible()  # the map of the difference, as before
    row = page.locator("#difference .differences button").first
    row.hover()
    assert lit(page.locator("#difference")) == {row.get_attribute("data-region")}
    with page.expect_download() as waiting:
        page.locator("#share").click()
    assert "<tr data-region=" in waiting.value.path().read_text()
    page.select_option(f'[data-versus="{name}"]', "")
    visit.until("document.querySelectorAll('.panel').length === 1")
    assert not page.locator("#difference").is_visible()


class Held:
    """Requests that wait until they are let go."""

    def __init__(self, visit: Visit, which: Callable[[str], bool]) -> None:
        self.visit, self.holding = visit, True
        self.routes: list[Any] = []
        visit.page.route(which, lambda route: self.routes.append(route) if self.holding else route.continue_())

    def wait_for(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE / 1000
        while len(self.routes) < number:
            assert time.monotonic() < deadline
            self.visit.page.wait_for_timeout(30)

    def let_go(self) -> None:
        """Of these and of later ones; what follows from them has time to happen."""
        self.holding = False
        for route in self.routes:
            route.continue_()
        self.visit.page.wait_for_timeout(500)


def for_matches(address: str) -> bool:
    return "matches=true" in urlsplit(address).query


def compare(visit: Visit, name: str, other: str) -> None:
    visit.page.select_option(f'[data-versus="{name}"]', other)
    visit.page.wait_for_selector(f'.panel[data-class="{other}"]')


def test_the_circle_stays_when_the_matches_arrive(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    held = Held(visit, for_matches)
    page.select_option("[data-versus]", index=1)
    held.wait_for(1)
    page.locator(".panel .stage").first.focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)

    def circled() -> list[Any]:
        pointers = page.locator(".pointer:not(.visually-hidden) circle").all()
        places = [tuple(one.get_attribute(name) for name in ("cx", "cy", "r")) for one in pointers]
        return [places, [one.get_attribute("data-value") for one in page.locator("p.region").all()]]

    before = circled()
    assert len(set(before[0])) == 1 and all(before[1])
    held.routes[0].continue_()
    page.wait_for_selector("#difference .differences")
    assert circled() == before
    page.keyboard.press("ArrowLeft")  # from there
    moved, there = ({float(place[0]) for place in where} for where in (circled()[0], before[0]))
    assert moved == {at - 1 for at in there}


def test_a_chosen_region_stays_when_the_same_is_drawn_again(visit: Visit) -> None:
    page = regions_of(visit)
    panel, told = page.locator(".panel"), page.locator(".told")
    panel.locator(".cases .regions button").first.click()
    page.mouse.move(2, 2)
    number, words = lit(panel), told.inner_text()
    assert len(number) == 1
    page.locator('[data-mode="matches"]').focus()
    old = panel.locator(".stage .outlines").element_handle()
    page.keyboard.press("Enter")
    visit.until("document.querySelectorAll('.cases .outlines g').length > 0")
    assert not old.evaluate("e => e.isConnected")
    assert lit(panel) == number and told.inner_text() == words
    assert panel.locator('.cases .regions [aria-pressed="true"]').count() > 0


def test_matches_are_asked_for_once(visit: Visit) -> None:
    """Also if others are asked for meanwhile; whichever arrive are shown with their classes."""
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    name = page.locator(".panel").get_attribute("data-class")
    one, other = [each for each in visit.served.model.classes if each != name][:2]
    held = Held(visit, for_matches)
    compare(visit, name, one)
    held.wait_for(1)
    compare(visit, name, other)
    held.wait_for(2)
    compare(visit, name, one)
    held.routes[0].continue_()
    page.wait_for_selector("#difference .differences")
    compare(visit, name, other)
    assert page.locator("#difference .differences").count() == 0
    held.routes[1].continue_()
    page.wait_for_selector("#difference .differences")
    assert {name, other} == set(page.locator("#difference .sum .soft").inner_text().split(" less "))
    assert len(held.routes) == 2


def test_matches_that_arrive_while_pictures_load_are_not_asked_for_again(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    held = Held(visit, for_matches)
    pictures = Held(visit, lambda address: urlsplit(address).path.endswith("/picture"))
    page.select_option("[data-versus]", index=1)
    held.wait_for(1)
    page.locator('[data-mode="colours"]').click()
    pictures.wait_for(page.locator(".cases .pair").count())
    held.routes[0].continue_()
    page.wait_for_selector("#difference .differences")
    pictures.let_go()
    assert len(held.routes) == 1


def test_matches_are_those_of_the_classes_shown(visit: Visit) -> None:
    """Also if other classes are chosen while the pictures of the cases are on their way."""
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    name, classes = page.locator(".panel").get_attribute("data-class"), visit.served.model.classes
    one, other = [each for each in classes if each != name][:2]
    number = next(n for n, each in enumerate(visit.served.model.supports) if classes[each.label] == one)
    maps = Held(visit, lambda address: urlsplit(address).path == f"/api/v1/supports/{number}/map")
    compare(visit, name, one)
    maps.wait_for(1)
    compare(visit, name, other)
    page.wait_for_selector("#difference .differences")
    maps.let_go()
    compare(visit, name, one)
    page.wait_for_selector("#difference .differences")
    assert {name, one} == set(page.locator("#difference .sum .soft").inner_text().split(" less "))


def test_a_comparison_that_fails_says_why(visit: Visit) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    page.route("**/api/v1/explain?*versus=*", lambda route: route.fulfill(status=422, json={"error": "Not today."}))
    page.select_option("[data-versus]", index=1)
    page.wait_for_selector("#difference .error")
    assert page.locator("#difference .error").inner_text() == "Not today."
    assert page.locator("#difference .stage").is_visible()
    visit.problems.clear()  # the browser itself notes that a request was refused


def test_validation_images_are_never_called_test_images(visit: Visit) -> None:
    visit.served.tests.name = "validation images of birds"
    for path, ready in (("/?test=0", ".panel"), ("/cases", "#plane circle")):
        page = visit.go(path)
        page.wait_for_selector(ready)
        words = page.locator("body").inner_text()
        assert "alidation image" in words and "est image" not in words.replace("latest", "")
        page.locator(".relying").first.click()
        page.wait_for_selector("#relying[open]")
        assert "Which validation images rely on" in page.locator("#relying-title").inner_text()


def test_every_control_has_a_name(visit: Visit) -> None:
    for path, ready in (("/?test=0", ".panel"), ("/cases", "#sheet button"), ("/clinic", "#class option")):
        page = visit.go(path)
        page.wait_for_selector(ready, state="attached")
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, input, select, a, [tabindex="0"], canvas[role], img')]
            .filter(e => e.tagName === 'IMG' ? !e.hasAttribute('alt')
              : !(e.textContent.trim() || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
                  || e.labels?.length))
            .map(e => e.outerHTML)"""
        )
        assert nameless == []
        assert page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(browser: Any, running: tuple[Served, str], scheme: str) -> None:
    visited = Visit(browser, *running, color_scheme=scheme, has_touch=True)
    page = visited.page
    page.set_viewport_size({"width": 390, "height": 844})
    for path, ready in (("/?test=0", ".panel"), ("/cases", "#plane circle"), ("/clinic", "#class option")):
        visited.go(path)
        page.wait_for_selector(ready, state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) > 382) == (scheme == "light")
    visited.context.close()
    assert visited.problems == []


def test_browsing_the_test_images(visit: Visit) -> None:
    page = visit.go("/")
    page.locator("#tests summary").click()
    page.select_option("#tests-show", "wrong")
    visit.until("document.getElementById('tests-list').textContent.includes('✗')")
    first = page.locator("#tests-list button").first
    name = first.get_attribute("title")
    first.click()
    page.wait_for_selector(".panel")
    sample = next(sample for sample in visit.served.tests.samples if sample.id == name)
    assert visit.served.model.classes[sample.labels[0]] in page.locator("#truth").inner_text()
    assert page.locator("#unlike").is_visible() != visit.served.model.predict(sample.path).similar_case


def test_no_similar_case_is_said(visit: Visit) -> None:
    model = visit.served.model
    number = next(n for n, s in enumerate(visit.served.tests.samples) if not model.predict(s.path).similar_case)
    page = visit.go(f"/?test={number}")
    page.wait_for_selector(".panel")
    assert page.locator("#answer").inner_text() == "Answer: no similar case"
    assert "do not treat it as an answer" in page.locator("#unlike").inner_text()


def test_a_refusal_is_shown(visit: Visit) -> None:
    page = visit.go("/")
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"<svg></svg>"})
    page.wait_for_selector("#message:not([hidden])")
    assert "SVG" in page.locator("#message").inner_text()
    visit.problems.clear()  # the browser itself notes that a request was refused
    visit.upload()
    assert not page.locator("#message").is_visible()


def test_paste_and_drop(visit: Visit) -> None:
    page = visit.go("/")
    data = list(visit.served.image.read_bytes())
    for event in ("paste", "drop"):
        page.evaluate(
            """([kind, data]) => {
              const carried = new DataTransfer();
              carried.items.add(new File([new Uint8Array(data)], `${kind}.png`, {type: 'image/png'}));
              const event = new Event(kind, {bubbles: true, cancelable: true});
              Object.assign(event, {clipboardData: carried, dataTransfer: carried});
              document.dispatchEvent(event);
            }""",
            [event, data],
        )
        visit.until("document.getElementById('text').textContent.length > 0")
        page.evaluate("document.getElementById('text').textContent = ''")


def test_a_saved_case_opens_without_the_server(visit: Visit, tmp_path: Any) -> None:
    page = visit.go("/")
    visit.upload()
    with page.expect_download() as waiting:
        page.locator("#share").click()
    file = tmp_path / "case.html"
    waiting.value.save_as(file)
    assert waiting.value.suggested_filename.endswith("-explained.html")
    page.goto(file.as_uri())
    for picture in page.locator("img").all():
        picture.scroll_into_view_if_needed()  # they are loaded when they are looked at
    visit.until("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert page.locator("h1").inner_text() == visit.served.image.name


def test_regions_of_a_saved_case_light_each_other_without_scripts(visit: Visit, tmp_path: Path) -> None:
    page = visit.go("/?test=0")
    page.wait_for_selector(".panel")
    with page.expect_download() as waiting:
        page.locator("#share").click()
    waiting.value.save_as(tmp_path / "case.html")
    plain = visit.context.browser.new_context(java_script_enabled=False).new_page()
    plain.goto((tmp_path / "case.html").as_uri())
    opacity = "e => getComputedStyle(e).opacity"
    number = plain.locator(".explained g[data-region]").first.get_attribute("data-region")
    own, others = (
        plain.locator(f"{one}") for one in (f'[data-region="{number}"]', f'[data-region]:not([data-region="{number}"])')
    )
    assert own.count() > 3 and others.count() > 1

    def shown() -> tuple[set[str], set[str]]:
        return tuple({one.evaluate(opacity) for one in some.all()} for some in (own, others))  # type: ignore[return-value]

    assert shown() == ({"1"}, {"1"})
    for pointed in (
        plain.locator(f'.explained g[data-region="{number}"] circle'),
        plain.locator(f'.support g[data-region="{number}"] circle'),
    ):
        pointed.first.hover()
        assert shown() == ({"1"}, {"0.4"})
    plain.mouse.move(2, 2)
    assert shown() == ({"1"}, {"1"})
    chip = plain.locator(f'.support .parts [data-region="{number}"]').first
    chip.focus()
    assert shown() == ({"1"}, {"0.4"})
    assert chip.get_attribute("aria-label").startswith(
        f"Region {number}: "
    ) and "of the evidence" in chip.get_attribute("aria-label")
    plain.context.close()


def refuse(route: Any) -> None:
    route.fulfill(status=503, headers={"Retry-After": "0.1"}, json={"error": "Busy; try again in a moment."})


def test_only_edits_are_not_tried_again_at_a_busy_server(visit: Visit) -> None:
    asked: dict[str, int] = {}
    busy = {"open": 9, "preview": 1, "apply": 9, "undo": 0}

    def answer(route: Any) -> None:
        what = urlsplit(route.request.url).path.rsplit("/")[-1]
        asked[what] = asked.get(what, 0) + 1
        if asked[what] <= busy[what]:
            refuse(route)
        else:
            route.continue_()

    page = visit.page
    page.route(
        "**/api/v1/clinic/*", lambda route: answer(route) if route.request.method == "POST" else route.continue_()
    )
    visit.go("/clinic")
    page.locator("#open").click()
    page.wait_for_selector("#message:not([hidden])")
    assert asked["open"] > 1 and "Busy" in page.locator("#message").inner_text()
    page.locator("#open").click()  # the button works again
    page.wait_for_selector("#supports li")
    assert not page.locator("#message").is_visible()
    number = page.locator("#supports li").count()
    page.get_by_role("button", name="Take out").first.click()
    page.wait_for_selector("#do")
    assert asked["preview"] == 2
    page.locator("#do").click()
    page.wait_for_selector("#message:not([hidden])")
    assert asked["apply"] == 1 and page.locator("#supports li").count() == number
    visit.problems.clear()  # the browser itself notes that requests were refused


def test_drop_a_case_and_take_it_back(visit: Visit) -> None:
    page = visit.go("/clinic")
    page.locator("#open").click()
    page.wait_for_selector("#supports li")
    start = visit.value("#figure", "data-value")
    names = page.locator("#class option").all_inner_texts()
    for name in names:  # until one is found that matters
        page.select_option("#class", name)
        for row in range(page.locator("#supports li").count()):
            page.locator("#supports li").nth(row).get_by_role("button", name="Take out").click()
            page.wait_for_selector("#do")
            if visit.value("[data-after]", "data-after") != start:
                break
            page.locator("#leave").click()
        else:
            continue
        break
    promised = visit.value("[data-after]", "data-after")
    assert promised != start
    page.locator("#do").click()
    visit.until("document.getElementById('outcome-title').textContent === 'Done'")
    assert visit.value("#figure", "data-value") == pytest.approx(promised)
    assert page.locator("#supports li").count() == 2
    page.locator("#undo").click()
    visit.until("document.getElementById('outcome-title').textContent.includes('taken back')")
    assert visit.value("#figure", "data-value") == start
    assert page.locator("#supports li").count() == 3
    assert "taken back" in page.locator("#history").inner_text()
    assert page.locator("#undo").is_disabled()
