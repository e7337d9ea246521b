"""One case as a web page in a single file: to keep, to print, to send on. No scripts, nothing loaded."""

from html import escape
from importlib import resources

import torch
from torch import Tensor

from sic.explain import ClassExplanation, Explanation, SupportCase
from sic.explain.picture import signed
from sic.explain.prose import answer, percent
from sic.serve.engine import Engine, colours, png, text64
from sic.version import __version__


def page(engine: Engine, explanation: Explanation) -> str:
    """A complete HTML document."""
    style = (resources.files("sic.serve") / "static" / "share.css").read_text(encoding="utf-8")
    similar = (
        "" if explanation.similar_case else '<p class="warning">No similar case: look closely before you use this.</p>'
    )
    truth = (
        "" if explanation.truth is None else f"<p>The true class of this test image: {escape(explanation.truth)}.</p>"
    )
    sections = "".join(_class(explanation, found) for found in explanation.classes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(explanation.title)}: {escape(answer(explanation))}</title>
<style>{style}</style>
</head>
<body>
<h1>{escape(explanation.title)}</h1>
<p class="answer">The model answers: <strong>{escape(answer(explanation))}</strong></p>
{similar}{truth}
<p>{escape(explanation.text)}</p>
{sections}
<footer>Model {escape(engine.name)}, sic {__version__}. Red raises the score, blue lowers it. Pictures are as the model
sees them. This file contains the image and training images of the model: pass it on only to those who may see them.
</footer>
</body>
</html>
"""


def _class(explanation: Explanation, found: ClassExplanation) -> str:
    contributions = found.contributions
    verdict = "yes" if found.logit >= 0 else "no"
    rows = "".join(
        f"<tr><th scope='row'>{label}</th><td>{value:+.2f}</td></tr>"
        for label, value in [
            ("start (every class)", explanation.bias),
            *((f"like case {chr(65 + slot)}", case.evidence) for slot, case in enumerate(found.cases)),
            ("score", found.logit),
        ]
    )
    cases = "".join(_case(case, chr(65 + slot)) for slot, case in enumerate(found.cases))
    name = escape(found.name)
    drawn = torch.from_numpy(signed(contributions.maps, explanation.image)[0]).permute(2, 0, 1)
    return f"""<section>
<h2>{name}: {escape(percent(found.probability))} ({verdict})</h2>
<div class="row">
{_figure(explanation.image, "The image", "The image as the model sees it")}
{_figure(drawn, f"For (red) and against (blue) {name}", f"Where evidence for {name} lies")}
{_figure(colours(contributions), "What the model recognised", f"Colours that the model looks for in {name}")}
<table><caption>The score is a sum; above 0 is a yes</caption>{rows}</table>
</div>
<h3>The training images it was compared with</h3>
<div class="row">{cases}</div>
</section>"""


def _case(case: SupportCase, letter: str) -> str:
    title = f"Case {letter}: {escape(case.support.source)}, adds {case.evidence:+.2f}"
    if case.image is None or case.own is None:
        return f"<p>{title} (its image was not kept with the model)</p>"
    return f"""<div>{_figure(case.image, title, f"Training image {escape(case.support.source)}")}
{_figure(colours(case.own), "What the model remembers of it", f"Colours that case {letter} is made of")}</div>"""


def _figure(picture: Tensor, caption: str, words: str) -> str:
    source = f"data:image/png;base64,{text64(png(picture))}"
    return f'<figure><img src="{source}" alt="{words}"><figcaption>{caption}</figcaption></figure>'
