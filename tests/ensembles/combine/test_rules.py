"""Votes, means and sums of members' outputs, against NumPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from sparkdl.ensembles.combine.rules import Combining, alike, in_order, probabilities, weighted
from sparkdl.errors import InvalidInput

RANDOM = np.random.default_rng(0)
SCORES = RANDOM.normal(size=(5, 40, 3))
NUMBERS = RANDOM.normal(size=(5, 40))
WEIGHTS = (1.0, 0.5, 2.0, 0.25, 3.0)
SHARES = np.array(WEIGHTS) / sum(WEIGHTS)


def combined(values, rule, weights=WEIGHTS, **others):
    return Combining(rule, tuple(weights), **others)(torch.as_tensor(values)).numpy()


def ballots(scores, weights=WEIGHTS):
    return sum(weight * np.eye(scores.shape[-1])[each.argmax(1)] for weight, each in zip(weights, scores, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_votes_equal_numpy(dtype):
    found = combined(SCORES.astype(dtype), "soft")
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.tensordot(WEIGHTS, softmax(SCORES, -1), 1), rtol=1e-5)
    np.testing.assert_array_equal(combined(SCORES.astype(dtype), "hard"), ballots(SCORES))
    for rule in ("soft", "hard"):
        apart = combined(SCORES, rule, disagreement=True)
        np.testing.assert_array_equal(apart[:, :3], combined(SCORES, rule))
        np.testing.assert_array_equal(apart[:, 3:], ballots(SCORES))


@pytest.mark.parametrize("shape", [(5, 40), (5, 40, 1)])
def test_single_score_is_that_of_class_1(shape):
    chance = expit(NUMBERS)
    expected = np.stack([np.dot(WEIGHTS, 1 - chance), np.dot(WEIGHTS, chance)], 1)
    np.testing.assert_allclose(combined(NUMBERS.reshape(shape), "soft"), expected, rtol=1e-12)
    expected = np.stack([np.dot(WEIGHTS, NUMBERS <= 0), np.dot(WEIGHTS, NUMBERS > 0)], 1)
    np.testing.assert_array_equal(combined(NUMBERS.reshape(shape), "hard"), expected)


def test_extreme_scores_are_certain():
    score = torch.tensor([[np.inf, -np.inf, 1e4, -1e4, 0.0]])
    np.testing.assert_array_equal(probabilities(score)[0].numpy(), [[0, 1], [1, 0], [0, 1], [1, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(combined(score, "hard", [1.0])[:, 1], [1, 0, 1, 0, 0])
    tiny = torch.tensor([[1e-9, -1e-9]])  # in float32, both probabilities are 0.5
    assert combined(tiny, "hard", [1.0]).argmax(1).tolist() == [1, 0]


def test_smallest_class_wins_a_tie():
    scores = np.array([[[0.0, 0.0, 9.0]], [[9.0, 0.0, 0.0]], [[0.0, 9.0, 0.0]]])
    assert combined(scores, "hard", [1.0, 1.0, 1.0]).argmax(1) == [0]
    assert combined(scores[[0, 2]], "hard", [0.1, 0.1]).argmax(1) == [1]
    opposite = np.array([[[0.0, 1.5]], [[1.5, 0.0]]])
    assert combined(opposite, "soft", [0.1, 0.1]).argmax(1) == [0]


def test_member_without_a_prediction_gives_nan():
    scores, numbers = SCORES.copy(), NUMBERS.copy()
    scores[2, 7, 1] = numbers[0, 7] = np.nan
    for found in (combined(scores, "soft"), combined(scores, "hard"), combined(numbers, "mean")[:, None]):
        assert np.isnan(found[7]).all()
        assert np.isfinite(np.delete(found, 7, 0)).all()


@pytest.mark.parametrize("shape", [(5, 40), (5, 40, 1), (5, 10, 4), (5, 10, 2, 2)])
def test_numbers_and_their_disagreement_equal_numpy(shape):
    values, rows = NUMBERS.reshape(shape), shape[1]
    assert combined(values, "mean").shape == shape[1:]
    np.testing.assert_allclose(combined(values, "mean"), np.tensordot(SHARES, values, 1), rtol=1e-10)
    total = 0.5 + np.tensordot((-1, 2, 0.5, 1, -3), values, 1)
    np.testing.assert_allclose(combined(values, "sum", (-1, 2, 0.5, 1, -3), intercept=0.5), total, rtol=1e-10)
    found, flat = combined(values, "mean", disagreement=True), values.reshape(5, rows, -1)
    mean = np.tensordot(SHARES, flat, 1)
    expected = np.sqrt(np.tensordot(SHARES, ((flat - mean) ** 2).mean(-1), 1))
    assert found.shape == (rows, flat.shape[-1] + 1)
    np.testing.assert_allclose(found[:, :-1], mean, rtol=1e-10)
    np.testing.assert_allclose(found[:, -1], expected, rtol=1e-10)
    equal = combined(np.stack([values[0]] * 4), "mean", [1.0] * 4, disagreement=True)
    np.testing.assert_allclose(equal[:, -1], 0, atol=1e-15)


def test_sums_run_in_the_order_of_the_members():
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ."""
    ones = torch.ones(3, 1)
    assert weighted(ones, (0.1, 0.2, 0.3)).item() == (0.1 + 0.2) + 0.3 == in_order((0.1, 0.2, 0.3))
    assert weighted(ones, (0.3, 0.2, 0.1)).item() == (0.3 + 0.2) + 0.1 == in_order((0.3, 0.2, 0.1))
    assert in_order((0.1,) * 10) != float(10 * Fraction(1, 10))


def test_outputs_of_compatible_shapes_are_stacked():
    one, two = torch.tensor([[0.3], [-2.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    found = alike([one, two, one.reshape(2)], "soft").softmax(-1).numpy()
    np.testing.assert_allclose(found[0, :, 1], expit([0.3, -2.0]), rtol=1e-6)
    np.testing.assert_allclose(found[1], softmax(two.numpy(), 1), rtol=1e-6)
    np.testing.assert_array_equal(found[2], found[0])
    flat, column = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [5.0]])
    np.testing.assert_array_equal(alike([flat, column], "mean"), [[1, 2], [3, 5]])
    assert alike([column, column], "mean").shape == (2, 2, 1)


def test_outputs_of_other_shapes_raise():
    with pytest.raises(InvalidInput, match=r"have the shapes \[4, 2\], \[4, 3\]"):
        alike([torch.zeros(4, 2), torch.zeros(4, 3)], "soft")
    with pytest.raises(InvalidInput, match=r"have the shapes \[4\], \[4, 2\]"):
        alike([torch.zeros(4, 1), torch.zeros(4, 2)], "mean")
    with pytest.raises(InvalidInput, match=r"has the shape \[4, 2, 2\]; expected \[B, classes\]"):
        combined(np.zeros((5, 4, 2, 2)), "hard")
