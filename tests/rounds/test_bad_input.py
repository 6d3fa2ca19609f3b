"""What cannot work is said with the part and the round where it was seen; what is merely odd works."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, dealt
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_state
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective
from tests.contracts.algorithm_contract import COLUMNS, data, objective, states

ALGORITHMS = [
    ParallelSGD(),
    LBFGS(),
    ConsensusADMM(solver=NewtonCG()),
    ConsensusADMM(solver=ConjugateGradient()),
    ConsensusADMM(solver=LocalSGDSolver()),
]
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)


def tables(**columns: np.ndarray) -> list[pa.Table]:
    """The data in three tables, with other columns."""
    table = pa.table({name: list(array) for name, array in (data() | columns).items()})
    return [table.slice(0, 30), table.slice(30, 30), table.slice(60, 30)]


@each_algorithm
def test_a_loss_that_is_not_finite_names_the_part_and_the_round(algorithm, tmp_path):
    x = data()["x"]
    x[70] = 1e200  # its square is infinite
    jobs = InlineTaskRunner(dealt(tables(x=x), COLUMNS, 3))
    with pytest.raises(InvalidInput, match=r"shard 2 in round 1: .*not finite"):
        Rounds(algorithm, objective(), memories=str(tmp_path), max_rounds=3).run(jobs)


@pytest.mark.parametrize(
    "algorithm", [ParallelSGD(shard_batch_size=8), ConsensusADMM(solver=LocalSGDSolver(batch_size=8))], ids=str
)
def test_a_rate_that_is_too_large_names_the_part_and_the_round(algorithm, tmp_path):
    wild = Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), partial(torch.optim.SGD, lr=1e200), precision="fp64")
    jobs = InlineTaskRunner(dealt(tables(), COLUMNS, 3))
    with pytest.raises(InvalidInput, match=r"shard 0 in round 1: .*not finite; lower the learning rate"):
        Rounds(algorithm, wild, memories=str(tmp_path), max_rounds=3).run(jobs)


@pytest.mark.parametrize(
    ("algorithm", "name", "rate"),
    [
        (ParallelSGD(shard_batch_size=100), "weights/weight", 1e250),
        (FederatedAveraging("client", client_fraction=1.0, batch_size=100), "apart", 1e250),
        (
            ConsensusADMM(solver=LocalSGDSolver(batch_size=100)),
            "apart2",
            1e100,
        ),  # a square, too large sooner than its root
    ],
    ids=["averaging", "federated", "admm"],
)
def test_a_result_that_is_not_finite_names_the_part_and_the_round(algorithm, name, rate, tmp_path):
    """A part takes one step, before which its loss is finite; the labels of one part make it too long."""
    y = data()["y"]
    y[60:] *= 1e100
    wild = Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), partial(torch.optim.SGD, lr=rate), precision="fp64")
    jobs = InlineTaskRunner(dealt(tables(y=y), COLUMNS, 3))
    with pytest.raises(InvalidInput, match=f"shard 2 in round 1: {name} is not finite; lower the learning rate"):
        Rounds(algorithm, wild, memories=str(tmp_path), max_rounds=3).run(jobs)


@each_algorithm
def test_rows_that_all_weigh_nothing_are_refused(algorithm, tmp_path):
    jobs = InlineTaskRunner(dealt(tables(w=np.zeros(90)), COLUMNS, 3))
    with pytest.raises(InvalidInput, match="no row weighs anything"):
        Rounds(algorithm, objective(), memories=str(tmp_path), max_rounds=3).run(jobs)


@each_algorithm
def test_a_part_whose_rows_weigh_nothing_counts_nothing(algorithm, tmp_path):
    w = data()["w"]
    w[60:] = 0.0
    found = dealt(tables(w=w), COLUMNS, 3)
    whole = Rounds(algorithm, objective(), memories=str(tmp_path / "all"), max_rounds=4).run(InlineTaskRunner(found))[0]
    two = dealt(tables(w=w)[:2], COLUMNS, 2)
    state = Rounds(algorithm, objective(), memories=str(tmp_path / "two"), max_rounds=4).run(InlineTaskRunner(two))[0]
    for name, tensor in state["weights"].items():
        assert torch.allclose(tensor, whole["weights"][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [
        ParallelSGD(rounds=200, shard_batch_size=8),
        LBFGS(history_size=5, gtol=0.0, ftol=0.0),
        ConsensusADMM(solver=ConjugateGradient(), abs_tol=0.0, rel_tol=0.0),
        FederatedAveraging("client", client_fraction=0.5, rounds=200, batch_size=8, momentum=0.9),
    ],
    ids=str,
)
def test_two_hundred_rounds_keep_the_state_as_large_as_it_is(algorithm):
    """The columns differ by a factor of ten thousand, which L-BFGS is not done with by then."""
    random = np.random.default_rng(1)
    x = random.normal(size=(24, 12)) * np.logspace(-3, 1, 12)
    table = {"x": x, "y": random.normal(size=24), "w": np.ones(24), "client": np.arange(24) % 6}
    wanted = Objective(partial(nn.Linear, 12, 1), nn.MSELoss(), partial(torch.optim.SGD, lr=1e-4), precision="fp64")
    found = states(algorithm, dealt(table, COLUMNS, 2), 200, wanted)
    if isinstance(algorithm, LBFGS):
        assert not algorithm.converged(found[-1])
    sizes = [len(pack_state(state)) for state in found[20:]]
    # The best point that L-BFGS has seen is the iterate, or another one that is packed beside it.
    assert max(sizes[80:]) <= 1.1 * max(sizes[:80])
