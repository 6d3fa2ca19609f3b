"""Faults of workers that hold parts or stages of a model: the run ends as if nothing had happened."""

from __future__ import annotations

import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerFailed, WorkerLost
from sparkdl.training.layouts.mesh import Mesh
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.tensor_parallel import TensorParallel
from tests.chaos.leavings import nothing_left
from tests.contracts import work
from tests.contracts.layout_contract import HELD, HELD_COLUMNS, assert_close, resumable, resume
from tests.contracts.strategy_contract import Case, numbers
from tests.faults import Fault
from tests.results import merged
from tests.training.layouts.test_table import WithTables

pytestmark = pytest.mark.chaos

PAIRS = {"hidden": "columns", "head": "rows"}
TENSOR, STAGES = TensorParallel(2, PAIRS), Pipelined(2, split=("head",))
STEPS = 5  # of an epoch
MESHES = Mesh(Sharded(), TENSOR), Mesh(STAGES, TENSOR)
# A worker of a pipeline never calls the whole module, and the first layer alone has a gradient to watch.
ON_TENSOR = "kill forward 1, fail backward 0, kill reduce 0, kill validation 1, kill shard 1"
ON_STAGES = "kill backward 0, fail backward 0, kill reduce 1, kill validation 0, kill shard 1"
ON_TABLES = "kill forward 1, kill reduce 0, kill shard 1"
FAULTS = [
    (layout, fault)
    for layout, faults in ((TENSOR, ON_TENSOR), (STAGES, ON_STAGES), (Replicated(), ON_TABLES))
    for fault in faults.split(", ")
]


def name(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def settings_of(layout):
    return {"batch_size": 10, "model": WithTables if isinstance(layout, Replicated) else work.Net}


@pytest.fixture(scope="module")
def undisturbed(pair, tmp_path_factory):
    """The weights of a run to which nothing happens, by the type of its layout."""
    folder, found = tmp_path_factory.mktemp("undisturbed"), {}
    for layout in (TENSOR, STAGES, Replicated()):
        run = resumable(folder / name(layout), "AdamW", layout, **settings_of(layout))
        found[type(layout)] = merged(pair.gang(run, HELD, HELD_COLUMNS))
    return found


@pytest.mark.parametrize(("layout", "fault"), FAULTS, ids=name)
def test_a_run_survives_a_fault_of_a_partner(pair, undisturbed, tmp_path, layout, fault):
    how, phase, rank = fault.split()
    step = STEPS if phase == "validation" else STEPS + 3
    callbacks = (Fault(how, int(rank), step, str(tmp_path / "mark"), phase),)
    training = resumable(tmp_path / "run", "AdamW", layout, callbacks=callbacks, **settings_of(layout))
    supervisor = Supervisor(pair, back_off=0, max_restarts=1, heartbeat_timeout=5)
    actual = merged(supervisor.gang(training, HELD, HELD_COLUMNS))
    assert (tmp_path / "mark").exists()
    failures = [(type(one), one.rank) for one in supervisor.failures]
    assert failures == [(WorkerLost if how == "kill" else WorkerFailed, int(rank))]
    assert_close(actual, undisturbed[type(layout)], 0)


@pytest.mark.parametrize("layout", MESHES, ids=lambda one: type(one.outer).__name__)
def test_a_mesh_survives_a_kill(tmp_path, layout):
    settings = {"batch_size": 10, "model": work.Net}
    with nothing_left(), LocalCluster(4, timeout=60) as four:
        expected = resume(four, resumable(tmp_path / "undisturbed", "AdamW", layout, **settings))
        fault = Fault("kill", 2, 8, str(tmp_path / "mark"), "reduce")
        supervisor = Supervisor(four, back_off=0, max_restarts=1)
        training = resumable(tmp_path / "run", "AdamW", layout, callbacks=(fault,), **settings)
        assert_close(merged(supervisor.gang(training, numbers(), Case().columns())), expected, 0)
    assert [(type(one), one.rank) for one in supervisor.failures] == [(WorkerLost, 2)]
