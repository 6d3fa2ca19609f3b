"""``ConjugateGradient`` at the solution, where gradients are rounding errors, and on losses that are not quadratic."""

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

FLOATING = {"fp32": "float32", "fp64": "float64"}
each_precision = pytest.mark.parametrize("precision", FLOATING)


SLOW = "columns of several scales"  # 60 rounds do not reach this solution; they raise nothing
LARGER = ["large targets", "targets far from 0", "noise alone", "constant targets", SLOW]


def regression(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Eleven variables with a noisy linear target; ``LARGER`` kinds enlarge the rounding errors."""
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(1000, 11)), 0.5 * random.normal(size=1000)
    y = x @ random.normal(size=11)
    return {
        "plain": (x, y + noise),
        "large targets": (x, 100 * (y + noise)),
        "targets far from 0": (x, y + noise + 1e4),
        "noise alone": (x, 100 * noise),
        SLOW: (x * np.logspace(-2, 1, 11), y + noise),
        "constant targets": (x, 0 * y),
    }[kind]


def run(folder, precision: str, loss: nn.Module, x, y, *, shards: int = 1, rounds: int = 60, model=None):
    """The weights after this many rounds of ADMM without tolerances."""
    columns = Columns((InputColumn("x"),), InputColumn("y"), floating=FLOATING[precision])
    objective = Objective(model or partial(nn.Linear, x.shape[1], 1), loss, precision=precision)
    algorithm = ConsensusADMM(solver=ConjugateGradient(), abs_tol=0, rel_tol=0)
    data = {"x": x.astype(FLOATING[precision]), "y": y.astype(FLOATING[precision])}
    with InlineCluster().map_reduce(data, columns, num_shards=shards) as jobs:
        state, history = Rounds(algorithm, objective, memories=str(folder), max_rounds=rounds).run(jobs)
    assert len(history) == rounds or algorithm.converged(state)
    return state["weights"]


@each_precision
@pytest.mark.parametrize("kind", ["plain", *LARGER])
def test_rounds_at_the_solution_stay_there(tmp_path, precision, kind):
    """With one shard and no penalty, v becomes the solution."""
    x, y = regression(kind)
    weights = run(tmp_path, precision, nn.MSELoss(), x, y)
    expected = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    atol = {"fp32": 1e-4, "fp64": 1e-9}[precision] * max(1.0, float(np.abs(y).max()))
    solution = np.append(weights["weight"].flatten().numpy(), float(weights["bias"]))
    assert kind == SLOW or np.allclose(solution, expected, atol=atol)


@each_precision
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.L1Loss(), lambda y: y),
        (nn.SmoothL1Loss(beta=0.01), lambda y: y),
        (nn.HuberLoss(), lambda y: y),
        (nn.BCEWithLogitsLoss(), lambda y: (y > 0).astype(float)),
        (nn.PoissonNLLLoss(), lambda y: np.floor(np.exp(y / 4))),
    ],
    ids=str,
)
def test_loss_that_is_not_quadratic_raises_in_first_round(tmp_path, precision, shards, loss, target):
    x, y = regression("plain")
    with pytest.raises(InvalidInput, match=r"shard \d in round 1: the loss is not quadratic .* solver=NewtonCG\(\)"):
        run(tmp_path, precision, loss, x, target(y), shards=shards, rounds=5)


def test_network_raises_in_first_round(tmp_path):
    """It was a RuntimeError of torch: the first graphs were used after the parameters had changed."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(11, 3), nn.Linear(3, 1))

    with pytest.raises(InvalidInput, match=r"shard \d in round 1: the loss is not quadratic"):
        run(tmp_path, "fp64", nn.MSELoss(), *regression("plain"), model=network)
