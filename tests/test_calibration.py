"""Probabilities after calibration, and the promise about answers, checked against its definition by simulation."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sic.calibration import (
    CONFIDENCE,
    FEWEST,
    OTHERS,
    WRONG,
    Calibration,
    calibrated,
    needed_images,
    one_of_each,
    promised,
)
from sic.predictions import Answers


def drawn(number: int, temperature: float, threshold: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits N×3, and labels that are as probable as the calibration says."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(number, 3, generator=generator, dtype=torch.float64)
    chance = ((logits - threshold) / temperature).sigmoid()
    return logits, (torch.rand(number, 3, generator=generator) < chance).double()


@pytest.mark.parametrize(("temperature", "threshold"), [(1.0, 0.0), (3.0, 0.0), (0.5, 1.0), (2.0, -1.5)])
def test_the_truth_is_found(temperature: float, threshold: float) -> None:
    found = calibrated(*drawn(20_000, temperature, threshold), "bce")
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert found.threshold == pytest.approx(threshold, abs=0.1) and found.images == 20_000


def test_against_scikit_learns_logistic_regression() -> None:
    logits, truth = drawn(5000, 2.0, 0.7)
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(logits.reshape(-1, 1).numpy(), truth.flatten().numpy())
    found = calibrated(logits, truth, "bce")
    assert found.temperature == pytest.approx(1 / theirs.coef_[0, 0], rel=1e-2)  # but for Platt's targets
    assert found.threshold == pytest.approx(-theirs.intercept_[0] / theirs.coef_[0, 0], abs=1e-2)


def test_the_answer_counts_more_than_all_other_classes() -> None:
    """Against scikit-learn with weights, and against all questions alike, where easy ones decide."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (3000,), generator=generator)
    logits = torch.randn(3000, 10, generator=generator) - 6
    logits[torch.arange(3000), labels] += 5 + 3 * torch.randn(3000, generator=generator)
    truth = torch.nn.functional.one_hot(labels, 10).double()
    weights = torch.full_like(logits, OTHERS / 9).scatter(1, logits.argmax(dim=1, keepdim=True), 1.0)
    # Platt's targets are between 0 and 1: each question is asked twice, once with either answer.
    yes, no = (weights * truth).sum(), (weights * (1 - truth)).sum()
    wanted = torch.where(truth > 0, (yes + 1) / (yes + 2), 1 / (no + 2))
    twice = torch.cat([weights * wanted, weights * (1 - wanted)]).flatten()
    questions, answers = logits.flatten().repeat(2)[:, None], [1] * truth.numel() + [0] * truth.numel()
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(questions, answers, twice)
    found = calibrated(logits, truth, "bce", single=True)
    assert found.temperature == pytest.approx(1 / theirs.coef_[0, 0], rel=1e-3)
    assert found.threshold == pytest.approx(-theirs.intercept_[0] / theirs.coef_[0, 0], abs=1e-3)
    right = (logits.argmax(dim=1) == labels).double()
    top = logits.amax(dim=1, keepdim=True)

    def gap(calibration: Calibration) -> float:
        return abs(float(calibration.probabilities(top, "bce").mean() - right.mean()))

    assert gap(found) < gap(calibrated(logits, truth, "bce")) and gap(found) < gap(Calibration())


def test_other_classes_have_a_threshold_of_their_own() -> None:
    """Of classes with the same score, the nearest one is true more often. Its own probability stays as it is."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(5, (4000,), generator=generator)
    logits = torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    logits[torch.arange(4000), labels] += 2
    truth = torch.nn.functional.one_hot(labels, 5).double()
    found = calibrated(logits, truth, "bce", single=True)
    assert found.others is not None and found.others > found.threshold + 1
    further = logits < logits.amax(dim=1, keepdim=True)
    theirs, plain = (each.probabilities(logits, "bce") for each in (found, replace(found, others=None)))
    assert torch.equal(theirs[~further], plain[~further])
    torch.testing.assert_close(theirs[further], ((logits - found.others) / found.temperature).sigmoid()[further])
    assert theirs[further].mean() == pytest.approx(truth[further].mean().item(), abs=1e-3)
    assert plain[further].mean() > 2 * theirs[further].mean()
    # The likelihood is highest there.
    below, there, above = (
        torch.nn.functional.binary_cross_entropy(
            replace(found, others=found.others + shift).probabilities(logits, "bce")[further], truth[further]
        )
        for shift in (-0.05, 0.0, 0.05)
    )
    assert there < min(below, above)


def test_other_classes_where_none_is_ever_true() -> None:
    truth = torch.eye(3).repeat(20, 1)
    found = calibrated(10 * truth - 2, truth, "bce", single=True)
    assert found.others is not None and found.threshold <= found.others < 100
    assert found.probabilities(torch.tensor([[8.0, -2.0, -2.0]]), "bce")[0, 1] < 0.05
    assert calibrated(10 * truth - 2, truth, "bce").others is None
    alike = calibrated(torch.zeros(60, 3), truth, "bce", single=True)  # none of them is the nearest
    assert alike.probabilities(torch.zeros(1, 3), "bce")[0].tolist() == pytest.approx([1 / 3] * 3, abs=0.01)


def test_the_limit_of_a_class_is_where_its_probability_is_50_percent() -> None:
    found = Calibration(2.0, -0.5, others=1.5)
    logits = torch.tensor([[-0.5, -3.0], [4.0, 1.5]], dtype=torch.float64)
    probabilities = found.probabilities(logits, "bce")
    assert probabilities[0, 0] == probabilities[1, 1] == 0.5
    assert (found.limit(), found.limit(nearest=False)) == (-0.5, 1.5) and Calibration(2.0, -0.5).limit(False) == -0.5
    for nearest, logit in ((True, 3.0), (False, 1.0)):
        by_hand = from_formula(found.formula("bce", nearest=nearest), logit)
        row = torch.tensor([[logit, logit + (-1 if nearest else 1)]], dtype=torch.float64)
        assert found.probabilities(row, "bce")[0, 0].item() == pytest.approx(by_hand)
    assert found.formula("ce", nearest=False) == found.formula("ce")


def from_formula(formula: str, logit: float) -> float:
    """The value of sigmoid((logit ± a) / b), read from its text."""
    sign, shift, temperature = re.fullmatch(r"sigmoid\(\(logit ([+-]) (.+)\) / (.+)\)", formula).groups()  # type: ignore[union-attr]
    return 1 / (1 + math.exp(-(logit + float(sign + shift)) / float(temperature)))


def test_classes_that_an_image_is_unsure_about_play_no_part() -> None:
    logits, truth = drawn(400, 2.0, 0.5)
    unsure = truth.clone()
    unsure[::2, 1] = torch.nan
    other = logits.clone()
    other[::2, 1] = 1e6
    assert calibrated(other, unsure, "bce") == calibrated(logits, unsure, "bce") != calibrated(logits, truth, "bce")


def test_every_answer_right_keeps_finite_numbers() -> None:
    truth = torch.eye(3).repeat(20, 1)
    found = calibrated(10 * truth - 2, truth, "bce", lowest=-2.0)
    assert 0.05 <= found.temperature <= 20 and -1 <= found.threshold < 8
    probabilities = found.probabilities(torch.tensor([[8.0, -2.0]]), "bce")[0]
    assert probabilities[0] > 0.9 and probabilities[1] < 0.1


def test_no_evidence_is_never_a_yes() -> None:
    """Even where positives are so common that a likelihood would say so."""
    logits = torch.full((100, 1), -2.0)
    found = calibrated(logits, torch.ones(100, 1), "bce", lowest=-2.0)
    assert found.threshold >= -1 and found.probabilities(logits, "bce").max() < 0.5


def test_the_softmax_has_a_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2.5).softmax(dim=1), 1, generator=generator)[:, 0]
    found = calibrated(logits, torch.nn.functional.one_hot(labels, 4).double(), "ce")
    assert found.temperature == pytest.approx(2.5, rel=0.03) and found.threshold == 0
    probabilities = found.probabilities(logits, "ce")
    torch.testing.assert_close(probabilities, (logits / found.temperature).softmax(dim=1))
    torch.testing.assert_close(found.scores(logits, "ce").double().sigmoid(), probabilities, rtol=1e-4, atol=1e-6)


def test_few_images_fit_nothing() -> None:
    assert calibrated(*drawn(FEWEST - 1, 3.0, 1.0), "bce") == Calibration()
    assert calibrated(*drawn(FEWEST, 3.0, 1.0), "bce") != Calibration()


def test_the_default_is_what_methods_say_themselves() -> None:
    logits = torch.randn(5, 3)
    assert torch.equal(Calibration().scores(logits, "bce"), logits)
    assert torch.equal(Calibration().probabilities(logits, "bce"), logits.sigmoid())
    assert torch.equal(Calibration().probabilities(logits, "ce"), logits.softmax(dim=1))


@pytest.mark.parametrize("loss", ["bce", "ce"])
def test_order_and_half_are_kept(loss: str) -> None:
    """The class with the highest logit stays the most probable, and 50 % is where scores are 0."""
    logits, found = 5 * torch.randn(50, 4, dtype=torch.float64), Calibration(3.0, 0.8)
    probabilities, scores = found.probabilities(logits, loss), found.scores(logits, loss)  # type: ignore[arg-type]
    assert torch.equal(probabilities.argmax(dim=1), logits.argmax(dim=1))
    assert torch.equal(probabilities >= 0.5, scores >= 0)


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"temperature": -1.0}, {"temperature": math.nan}])
def test_impossible_temperatures(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="temperature"):
        Calibration(**change)


@pytest.mark.parametrize("others", [0.9, math.nan, math.inf])
def test_impossible_thresholds_of_other_classes(others: float) -> None:
    with pytest.raises(ValueError, match="other classes"):
        Calibration(1.0, 1.0, others=others)


def falling(scores: np.ndarray) -> np.ndarray:
    """Chance of a mistake that falls with the score."""
    return 0.3 * np.exp(-3 * scores)


def wavy(scores: np.ndarray) -> np.ndarray:
    """The surest answers are among the worst: nothing may be assumed about scores."""
    return np.where(scores > 0.9, 0.3, np.where(scores > 0.3, 0.01, 0.2))


def borderline(scores: np.ndarray) -> np.ndarray:
    """A little more mistakes than may be, whatever the score."""
    return np.full_like(scores, WRONG + 0.002)


def true_risk(mistaken: Callable[[np.ndarray], np.ndarray], score: float | None) -> float:
    """Of all answers above a score, the share of mistakes; scores are uniform."""
    grid = np.linspace(0.0 if score is None else score, 1, 4001)
    return float(mistaken(grid).mean())


@pytest.mark.parametrize("number", [60, 150, 400, 1500])
@pytest.mark.parametrize("mistaken", [falling, wavy, borderline])
def test_the_promise_is_broken_no_more_often_than_it_says(
    mistaken: Callable[[np.ndarray], np.ndarray], number: int
) -> None:
    """Its definition: over the draw of the held-out images, answers that are promised have a risk above `WRONG` in at
    most `1 - CONFIDENCE` of all cases."""
    rng, draws, broken, made = np.random.default_rng(number), 600, 0, 0
    for _ in range(draws):
        scores = rng.random(number)
        right = rng.random(number) >= mistaken(scores)
        found = promised(torch.from_numpy(scores), torch.from_numpy(right))
        if found is not None:
            made += 1
            broken += true_risk(mistaken, found.score) > WRONG
    spread = 3 * math.sqrt((1 - CONFIDENCE) * CONFIDENCE / draws)
    assert broken / draws <= 1 - CONFIDENCE + spread
    if mistaken is falling and number == 1500:
        assert made > 0.6 * draws  # a promise that is never made would be kept, too


def test_the_best_of_many_models_still_keeps_its_promise() -> None:
    """Choosing the epoch on the same images is allowed for."""
    rng, draws, models, number, broken = np.random.default_rng(0), 400, 20, 200, 0
    for _ in range(draws):
        scores = rng.random((models, number))
        right = rng.random((models, number)) >= WRONG + 0.01
        best = int(right.sum(axis=1).argmax())
        found = promised(torch.from_numpy(scores[best]), torch.from_numpy(right[best]), models)
        broken += found is not None
    assert broken / draws <= 1 - CONFIDENCE + 3 * math.sqrt((1 - CONFIDENCE) * CONFIDENCE / draws)


def test_answers_without_a_similar_case_leave_the_promise_kept() -> None:
    """Which images are answered depends on a calibration that is fitted to the same images. The chance of a mistake is
    a little too high where the calibration draws the line, and falls with the score."""
    rng, draws, number, broken, made = np.random.default_rng(1), 300, 150, 0, 0

    def mistaken(scores: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(1.2 * scores + 1.2))

    grid = rng.normal(1.5, 1.5, 100_000)
    for _ in range(draws):
        scores = rng.normal(1.5, 1.5, number)
        logits = torch.from_numpy(np.stack([scores, np.full(number, -9.0)], 1))
        right = torch.from_numpy(rng.random(number) >= mistaken(scores))
        targets = torch.stack([right, ~right], 1).double()
        answers = Answers(logits, "single", "bce", calibrated(logits, targets, "bce", single=True))
        found = promised(answers.confidence, right)
        if found is not None:
            made += 1
            line = max(answers.calibration.threshold, -math.inf if found.score is None else found.score)
            broken += float(mistaken(grid[grid > line]).mean()) > WRONG
            assert found.answered <= int(answers.similar_case.sum())
    assert made > 20 and broken / draws <= 1 - CONFIDENCE + 3 * math.sqrt((1 - CONFIDENCE) * CONFIDENCE / draws)


def test_images_that_are_not_answered_are_not_counted() -> None:
    scores = torch.linspace(0, 1, 100)
    scores[:20] = -torch.inf
    right = torch.arange(100) >= 20  # what is not answered would be wrong
    found = promised(scores, right)
    assert found is not None and found.score is None and (found.answered, found.mistakes, found.images) == (80, 0, 100)
    assert found.covers(scores).tolist() == right.tolist()
    assert promised(torch.full((100,), -torch.inf), right) is None


def test_too_few_images_promise_nothing() -> None:
    scores = torch.linspace(0, 1, 58)
    assert needed_images() == 59 and promised(scores, torch.ones(58)) is None
    found = promised(torch.linspace(0, 1, 59), torch.ones(59))
    assert found is not None and found.score is None and (found.answered, found.mistakes) == (59, 0)
    assert promised(torch.linspace(0, 1, 59), torch.ones(59), models=2) is None
    assert promised(torch.zeros(0), torch.ones(0)) is None


def test_mistakes_at_low_scores_raise_the_threshold() -> None:
    scores = torch.linspace(0, 1, 1000)
    right = scores > 0.25
    found = promised(scores, right)
    assert found is not None and found.score is not None
    covered = found.covers(scores)
    assert int(covered.sum()) == found.answered and int((covered & ~right).sum()) == found.mistakes
    assert found.mistakes / found.answered < WRONG and found.answered == 700


def test_one_image_of_each_group_counts() -> None:
    groups = [None, "a", "a", "b", None, "a", "b"]
    rows = one_of_each(groups)
    assert {0, 4} < set(rows) and len(rows) == 4 and {groups[row] for row in rows} == {None, "a", "b"}


def test_equal_scores_are_covered_together_or_not_at_all() -> None:
    scores = torch.cat([torch.ones(300), torch.zeros(300)])
    found = promised(scores, scores == 1)
    assert found is not None and found.score == 0 and found.answered == 300
    assert found.covers(scores).tolist() == [True] * 300 + [False] * 300


def test_without_any_evidence_no_class_is_the_nearest() -> None:
    """All classes then have the same score, and the low probability of a class that is not the answer."""
    fitted = Calibration(5.0, -1.0, 50, others=20.0)
    nothing, some = torch.full((1, 3), -1.6), torch.tensor([[-1.6, -1.5, -1.6]])
    assert float(fitted.probabilities(nothing, "bce").max()) < 0.02
    assert float(fitted.probabilities(some, "bce")[0, 1]) > 0.4
    assert torch.equal(fitted.probabilities(nothing, "bce")[0, 0], fitted.probabilities(some, "bce")[0, 0])
