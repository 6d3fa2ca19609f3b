"""Users' own loops in local processes; the example on executors is in ``tests/references``."""

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.errors import WorkerFailed
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import own_loops, work
from tests.contracts.strategy_contract import Case, assert_equal, numbers


@pytest.mark.parametrize(("first", "weight"), [(24, "weight"), (3, None), (0, None)])
def test_ddp_takes_steps_of_all_reduce(pair, first, weight):
    case = Case(batch_size=7, weight=weight)
    whole, training = pa.table({name: array.tolist() for name, array in numbers().items()}), case.training(AllReduce())
    shards = [whole.slice(0, first), whole.slice(first)]
    ours = pair.gang(work.Fit(training), shards, case.columns())
    theirs = pair.gang(own_loops.Ddp(training, weighted=weight is not None), shards, case.columns())
    for own, ddp in zip(ours, theirs, strict=True):
        assert ddp["steps"] == 7 * training.epochs
        assert_equal(ddp["parameters"], own["parameters"], 1e-12)
    assert_equal(theirs[0]["parameters"], theirs[1]["parameters"])
    assert all(np.isfinite(array).all() for array in theirs[0]["parameters"].values())


def test_ddp_failure_names_rank(pair):
    case = Case(batch_size=7)
    for _ in range(6):  # if DDP's reducer held the last reference to the group, a third of the workers froze
        with pytest.raises(WorkerFailed, match="ArithmeticError: stumbled over a row") as caught:
            pair.gang(own_loops.Ddp(case.training(AllReduce()), stumbles=1), numbers(), case.columns())
    assert caught.value.rank == 1
    assert "own_loops.py" in caught.value.trace
    assert pair.gang(work.total) == [(3.0, 3.0)] * 2


@pytest.mark.slow
def test_lightning_fabric_trains(pair):
    pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed")
    workers = pair.gang(own_loops.Fabric(), numbers(), Case(precision="fp32").columns())
    assert [(worker["rank"], worker["size"], worker["rows"]) for worker in workers] == [(0, 2, 48), (1, 2, 48)]
    assert_equal(workers[0]["parameters"], workers[1]["parameters"])
    start = work.arrays(dict(work.Seeded(work.Net)().named_parameters()))
    assert any(not np.array_equal(workers[0]["parameters"][name], array) for name, array in start.items())
    assert pair.gang(work.total) == [(3.0, 3.0)] * 2
