import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from sic.calibration import Calibration
from sic.card import model_card
from sic.evaluate.headline import Headline, Part, quality_lines, wilson
from sic.predictions import Answers
from sic.serve.engine import quality

NAMES = ["cat", "dog", "owl"]


@pytest.mark.parametrize(("successes", "number"), [(0, 1), (1, 1), (0, 7), (7, 7), (39, 54), (1, 1000), (500, 1000)])
def test_the_interval_is_wilsons(successes: int, number: int) -> None:
    expected = binomtest(successes, number).proportion_ci(0.95, method="wilson")
    assert wilson(successes, number) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_without_images_everything_is_possible() -> None:
    assert wilson(0, 0) == (0, 1)
    assert Part(0, 0).share is None and Part(0, 0).percent == "–"


def test_single_labels_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(-0.5, 1.5, (200, 3)))
    labels = rng.choice(3, 200, p=[0.2, 0.5, 0.3])
    wanted = torch.eye(3)[torch.from_numpy(labels)]
    found = Answers(logits, "single").headline(wanted, NAMES)
    answered = [row for row in range(200) if logits[row].max() >= 0]
    right = [row for row in answered if logits[row].argmax() == labels[row]]
    assert 0 < len(right) < len(answered) < 200
    assert found.answered == Part(len(answered), 200)
    assert found.right == Part(len(right), len(answered))
    assert found.right_of_all == Part(len(right), 200)
    assert found.chance == pytest.approx(1 / 3)
    assert (found.commonest, found.commonest_share) == ("dog", pytest.approx((labels == 1).mean()))


def test_an_image_with_several_right_answers_is_easier_to_guess() -> None:
    wanted = torch.tensor([[1.0, 1, 0], [1, 0, 0]])
    found = Answers(torch.ones(2, 3), "single").headline(wanted, NAMES)
    assert found.chance == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert (found.commonest, found.commonest_share) == ("cat", 1)


def test_several_labels() -> None:
    """Right, a label missing, rightly nothing, wrongly nothing, unsure about what was found."""
    logits = torch.tensor([[1.0, 1, -1], [1, -1, -1], [-1, -1, -1], [-1, -1, -1], [1, -1, -1]])
    wanted = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1], [torch.nan, 0, 0]])
    found = Answers(logits, "multi").headline(wanted, NAMES)
    assert found.answered == Part(3, 5)
    assert found.right == Part(2, 3)
    assert found.right_of_all == Part(3, 5)  # the third image is rightly left alone
    assert found.chance is None and found.commonest_share == pytest.approx(2 / 5)


def test_the_sentence_has_every_figure() -> None:
    found = Headline(Part(54, 90), Part(39, 54), Part(39, 90), 1 / 6, "Beagle", 0.2)
    assert found.sentence == (
        "Answers 60 % of 90 images (95 % interval 50–70 %); 72 % of these answers are right (59–82 %, 54 images); "
        "43 % of all images are answered correctly (34–54 %). "
        "For comparison: chance 17 %; always answering Beagle: 20 %."
    )
    nothing = Headline(Part(0, 90), Part(0, 0), Part(0, 90), None, "Beagle", 0.2)
    assert "these answers" not in nothing.sentence and "chance" not in nothing.sentence


def test_figures_carry_the_headline() -> None:
    answers = Answers(torch.tensor([[2.0, -1, -1], [-1, -1, -2]]), "single")
    figures = json.loads(json.dumps(answers.figures(torch.eye(3)[[0, 1]], NAMES)))
    found = Headline.of(figures)
    assert found == answers.headline(torch.eye(3)[[0, 1]], NAMES)
    assert figures["headline"]["right"] == {"count": 1, "images": 1, "share": 1.0, "interval": list(wilson(1, 1))}
    assert Headline.of({"accuracy": 0.5}) is None  # figures of an earlier version


def test_the_model_card_shows_it() -> None:
    figures = Answers(torch.tensor([[2.0, -1, -1], [-1, -1, -2]]), "single").figures(torch.eye(3)[[0, 1]], NAMES)
    about = {"classes": NAMES, "training": {}, "method": "sic", "task": "single", "data": {}, "supports_per_class": 3}
    about |= {"form": "bcos", "backbone": "resnet18", "preprocessing": {"size": 64}, "versions": {"sic": "1"}}
    about |= {"calibration": asdict(Calibration()), "loss": "bce"}
    card = model_card({**about, "edits": [], "figures": {"test": figures}})
    assert "- test images: Answers 50 % of 2 images (95 % interval 9–91 %)" in card
    assert "always answering" in card and "accuracy 50.0 %" in card


def test_figures_without_copies_are_told_beside_the_others() -> None:
    logits, wanted = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.eye(3)[torch.arange(40) % 3]
    every, clean = ({"headline": Answers(logits[:n], "single").headline(wanted[:n], NAMES).as_json()} for n in (40, 30))
    told = quality_lines(every, clean)
    assert told[:-1] == quality_lines(every) == quality_lines(every, None)
    assert (
        told[-1] == f"Without copies of training images: {clean['headline']['sentence']}" and "of 30 images" in told[-1]
    )
    for figures, of_clean in (({"test": every, "test_without_copies": clean}, clean), ({"test": every}, None)):
        shown = quality(figures)
        assert shown is not None and shown["lines"] == quality_lines(every, of_clean)
