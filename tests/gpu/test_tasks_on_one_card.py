"""Tasks of rounds, and members that train in tasks, on one card; `make gpu` runs it, without Spark and Java."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.tasks import Tensors
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.rounds import add
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import LocalSGDSolver
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.prox import L1
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = 600
COLUMNS = Columns(
    (InputColumn("x"),),
    InputColumn("y", "int64"),
    validation=InputColumn("held out", "bool"),
    row_id=InputColumn("id", "int64"),
    client=InputColumn("client", "int64"),
    floating="float64",
)
ON_THE_CARD: dict[str, Any] = {"device": "cuda", "backend": "gloo"}


def table() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    x, ids = draw.standard_normal((ROWS, 20)), np.arange(ROWS)
    y = (x @ draw.standard_normal((20, 4))).argmax(1)
    return {"id": ids, "x": x, "y": y, "held out": ids % 5 == 0, "client": ids % 12}


def net(dropout: float = 0.0) -> nn.Module:
    layers = (nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 4))
    return nn.Sequential(*layers)


LOSS = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0, 4.0]))
STEPS = Objective(net, LOSS, partial(torch.optim.SGD, lr=0.05, momentum=0.9), precision="fp64", max_grad_norm=1.0)
CONVEX = replace(STEPS, model=partial(nn.Linear, 20, 4))
ALGORITHMS: dict[str, tuple[Any, Objective]] = {
    "parallel SGD": (ParallelSGD(epochs=2), STEPS),
    "federated": (FederatedAveraging("client", client_fraction=0.5, epochs=2, prox_mu=0.1, quantize_bits=8), STEPS),
    "ADMM by Newton-CG": (ConsensusADMM(prox=L1(1e-3)), CONVEX),
    "ADMM by SGD": (ConsensusADMM(solver=LocalSGDSolver()), STEPS),
    "L-BFGS": (LBFGS(l2=1e-3), CONVEX),
}


def rounds(
    algorithm: Any, objective: Objective, folder: Path, size: int = 2, columns: Columns = COLUMNS, **options: Any
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    with LocalCluster(size, **options) as cluster, cluster.map_reduce(table(), columns, num_shards=3) as jobs:
        state, history = Rounds(algorithm, objective, 3, memories=str(folder), max_rounds=4).run(jobs)
    return state["weights"], history


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_equal_those_on_the_cpu(name, tmp_path):
    weights, history = rounds(*ALGORITHMS[name], tmp_path / "cpu")
    moved, rows = rounds(*ALGORITHMS[name], tmp_path / "card", **ON_THE_CARD)  # two tasks share the card
    for part, tensor in weights.items():
        torch.testing.assert_close(moved[part], tensor, rtol=1e-6, atol=1e-8)
    assert [row["valid_loss"] for row in rows] == pytest.approx([row["valid_loss"] for row in history], rel=1e-6)


def test_a_repeated_round_with_dropout_is_bit_equal(tmp_path):
    objective = replace(STEPS, model=partial(net, 0.5))
    one, two = (rounds(ParallelSGD(), objective, tmp_path, **ON_THE_CARD)[0] for _ in range(2))
    for name, tensor in one.items():
        assert torch.equal(two[name], tensor), name


@dataclass(frozen=True)
class OnDevice:
    """A work of ``each``: a task on its device."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    reduce = staticmethod(add)


@dataclass(frozen=True)
class Members(OnDevice):
    """Trains a member as ``sparkdl.ensembles.members.task_work`` does, which needs pyspark."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        objective = replace(CONVEX, model=nn.Linear(20, 4, dtype=torch.float64))
        objective.model.load_state_dict({"weight": torch.full((4, 20), 0.1 * state), "bias": torch.zeros(4)})
        trained = Training(objective, 60, 3, seed=state)(World(device=self.device), shard)
        return {}, [row["valid_loss"] for row in trained.history]


@dataclass(frozen=True)
class Reserving(OnDevice):
    """Reserves memory of the card; the note is what the process had reserved before."""

    size: int = 1 << 20

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        before = torch.cuda.memory_reserved(self.device)
        return {"sum": torch.ones(self.size, device=self.device).sum().cpu()}, before


def each(work: Any, indices: Sequence[int], **options: Any) -> list[Any]:
    with LocalCluster(1, **options) as cluster, cluster.map_reduce(table(), COLUMNS) as jobs:
        return list(jobs.each(work, indices, all_rows=True))


def test_members_equal_those_on_the_cpu():
    cpu, card = (each(Members(), range(3), **options) for options in ({}, ON_THE_CARD))
    assert [result.trouble for result in card] == [None] * 3
    for one, other in zip(cpu, card, strict=True):
        assert other.note == pytest.approx(one.note, rel=1e-6)


def test_memory_is_returned_after_a_task():
    assert [result.note for result in each(Reserving(), range(3), **ON_THE_CARD)] == [0, 0, 0]


def test_a_card_without_enough_memory_is_named():
    [result] = each(Reserving(size=1 << 44), [0], **ON_THE_CARD)
    error = result.error("task 0")
    assert isinstance(error, InvalidInput)
    assert "the memory of cuda:0 does not suffice: CUDA out of memory. Let a task take fewer rows" in str(error)
