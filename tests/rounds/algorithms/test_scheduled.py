"""Scheduled coordinate descent: the contract, the lasso of scikit-learn, and how many updates it takes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import Lasso
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.scheduled import Scheduled
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective
from tests.contracts.algorithm_contract import AlgorithmContract, data, jobs, objective

COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), floating="float64")


class TestScheduled(AlgorithmContract):
    algorithm = Scheduled(l1=1e-3, width=3, rho=0.5)


def solved(algorithm: Scheduled, x: np.ndarray, y: np.ndarray, *, bias: bool = True):
    """The last state and the history of a run on three shards."""
    model = Objective(partial(nn.Linear, x.shape[1], 1, bias=bias), nn.MSELoss(), precision="fp64")
    return Rounds(algorithm, model, seed=3).run(InlineTaskRunner(ShardedData({"x": x, "y": y}, COLUMNS, 3)))


def value(w: np.ndarray, b: float, x: np.ndarray, y: np.ndarray, l1: float) -> float:
    return float(np.square(y - x @ w - b).mean() + l1 * np.abs(w).sum())


@pytest.mark.parametrize("bias", [True, False])
def test_the_solution_is_that_of_scikit_learn(bias):
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 40)) + 1.0
    x[:, 5], x[:, 7] = 2.0, x[:, 6]  # a constant column, and the same column twice
    y = x[:, :4] @ [3.0, -2.0, 1.0, 0.5] + 4.0 + 0.1 * random.normal(size=300)
    rho = 0.3 if bias else 1.0  # without an intercept, the means of columns correlate
    state, history = solved(Scheduled(l1=0.2, width=16, rho=rho, rounds=400), x, y, bias=bias)
    expected = Lasso(alpha=0.1, fit_intercept=bias, tol=1e-14, max_iter=100_000).fit(x, y)
    w = state["weights"]["weight"].numpy()[0]
    b = float(state["weights"]["bias"]) if bias else 0.0
    assert value(w, b, x, y, 0.2) == pytest.approx(value(expected.coef_, expected.intercept_, x, y, 0.2), abs=1e-10)
    objectives = [row["objective"] for row in history]
    assert objectives[-1] == pytest.approx(value(w, b, x, y, 0.2), abs=1e-10)
    assert all(after <= before + 1e-12 for before, after in pairwise(objectives))
    assert (np.delete(w, [5, 6, 7]) != 0).tolist() == (np.delete(expected.coef_, [5, 6, 7]) != 0).tolist()


def test_weights_of_rows_count():
    algorithm = Scheduled(l1=0.01, rounds=60)
    state, _ = Rounds(algorithm, objective(), seed=3).run(jobs(3))
    rows = data()
    expected = Lasso(alpha=0.005, tol=1e-14, max_iter=100_000).fit(rows["x"], rows["y"], sample_weight=rows["w"])
    np.testing.assert_allclose(state["weights"]["weight"].numpy()[0], expected.coef_, atol=1e-8)


def test_correlated_columns_are_not_updated_together():
    column = np.random.default_rng(0).normal(size=(100, 1))
    x = np.hstack([column, -column, 2 * column])
    _, history = solved(Scheduled(l1=0.01, rho=0.9, rounds=3), x, column[:, 0])
    assert [row["updates"] for row in history] == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": partial(nn.Linear, 4, 2)}, r"the model is Linear\(in_features=4, out_features=2"),
        ({"model": partial(nn.Sequential, nn.Linear(4, 1))}, "expected nn.Linear"),
        ({"loss": nn.L1Loss()}, "the loss is L1Loss"),
    ],
)
def test_other_models_and_losses_raise(settings, message):
    with pytest.raises(InvalidInput, match=message):
        Scheduled(l1=0.1).init(replace(objective(), **settings), 0)


def test_wrong_settings_raise():
    for settings in ({"l1": -1.0}, {"l1": 0.1, "width": 0}, {"l1": 0.1, "rho": -0.1}):
        with pytest.raises(InvalidInput, match="Scheduled"):
            Scheduled(**settings)
