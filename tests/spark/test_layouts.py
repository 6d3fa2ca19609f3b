"""A gang whose workers hold parts of a model loses an executor."""

from __future__ import annotations

import pytest

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerLost
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.sharded import Sharded
from tests.contracts import work
from tests.contracts.layout_contract import assert_close, resumable
from tests.contracts.strategy_contract import Case, numbers
from tests.faults import Fault
from tests.results import merged
from tests.sessions import frame

LAYOUTS = [Sharded(), Pipelined(2, split=("head",))]


@pytest.mark.chaos
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: type(one).__name__)
def test_a_lost_executor_changes_no_bit(spark, tmp_path, layout):
    settings, data, columns = {"batch_size": 10, "model": work.Net}, frame(numbers()).cache(), Case().columns()
    cluster = SparkCluster(spark, 2)
    expected = merged(cluster.gang(resumable(tmp_path / "undisturbed", "momentum", layout, **settings), data, columns))
    fault = Fault("executor", 1, 8, str(tmp_path / "mark"), "reduce")
    training = resumable(tmp_path / "run", "momentum", layout, callbacks=(fault,), **settings)
    supervisor = Supervisor(cluster, back_off=0, max_restarts=1)
    assert_close(merged(supervisor.gang(training, data, columns)), expected, 0)
    assert [(type(one), one.rank) for one in supervisor.failures] == [(WorkerLost, 1)]
