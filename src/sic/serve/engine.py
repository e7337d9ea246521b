"""What the server computes: a model's answers as plain data. Used by one thread at a time."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from torch import Tensor

from sic.data.dataset import Sample
from sic.explain import Explanation, make_overview
from sic.explain.picture import colour_picture, png
from sic.explain.render import float32
from sic.methods import SIC, Contributions
from sic.model import Model
from sic.predictions import Predictions
from sic.run import Run
from sic.serve.limits import Refused
from sic.supports import support_names

MOST = 8
"""Classes explained at once."""
BATCH = 16
"""Test images embedded at a time."""
RELYING = 24
"""Images named as relying on a support."""


@dataclass
class HeldOutImages:
    """Test images, or else the next fairest ones, of which some are embedded."""

    name: str
    caution: str | None
    """What keeps them from being a fair test."""
    samples: list[Sample]
    embedded: int = 0
    """How many of them were looked at, from the first one on."""

    @classmethod
    def find(cls, model: Model) -> "HeldOutImages":
        """The test set of a model; `ImagesNotFound`, or another refusal, where its images are not at hand."""
        assert model.folder is not None
        run = Run(model.folder, model.config)
        found = run.held_out(run.open())
        return cls(found.name, found.caution, found.samples)

    @property
    def done(self) -> bool:
        return self.embedded == len(self.samples)

    def embed_more(self, model: Model) -> None:
        """Embed the next few images."""
        batch = self.samples[self.embedded : self.embedded + BATCH]
        model.latents.embed(batch, keep=False)
        self.embedded += len(batch)
        if self.done:
            model.latents.keep()

    def predictions(self, model: Model) -> tuple[list[int], Predictions]:
        """Positions of the embedded images, and what the model says about them."""
        latents = model.latents
        places = [place for place, sample in enumerate(self.samples[: self.embedded]) if sample.id in latents]
        known = [self.samples[place] for place in places]
        return places, model.predictions_of(known, latents.of([sample.id for sample in known]))


class Engine:
    """A loaded model and, where its data is at hand, its test set."""

    def __init__(self, model: Model, name: str, tests: HeldOutImages | None) -> None:
        self.model, self.name, self.tests = model, name, tests
        self._overview: tuple[int, dict[str, Any]] | None = None

    @property
    def classifier(self) -> SIC:
        return self.model.sic

    def use(self, model: Model) -> None:
        """Go on with the same network and other supports."""
        model.latents.include(self.model.latents)
        self.model = model
        self._overview = None

    def describe(self) -> dict[str, Any]:
        config = self.model.config
        return {
            "name": self.name,
            "task": config.task,
            "classes": self.model.classes,
            "size": config.preprocessing.size,
            "fit": config.preprocessing.fit,
            "backbone": config.backbone,
            "bias": self.classifier.bias,
            "temperature": config.temperature,
            "supports": len(self.model.supports),
            "figures": config.figures,
            "tests": None
            if self.tests is None
            else {"name": self.tests.name, "caution": self.tests.caution, "images": len(self.tests.samples)},
        }

    def predict(self, names: Sequence[str], views: Sequence[Tensor]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "labels": prediction.labels,
                "similar_case": prediction.similar_case,
                "nearest": max(prediction.probabilities.items(), key=lambda one: one[1])[0],
                "probabilities": prediction.probabilities,
                "evidence": [vars(evidence) for evidence in prediction.evidence],
            }
            for name, prediction in zip(names, self.model.predict_many(views), strict=True)
        ]

    def explain(self, name: str, view: Tensor, classes: Sequence[str], truth: str | None = None) -> Explanation:
        """`classes`: those to explain; empty for the answer's own."""
        known = self.model.classes
        for wanted in classes:
            if wanted not in known:
                raise Refused(422, f"The model has no class {wanted!r}; /api/v1/model lists them.")
        names = list(dict.fromkeys(classes))
        if len(names) > MOST:
            raise Refused(422, f"At most {MOST} classes are explained at once.")
        return replace(self.model.explain(view, names, truth, MOST), title=name)

    def figure(self, explanation: Explanation) -> bytes:
        from sic.explain.figure import draw

        buffer = io.BytesIO()
        draw(explanation, buffer)
        return buffer.getvalue()

    def support(self, index: int) -> Any:
        if not 0 <= index < len(self.model.supports):
            raise Refused(404, f"There is no support {index}; the model has {len(self.model.supports)}.")
        return self.model.supports[index]

    def supports(self) -> list[dict[str, Any]]:
        names = support_names(self.model.supports, self.model.classes)
        norms = self.classifier.support_vectors.norm(dim=1).tolist()
        return [
            {
                "support": index,
                "name": names[index],
                "label": self.model.classes[support.label],
                "source": support.source,
                "shown": support.image is not None,
                "norm": norms[index],
            }
            for index, support in enumerate(self.model.supports)
        ]

    def support_image(self, index: int) -> bytes:
        support = self.support(index)
        if support.image is None:
            raise Refused(404, "This model was saved without its support images.")
        buffer = io.BytesIO()
        Image.fromarray(support.image).save(buffer, "PNG")
        return buffer.getvalue()

    def support_map(self, index: int) -> bytes:
        return float32(self._shown(index).maps)

    def support_picture(self, index: int) -> bytes:
        return png(colour_picture(self._shown(index)))

    def _shown(self, index: int) -> Contributions:
        self.support(index)
        found = self.model.support_contributions([index])
        if not found:
            raise Refused(404, "This model was saved without its support images.")
        return found[index]

    def overview(self) -> dict[str, Any]:
        """How alike the classes are and where latents lie, with the test images as far as they have been looked at."""
        known = self.tests.predictions(self.model)[1] if self.tests is not None else None
        number = 0 if known is None else len(known)
        if self._overview is None or self._overview[0] != number:
            # Without their images, which would all be explained here: the page asks for those that it shows.
            cases = [replace(support, image=None) for support in self.model.supports]
            found = make_overview(self.classifier, cases, self.model.classes, known if number else None).as_json()
            self._overview = number, {**found, "supports": self.supports()}
        return {"model": self.name, **self._overview[1]}

    def test_view(self, place: int) -> tuple[str, Tensor, list[str]]:
        """Id, view and true classes of a test image."""
        if self.tests is None or not 0 <= place < len(self.tests.samples):
            raise Refused(404, f"There is no test image {place}.")
        sample = self.tests.samples[place]
        return sample.id, self.model.tensor(sample.path), [self.model.classes[label] for label in sample.labels]

    def test_list(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Test images with their true classes and, where they have been looked at, the answer."""
        assert self.tests is not None
        known, found = self.tests.predictions(self.model)
        rows = {place: row for row, place in enumerate(known)}
        result = []
        for place in places:
            sample = self.tests.samples[place]
            truth = [self.model.classes[label] for label in sample.labels]
            entry: dict[str, Any] = {"test": place, "name": sample.id, "truth": truth, "answer": None, "right": None}
            if place in rows:
                row = rows[place]
                entry |= {
                    "answer": found.answer(row),
                    "right": bool(found.right[row]),
                    "similar_case": bool(found.similar_case[row]),
                }
            result.append(entry)
        return result

    def relying(self, index: int) -> dict[str, Any]:
        """The test images that rely on a support, as far as they have been embedded (`Predictions.relying_on`)."""
        self.support(index)
        if self.tests is None:
            raise Refused(404, "The model's test images are not at hand, so nothing is known about who relies on it.")
        known, predictions = self.tests.predictions(self.model)
        found = predictions.relying_on(index)
        entries = self.test_list([known[one.row] for one in found[:RELYING]])
        return {
            **self.supports()[index],
            "looked_at": self.tests.embedded,
            "of": len(self.tests.samples),
            "answers": len(found),
            "needed": sum(one.decisive for one in found),
            "images": [
                {**entry, "evidence": one.evidence, "needed": one.decisive}
                for entry, one in zip(entries, found, strict=False)
            ],
        }
