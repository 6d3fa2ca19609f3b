"""Convex problems on real data, against the optima that scikit-learn and scipy find."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.local_solvers import ConjugateGradient
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.prox import L1, L2, Box, ElasticNet
from sparkdl.training.objective import Objective
from tests.rounds.data import a9a, diabetes

pytestmark = pytest.mark.usefixtures("one_thread")

COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"), floating="float64")
each_count = pytest.mark.parametrize("parts", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 16))])


def linear(algorithm, loss, x, y, parts, folder):
    """Coefficients, intercept and history of a linear model; the algorithm stops by itself."""
    objective = Objective(partial(nn.Linear, x.shape[1], 1), loss, precision="fp64")
    data = {"x": x, "y": y, "id": np.arange(len(y))}
    with InlineCluster().map_reduce(data, COLUMNS, parts=parts) as jobs:
        state, history = Rounds(algorithm, objective, memories=str(folder), max_rounds=500).run(jobs)
    assert algorithm.converged(state), f"not done after {len(history)} rounds: {history[-1]}"
    return state["weights"]["weight"][0].numpy(), float(state["weights"]["bias"]), history


def squares(prox, parts, folder, x, y):
    """By ADMM, to more digits than its defaults give."""
    algorithm = ConsensusADMM(prox=prox, solver=ConjugateGradient(), abs_tol=1e-8, rel_tol=1e-6)
    return linear(algorithm, nn.MSELoss(), x, y, parts, folder)


@each_count
def test_ridge(tmp_path, parts):
    """The squares are averaged, and scikit-learn's are summed."""
    x, y = diabetes()
    found, intercept, _ = squares(L2(0.02), parts, tmp_path, x, y)
    expected = Ridge(alpha=0.01 * len(y), tol=1e-12).fit(x, y)
    assert np.abs(found - expected.coef_).max() < 1e-4
    assert abs(intercept - expected.intercept_) < 1e-4


@each_count
def test_lasso(tmp_path, parts):
    """Scikit-learn's squares are halved."""
    x, y = diabetes()
    found, intercept, _ = squares(L1(0.1), parts, tmp_path, x, y)
    expected = Lasso(alpha=0.05, tol=1e-12, max_iter=100_000).fit(x, y)
    assert 0 < np.count_nonzero(expected.coef_) < len(expected.coef_)
    assert ((found == 0) == (expected.coef_ == 0)).all()
    assert np.abs(found - expected.coef_).max() < 1e-4
    assert abs(intercept - expected.intercept_) < 1e-4


def test_elastic_net(tmp_path):
    x, y = diabetes()
    found, _, _ = squares(ElasticNet(0.1, 0.7), 4, tmp_path, x, y)
    expected = SklearnElasticNet(alpha=0.05, l1_ratio=0.7, tol=1e-12, max_iter=100_000).fit(x, y)
    assert np.abs(found - expected.coef_).max() < 1e-4


def test_coefficients_between_bounds(tmp_path):
    x, y = diabetes()
    found, _, _ = squares(Box(0.0, 0.2), 4, tmp_path, x, y)
    expected = lsq_linear(x - x.mean(0), y - y.mean(), bounds=(0.0, 0.2), tol=1e-14).x
    assert found.min() == 0.0
    assert found.max() == 0.2
    assert np.abs(found - expected).max() < 1e-4


# ---- logistic regression on a9a ---------------------------------------------------------------------------------

STRENGTH = 1e-3


def cost(w, b):
    """The mean loss with its penalty."""
    x, y = a9a()
    z = x @ w + b
    return float(np.mean(np.logaddexp(0.0, z) - y * z) + STRENGTH / 2 * w @ w)


@pytest.fixture(scope="module")
def optimum():
    x, y = a9a()
    found = LogisticRegression(C=1 / (STRENGTH * len(y)), solver="newton-cholesky", tol=1e-12, max_iter=200).fit(x, y)
    return cost(found.coef_[0], float(found.intercept_[0]))


def logistic(algorithm, parts, folder):
    x, y = a9a()
    return linear(algorithm, nn.BCEWithLogitsLoss(), x, y, parts, folder)


@each_count
def test_logistic_regression_by_lbfgs(tmp_path, optimum, parts):
    w, b, history = logistic(LBFGS(l2=STRENGTH), parts, tmp_path)
    assert abs(cost(w, b) / optimum - 1) < 1e-6
    assert history[-1]["objective"] == pytest.approx(cost(w, b), rel=1e-9)
    values = [row["objective"] for row in history]
    assert values == sorted(values, reverse=True)
    assert len(history) < 150


@each_count
def test_logistic_regression_by_admm(tmp_path, optimum, parts):
    """With its defaults it stops by itself, after some twenty rounds for each number of parts."""
    w, b, history = logistic(ConsensusADMM(prox=L2(STRENGTH)), parts, tmp_path)
    assert abs(cost(w, b) / optimum - 1) < 1e-4
    assert len(history) < 50
