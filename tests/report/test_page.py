"""The page: self-contained, readable by machines and people, and its numbers are the model's."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sic.clinic import Finding
from sic.errors import SicError
from sic.evaluate.headline import without_copies
from sic.evaluate.metrics import KINDS, METRICS
from sic.report import Page, gather, render
from sic.report.page import read_measurements
from tests.report.conftest import ODD, Element, Saved, make_page, parse, save_model

SECTIONS = ["read", "quality", "examples", "confusions", "supports", "classes", "card"]


@pytest.fixture(scope="module")
def page(single: Saved) -> Page:
    return make_page(single.folder, single.data, examples=3)


@pytest.fixture(scope="module")
def html(page: Page) -> str:
    return render(page)


@pytest.fixture(scope="module")
def tree(html: str) -> Element:
    return parse(html)


def number(text: str) -> float:
    """The first number that a person reads there."""
    found = re.search(r"[−+-]?\d+(\.\d+)?", text)
    assert found, text
    return float(found[0].replace("−", "-"))


def check_self_contained(html: str, tree: Element) -> None:
    for element in tree.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on"), f"{element.tag} has an event handler"
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                assert value.startswith(("data:image/", "#")), value[:60]
        assert element.tag not in ("link", "iframe", "object", "embed", "base")
    assert "@import" not in html
    assert all(found.startswith("data:image/") for found in re.findall(r"url\(['\"]?([^)]{0,40})", html))
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", html)


def check_accessible(tree: Element) -> None:
    for picture in tree.all("img"):
        assert "alt" in picture.attributes
    for table in tree.all("table"):
        assert table.all("caption"), table.text[:80]
        assert all(head.attributes.get("scope") in ("row", "col") for head in table.all("th"))
        assert table.all("th")
    ids = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for link in tree.all("a"):
        assert link.attributes["href"][1:] in ids
        assert link.text or link.attributes.get("aria-label")
    levels = [int(element.tag[1]) for element in tree.all() if re.fullmatch("h[1-6]", element.tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert tree.one("html").attributes["lang"] == "en"
    assert tree.all("label")[0].attributes["for"] in ids


def test_self_contained_and_accessible(html: str, tree: Element) -> None:
    check_self_contained(html, tree)
    check_accessible(tree)


def test_sections_and_their_links(tree: Element) -> None:
    assert [section.attributes["id"] for section in tree.one("main").all("section")] == SECTIONS
    contents = tree.one("nav", **{"aria-label": "Contents"})
    assert [link.attributes["href"] for link in contents.all("a")] == [
        *("#read", "#quality", "#right", "#wrong", "#unsure", "#confusions", "#supports"),
        *("#similarity", "#silhouette", "#projection", "#card"),
    ]


def test_names_are_text_not_html(html: str, tree: Element) -> None:
    assert "<b>" not in html
    assert ODD in [heading.text for heading in tree.all("h3")]


def test_figures_are_those_of_the_predictions(page: Page, tree: Element) -> None:
    assert page.predictions is not None
    rows = {row.one("th").text: row.all("td") for row in tree.all("table", class_="figures")[0].one("tbody").all("tr")}
    assert rows["accuracy"][0].text == f"{100 * page.predictions.quality['accuracy']:.1f} %"
    assert rows["similar case found"][0].text == f"{100 * page.predictions.quality['similar_case']:.1f} %"
    best = page.predictions.logits.argmax(dim=1).tolist()
    rows = {row.one("th").text: row.all("td") for row in tree.one("table", class_="rows").one("tbody").all("tr")}
    for label, name in enumerate(page.overview.classes):
        own = [row for row, sample in enumerate(page.predictions.samples) if sample.labels == (label,)]
        right = sum(best[row] == label for row in own)
        assert [number(cell.text) for cell in rows[name][:2]] == [len(own), right]
    recorded = tree.one("table", class_="recorded")
    assert "8 validation images a note" in recorded.text and "50.0 %" in recorded.text
    assert "Recorded when the model was trained" in recorded.text
    edited = replace(page, config=page.config | {"edits": [{"action": "drop", "undone": None}]})
    recorded = parse(render(edited)).one("table", class_="recorded")
    assert "Recorded when its cases were last edited" in recorded.text
    unnumbered = replace(page, config=page.config | {"figures": {"test": {"accuracy": 0.5}}})
    assert parse(render(unnumbered)).one("table", class_="recorded").all("th", scope="row")[0].text == "test images"


def test_figures_without_copies_are_in_the_header(page: Page) -> None:
    assert page.predictions is not None
    copied = replace(page.predictions, copies=frozenset(sample.id for sample in page.predictions.samples[:2]))
    clean = copied.without_copies
    assert clean is not None
    text = parse(render(replace(page, predictions=copied))).one("header").text
    assert without_copies(clean.quality)[0] in text and f"of {len(clean)} images" in text


def test_supports_are_those_of_the_overview(single: Saved, tree: Element) -> None:
    overview = single.model.overview()
    for support in overview.supports:
        card = tree.one("article", id=f"support-{support.index}")
        assert support.source in card.one("h4").text
        assert len(card.all("img")) == 3
        facts = card.one("p", class_="facts").text
        assert number(facts) == pytest.approx(support.norm, abs=0.005)
        assert f"gets at most {support.norm / overview.temperature:+.2f} points from it, a stronger one more" in facts


def test_similarities_and_silhouettes_are_those_of_the_overview(single: Saved, page: Page, tree: Element) -> None:
    assert page.predictions is not None
    overview = single.model.overview(page.predictions.samples)
    assert overview.image_similarity is not None and overview.image_silhouette is not None
    tables = tree.all("table", class_="matrix")
    for table, matrix in zip(tables, (overview.image_similarity, overview.support_similarity), strict=True):
        for row, line in enumerate(table.one("tbody").all("tr")):
            shown = [number(cell.text) for cell in line.all("td")]
            assert shown == pytest.approx((matrix[row] / overview.temperature).tolist(), abs=0.006)
    scores = tree.one("table", class_="silhouette").one("tbody").all("tr")
    shown = [number(line.one("td", class_="number").text) for line in scores]
    assert shown == pytest.approx(overview.image_silhouette.per_class, abs=0.006)
    assert f"{overview.image_silhouette.overall:+.2f}".replace("-", "−") in tree.one("section", id="classes").text


def test_cases_add_up_and_are_those_of_the_model(single: Saved, page: Page, tree: Element) -> None:
    assert page.predictions is not None
    paths = {sample.id: sample for sample in page.predictions.samples}
    cases = [case for group in page.groups for case in group.examples]
    assert len(cases) >= 6
    elements = tree.all("details", class_="example")
    for case, element in zip(cases, elements, strict=True):
        assert case.id in element.all("summary")[0].text
        prediction = single.model.predict(paths[case.id].path)
        by_source = {entry.source: entry.value for entry in prediction.evidence}
        for explained, table in zip(case.classes, element.all("table", class_="sum"), strict=True):
            points = [number(cell.text) for cell in table.all("td", class_="number")]
            assert points[0] == pytest.approx(page.overview.bias, abs=0.006)
            assert sum(points[:-1]) == pytest.approx(points[-1], abs=0.006 * len(points))
            sources = [small.text for small in table.one("tbody").all("small")][1:]
            assert points[1:-1] == pytest.approx([by_source[source] for source in sources], abs=0.006)
            chance = 1 / (1 + torch.tensor(-explained.logit).exp().item())
            assert prediction.probabilities[explained.name] == pytest.approx(chance, rel=1e-4)
            assert explained.pixels + explained.elsewhere + page.overview.bias == pytest.approx(points[-1], abs=0.01)


def region_parts(element: Element) -> dict[int, float]:
    """Points by the number of the region, as a person reads them; 0 is the rest."""
    found = {}
    for part in element.all("span", class_="parts")[0].all("span"):
        name = part.one("b").text
        found[0 if name == "–" else int(name)] = number(part.text.removeprefix(name))
    return found


def test_matches_are_those_of_the_model_and_add_up_to_evidence_and_score(
    single: Saved, page: Page, tree: Element
) -> None:
    assert page.predictions is not None
    paths = {sample.id: sample.path for sample in page.predictions.samples}
    examples = [example for group in page.groups for example in group.examples]
    matched = 0
    for example, element in zip(examples, tree.all("details", class_="example"), strict=True):
        names = [explained.name for explained in example.classes]
        alone = single.model.explain(paths[example.id], names, matches=True)
        for expected, block in zip(alone.classes, element.all("div", class_="explained"), strict=True):
            photo, *cards = [figure for figure in block.all("figure") if figure.all("svg", class_="outlines")]
            score = number(block.one("tfoot").one("td", class_="number").text)
            own = region_parts(block.all("p", class_="facts")[0])
            assert sum(own.values()) + page.overview.bias == pytest.approx(score, abs=0.006 * (len(own) + 2))
            assert len(cards) == len(expected.cases)
            total: dict[int, float] = {}
            for card, case in zip(cards, expected.cases, strict=True):
                assert case.matches is not None
                parts = region_parts(card)
                assert list(parts) == [part.number for part in case.matches.parts]
                assert list(parts.values()) == pytest.approx([p.evidence for p in case.matches.parts], abs=0.006)
                assert sum(parts.values()) == pytest.approx(case.evidence, abs=0.006 * (len(parts) + 1))
                drawn = {int(text.text) for text in card.one("svg").all("text")}
                assert drawn <= {text for text in parts if text}
                assert drawn <= {int(text.text) for text in photo.one("svg").all("text")}, "no partner in the image"
                total = {n: total.get(n, 0.0) + parts.get(n, 0.0) for n in {*total, *parts}}
                matched += len(parts) - 1
            assert total == pytest.approx(own, abs=0.006 * (len(cards) + 1))
            if len(own) > 1 and sum(own.values()) > 0.2:
                assert "The strongest match is region" in block.text
    assert matched > 10


def test_the_model_card_is_on_the_page(single: Saved, tree: Element) -> None:
    card = tree.one("section", id="card")
    for words in ("resnet_tiny, 40 px", "birds, 48 images", "random weights", ODD, "40 × 40 pixels", "T = 0.02"):
        assert words in card.text
    assert [strong.text for strong in card.all("strong")][:2] == ["Classes", "Trained on"]
    assert "**" not in card.text and "sic.load" not in card.text


def test_confusions_show_both_classes(page: Page, tree: Element) -> None:
    assert page.confusions
    for pair, element in zip(page.confusions, tree.all("details", class_="confusion"), strict=True):
        truth, said = (page.overview.classes[label] for label in (pair.truth, pair.said))
        assert f"{truth} predicted as {said} : {pair.number} of {pair.of} images" in element.one("summary").text
        shown = [link.attributes["href"] for link in element.all("a")]
        assert shown == [f"#support-{s.index}" for label in (pair.truth, pair.said) for s in page.of_class(label)]
        assert element.one("div", class_="examples").all("img")


def test_the_plane_has_a_mark_for_every_latent(page: Page, tree: Element) -> None:
    assert page.predictions is not None
    plane = tree.one("div", id="plane")
    assert len(plane.all("circle")) == len(page.predictions.samples)
    assert [link.attributes["href"] for link in plane.all("a")] == [f"#support-{s.index}" for s in page.supports]
    cells = [int(mark.attributes["data-t"]) for mark in plane.all() if "data-t" in mark.attributes]
    assert sorted(cells) == list(range(len(page.predictions.samples) + len(page.supports)))


def test_without_pictures_the_page_says_so(single: Saved, tmp_path: Path) -> None:
    save_model(tmp_path, single.data, 40, 0.02, images=False)
    tree = parse(render(make_page(tmp_path, single.data, examples=1)))
    section = tree.one("section", id="supports")
    assert not section.all("img")
    assert "saved without images" in section.text
    assert number(section.all("p", class_="facts")[0].text) > 0
    assert not tree.all("svg", class_="outlines") and "match" not in tree.one("section", id="examples").text
    check_accessible(tree)


def test_without_images_there_are_no_test_cases(single: Saved) -> None:
    html = render(gather(single.model, single.folder, None, examples=3))
    tree = parse(html)
    check_self_contained(html, tree)
    check_accessible(tree)
    assert [section.attributes["id"] for section in tree.all("section")] == [
        "read",
        "quality",
        "supports",
        "classes",
        "card",
    ]
    assert "No test images were available" in tree.one("section", id="quality").text


def test_multi_label(multi: Saved) -> None:
    page = make_page(multi.folder, multi.data, examples=3)
    html = render(page)
    tree = parse(html)
    check_self_contained(html, tree)
    check_accessible(tree)
    assert page.predictions is not None
    rows = {row.one("th").text: row.all("td") for row in tree.one("table", class_="rows").one("tbody").all("tr")}
    for name, precision in page.predictions.quality["average_precision"].items():
        assert float(rows[name][2].text) == pytest.approx(precision, abs=6e-4)
    assert "mean average precision" in tree.one("section", id="quality").text
    truth = {sample.id: {multi.data.classes[label] for label in sample.labels} for sample in page.predictions.samples}
    for group in page.groups:
        for case in group.examples:
            asked = case.classes[0]
            assert set(case.truth) == truth[case.id]
            assert case.right == ((asked.logit >= 0) == (asked.name in truth[case.id]))
        assert all(case.right for case in group.examples) or group.anchor != "right"
        assert not any(case.right for case in group.examples) or group.anchor != "wrong"


def test_findings_are_shown(page: Page, tree: Element) -> None:
    assert not tree.all("section", id="findings")
    findings = [
        Finding("Two alike", "serious", "Case <A> is case B.", "sic supports x", [0, 4], ["a.png"], {"share": 0.5}),
        Finding("Fine", "notice", "Nothing.", "sic explain y"),
    ]
    shown = parse(render(replace(page, findings=findings))).one("section", id="findings")
    for words in ("Two alike", "serious", "Case <A> is case B.", "a.png", "share 0.5", "sic supports x"):
        assert words in shown.all("article")[0].text
    assert [link.attributes["href"] for link in shown.all("a")] == ["#support-0", "#support-4"]
    assert len(shown.all("img")) == 4
    assert len(shown.all("article")) == 2
    assert "found no problems" in parse(render(replace(page, findings=[]))).one("section", id="findings").text


def test_a_damaged_evaluation_is_named(tmp_path: Path) -> None:
    for content in ("{", '{"funnybirds": {}}', '{"images": 1, "data": "x", "localisation": {"grid_2x2": {}}}'):
        (tmp_path / "evaluation.json").write_text(content)
        with pytest.raises(SicError, match="evaluation.json is damaged"):
            read_measurements(tmp_path)


LOCALISATION = {
    "grid_2x2": {"share": 0.625, "spread": 0.1, "chance": 0.25, "grids": 8, "pixels": 80},
    "boxes": {"all": {"maps": 40, "energy": 0.5, "hit": 0.75, "overlap": None, "area": 0.125}},
}


def test_measurements_are_shown_where_there_are_any(page: Page, tree: Element, tmp_path: Path) -> None:
    assert not tree.all("section", id="measurements")
    kinds = {"contributions": {"Com": 0.91, "Cor": 0.72, "Con": 0.95}, "alpha": {"Com": 0.5, "Cor": 0.25, "Con": None}}
    content = {
        "images": 40,
        "data": "test images of x",
        "funnybirds": {"images": 40, "A": 0.99, "BI": 0.86, **kinds, "baselines": {"part mask": {"Com": 0.9}}},
        "localisation": LOCALISATION,
    }
    (tmp_path / "evaluation.json").write_text(json.dumps(content))
    html = render(replace(page, measurements=read_measurements(tmp_path)))
    section = parse(html).one("section", id="measurements")
    check_self_contained(html, parse(html))
    assert "on 40 test images of x on" in section.text
    radar, places = section.all("table")
    rows = {row.one("th").text: [cell.text for cell in row.all("td")] for row in radar.one("tbody").all("tr")}
    heads = [cell.text for cell in radar.one("thead").all("th")]
    assert heads == ["metric", *KINDS.values(), "no model: part mask", "meaning"]
    assert rows["Accuracy"][:3] == ["0.99", "0.99", "–"]
    assert rows["Background independence"][:3] == ["0.86", "0.86", "–"]
    assert rows["Completeness"][:3] == ["0.91", "0.50", "0.90"]
    assert rows["Contrastivity"][:3] == ["0.95", "–", "–"]
    shown = [[cell.text for cell in row.children if isinstance(cell, Element)] for row in places.one("tbody").all("tr")]
    assert shown == [
        ["Grid pointing 2×2", "62.5 %", "25.0 %", "8 grids", METRICS["grid_2x2"].meaning],
        ["Box pointing: energy", "50.0 %", "12.5 %", "40 maps", METRICS["box_energy"].meaning],
        ["Box pointing: hits", "75.0 %", "12.5 %", "40 maps", METRICS["box_hit"].meaning],
        ["Box pointing: overlap", "–", "12.5 %", "40 maps", METRICS["box_overlap"].meaning],
    ]
    drawn = section.one("img").attributes["src"]
    assert b"<svg" in base64.b64decode(drawn.removeprefix("data:image/svg+xml;base64,"))


def test_a_browser_may_run_the_pages_own_script_and_load_nothing(html: str) -> None:
    tags = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert len(tags) == 1 and len(scripts) == 1 and html.count("<script") == 1
    rules = dict(rule.strip().split(" ", 1) for rule in tags[0].split(";"))
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert rules["default-src"] == "'none'" and rules["script-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:" and not re.search(r"\son\w+=", re.sub(r"<script>.*?</script>", "", html))
