"""Everything that the server computes with its model, as plain data. Used by one thread at a time."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sic.card import caution, promise_words, terms_of
from sic.data.dataset import Sample
from sic.evaluate.headline import quality_lines
from sic.explain import Explanation, make_overview
from sic.explain.contributions import support_image
from sic.explain.picture import colour_picture, png
from sic.explain.render import float32
from sic.methods import SIC, Contributions
from sic.model import Model
from sic.predictions import Predictions
from sic.run import Run, kind_of_images
from sic.serve.limits import Refused
from sic.supports import support_names

MOST = 8
"""The most classes explained at once."""
BATCH = 16
"""Test images embedded at a time."""
NOT_KEPT = "This model was saved without its support images."
RELYING = 24
"""The most images listed as relying on a support."""


@dataclass
class HeldOutImages:
    """The test images of a model, or validation images if it has none. Some of them are embedded."""

    name: str
    caution: str | None
    """Why they are no fair test; None if they are."""
    samples: list[Sample]
    embedded: int = 0
    """The number of images embedded so far, from the first one on."""

    @classmethod
    def find(cls, model: Model) -> "HeldOutImages":
        """The held-out images of a model; raises `ImagesNotFound`, or another error, if they are not available."""
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
        """The positions of the embedded images, and the predictions for them."""
        latents = model.latents
        places = [place for place, sample in enumerate(self.samples[: self.embedded]) if sample.id in latents]
        known = [self.samples[place] for place in places]
        return places, model.predictions_of(known, latents.of([sample.id for sample in known]))


def quality(figures: Mapping[str, Any], promise: str | None = None) -> dict[str, Any] | None:
    """How good a model is on its test images, or else on its validation images, in words, and what it promises; None if
    it is not known."""
    split = next((split for split in ("test", "validation") if split in figures), None)
    if split is None:
        return None
    return {
        "kind": figures[split].get("name", f"{split} images"),
        "lines": quality_lines(figures[split], figures.get(f"{split}_without_copies")),
        "caution": caution(figures[split].get("note")),
        "promise": promise,
    }


class Engine:
    """A loaded model and, if they are available, its test images."""

    def __init__(self, model: Model, name: str, tests: HeldOutImages | None) -> None:
        self.model, self.name, self.tests = model, name, tests
        self._overview: tuple[int, dict[str, Any]] | None = None

    @property
    def classifier(self) -> SIC:
        """The classifier of a model with cases."""
        return self.model.sic

    def use(self, model: Model) -> None:
        """Switch to a model with the same network and other supports."""
        model.latents.include(self.model.latents)
        self.model = model
        self._overview = None

    def describe(self) -> dict[str, Any]:
        config, classifier = self.model.config, self.model.classifier
        return {
            "name": self.name,
            "task": config.task,
            "classes": self.model.classes,
            "size": config.preprocessing.size,
            "fit": config.preprocessing.fit,
            "backbone": config.backbone,
            "method": config.method,
            "method_title": classifier.title,
            "by_similarity": classifier.by_similarity,
            "exclusive": classifier.loss == "ce",
            "bias": classifier.bias,
            "temperature": config.temperature,
            "supports": len(self.model.supports),
            "figures": config.figures,
            "quality": quality(config.figures, promise_words(config.calibration, config.task)),
            "promise": None if config.calibration.promise is None else str(config.calibration.promise),
            "threshold": config.calibration.threshold,
            "floor": self._floor(),
            "terms": terms_of(config.training),
            "tests": None
            if self.tests is None
            else {
                "name": self.tests.name,
                "kind": kind_of_images(self.tests.name),
                "caution": self.tests.caution,
                "images": len(self.tests.samples),
            },
        }

    def _floor(self) -> float:
        """The probability of a class without any evidence, where there is some for another class."""
        classifier = self.model.classifier
        beside_another = torch.tensor([[classifier.bias, classifier.bias + 1]], dtype=torch.float64)
        return classifier.probabilities(beside_another)[0, 0].item() if classifier.loss == "bce" else 0.0

    def predict(self, names: Sequence[str], views: Sequence[Tensor], promise: bool = False) -> list[dict[str, Any]]:
        """Classify images; `promise` as in `Model.predict`."""
        return [
            {
                "name": name,
                "labels": prediction.labels,
                "similar_case": prediction.similar_case,
                "promised": prediction.promised,
                "nearest": max(prediction.probabilities.items(), key=lambda one: one[1])[0],
                "probabilities": prediction.probabilities,
                "evidence": [vars(evidence) for evidence in prediction.evidence],
            }
            for name, prediction in zip(names, self.model.predict_many(views, promise=promise), strict=True)
        ]

    def explain(
        self,
        name: str,
        view: Tensor,
        classes: Sequence[str],
        truth: str | None = None,
        matches: bool = False,
        versus: str | None = None,
        specific: bool = False,
    ) -> Explanation:
        """Explain some classes of an image, by default those of the answer; the rest as in `Model.explain`."""
        for wanted in (*classes, *([] if versus is None else [versus])):
            if wanted not in self.model.classes:
                raise Refused(422, f"The model has no class {wanted!r}; /api/v1/model lists them.")
        names = list(dict.fromkeys(classes))
        if len(names) > MOST:
            raise Refused(422, f"At most {MOST} classes are explained at once.")
        return replace(self.model.explain(view, names, truth, MOST, matches, versus, specific), title=name)

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
        if not self.model.supports:
            return []
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

    def support_view(self, index: int) -> tuple[str, Tensor, str]:
        """Id, view and class of a support, as it was embedded."""
        support = self.support(index)
        view = support_image(support, self.classifier.support_vectors)
        if view is None:
            raise Refused(404, NOT_KEPT)
        return support.source, view, self.model.classes[support.label]

    def support_image(self, index: int) -> bytes:
        return png(self.support_view(index)[1])

    def support_map(self, index: int) -> bytes:
        return float32(self._shown(index).maps)

    def support_picture(self, index: int) -> bytes:
        return png(colour_picture(self._shown(index)))

    def _shown(self, index: int) -> Contributions:
        self.support(index)
        found = self.model.support_contributions([index])
        if not found:
            raise Refused(404, NOT_KEPT)
        return found[index]

    def overview(self) -> dict[str, Any]:
        """Class similarities and the projection, including the test images that are embedded so far."""
        if not self.model.supports:
            raise Refused(404, "This model has no cases, so there is no overview of them.")
        known = self.tests.predictions(self.model)[1] if self.tests is not None else None
        number = 0 if known is None else len(known)
        if self._overview is None or self._overview[0] != number:
            # Without images, so that no support is explained here: the page asks for those that it shows.
            bare = [replace(support, image=None) for support in self.model.supports]
            found = make_overview(self.classifier, bare, self.model.classes, known if number else None).as_json()
            self._overview = number, {**found, "supports": self.supports()}
        return {"model": self.name, **self._overview[1]}

    def test_view(self, place: int) -> tuple[str, Tensor, list[str]]:
        """Id, view and true classes of a test image."""
        if self.tests is None or not 0 <= place < len(self.tests.samples):
            raise Refused(404, f"There is no held-out image {place}.")
        sample = self.tests.samples[place]
        return sample.id, self.model.tensor(sample.path), [self.model.classes[label] for label in sample.labels]

    def test_list(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Test images with their true classes and, if they are embedded, the answer."""
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

    def test_image(self, place: int) -> tuple[str, Tensor, str | None]:
        """Id, view and true class of a test image; no class if it shows none or several."""
        name, view, truth = self.test_view(place)
        return name, view, truth[0] if len(truth) == 1 else None

    def test_right(self, place: int) -> bool:
        """Whether the answer to a test image is right."""
        assert self.tests is not None
        sample, latents = self.tests.samples[place], self.model.latents
        latents.embed([sample], keep=False)
        return bool(self.model.predictions_of([sample], latents.of([sample.id])).right[0])

    def test_page(self, show: Literal["all", "wrong", "unlike"], offset: int, limit: int) -> dict[str, Any]:
        """Some of the test images: of all, of those with wrong answers, or of those without a similar case."""
        tests = self.tests
        assert tests is not None
        if show == "all":
            places = list(range(len(tests.samples)))
        else:
            key = "right" if show == "wrong" else "similar_case"
            places = [entry["test"] for entry in self.test_list(range(tests.embedded)) if entry.get(key) is False]
        return {
            "set": tests.name,
            "images": self.test_list(places[offset : offset + limit]),
            "matching": len(places),
            "looked_at": tests.embedded,
            "of": len(tests.samples),
        }

    def relying(self, index: int) -> dict[str, Any]:
        """The test images embedded so far that rely on a support (`Predictions.relying_on`)."""
        self.support(index)
        if self.tests is None:
            raise Refused(404, "The held-out images of this model are not available.")
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
