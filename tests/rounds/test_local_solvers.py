"""ConjugateGradient by itself: what rounding makes of it at the solution, and what it refuses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.local_solvers import ConjugateGradient
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective

pytestmark = pytest.mark.usefixtures("one_thread")

FLOATING = {"fp32": "float32", "fp64": "float64"}
each_precision = pytest.mark.parametrize("precision", FLOATING)


def regression(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A noisy line in eleven variables, and what makes rounding larger."""
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(1000, 11)), 0.5 * random.normal(size=1000)
    y = x @ random.normal(size=11)
    return {
        "as it is": (x, y + noise),
        "large targets": (x, 100 * (y + noise)),
        "targets far from 0": (x, y + noise + 1e4),
        "noise alone": (x, 100 * noise),
        "columns of several scales": (x * np.logspace(-2, 1, 11), y + noise),
        "nothing to explain": (x, 0 * y),
    }[kind]


def run(folder, precision: str, loss: nn.Module, x, y, *, parts: int = 1, rounds: int = 60):
    """The state after so many rounds of ADMM that never stops by itself."""
    columns = Columns((InputColumn("x"),), InputColumn("y"), floating=FLOATING[precision])
    objective = Objective(partial(nn.Linear, x.shape[1], 1), loss, precision=precision)
    algorithm = ConsensusADMM(solver=ConjugateGradient(), abs_tol=0, rel_tol=0)
    data = {"x": x.astype(FLOATING[precision]), "y": y.astype(FLOATING[precision])}
    with InlineCluster().map_reduce(data, columns, parts=parts) as jobs:
        state, history = Rounds(algorithm, objective, memories=str(folder), max_rounds=rounds).run(jobs)
    assert len(history) == rounds or algorithm.converged(state)
    return state


@each_precision
@pytest.mark.parametrize("kind", ["as it is", "large targets", "targets far from 0"])
def test_rounds_at_the_solution_itself_are_solved_as_well(tmp_path, precision, kind):
    """With one part and no penalty v becomes the solution, where the gradient is rounding and cannot be reduced."""
    x, y = regression(kind)
    state = run(tmp_path, precision, nn.MSELoss(), x, y)
    expected = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    atol = {"fp32": 1e-4, "fp64": 1e-9}[precision] * max(1.0, float(np.abs(y).max()))
    assert np.allclose(state["weights"]["weight"].flatten().numpy(), expected[:-1], atol=atol)
    assert np.allclose(float(state["weights"]["bias"]), expected[-1], atol=atol)


@each_precision
@pytest.mark.parametrize("kind", ["columns of several scales", "noise alone", "nothing to explain"])
def test_a_quadratic_is_never_refused_for_its_rounding(tmp_path, precision, kind):
    run(tmp_path, precision, nn.MSELoss(), *regression(kind), rounds=40)


LOSSES = {
    "kinks": (nn.L1Loss(), lambda y: y),
    "kinks that are rounded": (nn.SmoothL1Loss(beta=0.01), lambda y: y),
    "a quadratic near 0 only": (nn.HuberLoss(), lambda y: y),
    "logistic": (nn.BCEWithLogitsLoss(), lambda y: (y > 0).astype(float)),
    "exponential": (nn.PoissonNLLLoss(), lambda y: np.floor(np.exp(y / 4))),
}


@each_precision
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", LOSSES)
def test_what_is_not_quadratic_is_refused_in_the_first_round(tmp_path, precision, parts, kind):
    x, y = regression("as it is")
    loss, target = LOSSES[kind]
    with pytest.raises(InvalidInput, match=r"shard \d in round 1: the loss is not quadratic"):
        run(tmp_path, precision, loss, x, target(y), parts=parts, rounds=5)
