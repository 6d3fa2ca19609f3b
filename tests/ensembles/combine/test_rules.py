"""Combination rules: extreme scores, arrays, the order of sums, and shapes."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from sparkdl.ensembles.combine.rules import Combining, in_order, probabilities, stack_outputs, weighted
from sparkdl.errors import InvalidInput

RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.normal(size=(5, 40))
WEIGHTS = (1.0, 0.5, 2.0, 0.25, 3.0)
SHARES = np.array(WEIGHTS) / sum(WEIGHTS)


def combined(values, rule, weights=WEIGHTS, **others):
    return Combining(rule, tuple(weights), **others)(torch.as_tensor(values)).numpy()


def test_extreme_scores_are_certain():
    score = torch.tensor([[np.inf, -np.inf, 1e4, -1e4, 0.0]])
    np.testing.assert_array_equal(probabilities(score)[0].numpy(), [[0, 1], [1, 0], [0, 1], [1, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(combined(score, "hard", [1.0])[:, 1], [1, 0, 1, 0, 0])
    tiny = torch.tensor([[1e-9, -1e-9]])  # in float32, both probabilities are 0.5
    assert combined(tiny, "hard", [1.0]).argmax(1).tolist() == [1, 0]


def test_arrays_of_several_dimensions_and_their_disagreement_equal_numpy():
    values, flat = NUMBERS.reshape(5, 10, 2, 2), NUMBERS.reshape(5, 10, 4)
    np.testing.assert_allclose(combined(values, "mean"), np.tensordot(SHARES, values, 1), rtol=1e-10)
    mean = np.tensordot(SHARES, flat, 1)
    expected = np.sqrt(np.tensordot(SHARES, ((flat - mean) ** 2).mean(-1), 1))
    actual = combined(values, "mean", disagreement=True)
    np.testing.assert_allclose(actual, np.c_[mean, expected], rtol=1e-10)


def test_sums_run_in_the_order_of_the_members():
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ."""
    ones = torch.ones(3, 1)
    assert weighted(ones, (0.1, 0.2, 0.3)).item() == (0.1 + 0.2) + 0.3 == in_order((0.1, 0.2, 0.3))
    assert weighted(ones, (0.3, 0.2, 0.1)).item() == (0.3 + 0.2) + 0.1 == in_order((0.3, 0.2, 0.1))
    assert in_order((0.1,) * 10) != 1  # no compensation


def test_outputs_of_compatible_shapes_are_stacked():
    one, two = torch.tensor([[0.3], [-2.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    chances = stack_outputs([one, two, one.reshape(2)], "soft").softmax(-1).numpy()
    np.testing.assert_allclose(chances[0, :, 1], expit([0.3, -2.0]), rtol=1e-6)
    np.testing.assert_allclose(chances[1], softmax(two.numpy(), 1), rtol=1e-6)
    np.testing.assert_array_equal(chances[2], chances[0])
    flat, column = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [5.0]])
    np.testing.assert_array_equal(stack_outputs([flat, column], "mean"), [[1, 2], [3, 5]])
    assert stack_outputs([column, column], "mean").shape == (2, 2, 1)


def test_outputs_of_other_shapes_raise():
    with pytest.raises(InvalidInput, match=r"have the shapes \[4, 2\], \[4, 3\]"):
        stack_outputs([torch.zeros(4, 2), torch.zeros(4, 3)], "soft")
    with pytest.raises(InvalidInput, match=r"have the shapes \[4\], \[4, 2\]"):
        stack_outputs([torch.zeros(4, 1), torch.zeros(4, 2)], "mean")
    with pytest.raises(InvalidInput, match=r"has the shape \[4, 2, 2\]; expected \[B, classes\]"):
        combined(np.zeros((5, 4, 2, 2)), "hard")
