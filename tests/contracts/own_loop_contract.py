"""What users' own loops can rely on in a gang of any cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.errors import WorkerFailed
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import own_loops, work
from tests.contracts.strategy_contract import Case, assert_equal, numbers


class OwnLoopContract:
    """A concrete class has a fixture ``cluster``, of two workers."""

    def make_data(self, arrays: dict[str, np.ndarray]) -> Any:
        """Arrays ``[rows, ...]`` as the cluster takes them; on Spark a DataFrame."""
        return arrays

    def test_collectives_of_torch_work(self, cluster):
        size, found = cluster.size, cluster.gang(own_loops.collectives)
        ranks = range(size)
        for rank, worker in enumerate(found):
            assert worker["summed"] == [size * (size + 1) / 2]
            assert worker["largest"] == worker["sent to all"] == [size]
            assert worker["gathered"] == [other + 1.0 for other in ranks]
            assert worker["objects"] == [{"rank": other} for other in ranks]
            assert worker["dealt out"] == [sum(10.0 * other + rank for other in ranks)]
            assert worker["from the left"] == [(rank - 1) % size + 1.0]
        assert found[0]["of the first alone"] == [1.0]

    def test_ddp_takes_steps_of_all_reduce(self, cluster):
        case, data = Case(batch_size=7, weight="weight"), self.make_data(numbers())
        training = case.training(AllReduce())
        ours = cluster.gang(work.Fit(training), data, case.columns())
        theirs = cluster.gang(own_loops.Ddp(training, weighted=True), data, case.columns())
        for own, ddp in zip(ours, theirs, strict=True):
            assert ddp["steps"] == 7 * training.epochs
            assert_equal(ddp["parameters"], own["parameters"], 1e-12)
        assert own_loops.same(theirs[0]["parameters"], theirs[-1]["parameters"])

    def test_ddp_failure_names_rank(self, cluster):
        case, data, rank = Case(batch_size=7), self.make_data(numbers()), 1
        with pytest.raises(WorkerFailed, match="ArithmeticError: stumbled over a row") as caught:
            cluster.gang(own_loops.Ddp(case.training(AllReduce()), stumbles=rank), data, case.columns())
        assert caught.value.rank == rank
        assert "own_loops.py" in caught.value.trace
        assert cluster.gang(work.total) == [(3.0, 3.0)] * 2

    def test_lightning_fabric_trains(self, cluster):
        pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed")
        case = Case(precision="fp32")
        found = cluster.gang(own_loops.Fabric(), self.make_data(numbers()), case.columns())
        assert [(worker["rank"], worker["size"], worker["rows"]) for worker in found] == [(0, 2, 48), (1, 2, 48)]
        assert own_loops.same(found[0]["parameters"], found[1]["parameters"])
        start = work.arrays(dict(work.Seeded(work.Net)().named_parameters()))
        assert not own_loops.same(found[0]["parameters"], start)
        assert cluster.gang(work.total) == [(3.0, 3.0)] * 2
