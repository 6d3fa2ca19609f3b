"""Faults of workers and of their disk, at each place of a run: it ends as if nothing had happened."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import psutil
import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput, WorkerFailed, WorkerLost
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.chaos.leavings import nothing_left
from tests.chaos.runs import STEPS, assert_alike, check_checkpoints, check_rows, fit, undisturbed
from tests.faults import PHASES, Fault

pytestmark = pytest.mark.chaos

EPOCHS = 8
WORKERS = 3
OF_RANK_0 = ("manifest", "rename", "renamed")
SERVERS = (*(phase for phase in PHASES if phase != "reduce"), "push", "pull")
KINDS = {
    (Replicated(), AllReduce()): PHASES,
    (Sharded(units=("*",)), AllReduce()): ("forward", *PHASES),
    (Replicated(), ParameterServer()): SERVERS,
}


def places(kind: tuple[Layout, Strategy]) -> list[tuple[str, int]]:
    """Phases and ranks."""
    return [
        (phase, rank)
        for number, phase in enumerate(KINDS[kind])
        for rank in ([0] if phase in OF_RANK_0 else range(number % 2, WORKERS, 2))
    ]


def kills(folder: Path, kind: tuple[Layout, Strategy]) -> list[Fault]:
    """A kill at every place; attempts pass each step that is not done, so that each kill happens."""
    draw = random.Random(20)
    steps = {"decode": (0, 10, 1), "joined": (0, 10, 1), "validation": (STEPS, STEPS * EPOCHS, STEPS)}
    of_checkpoint = dict.fromkeys(("shard", "written", *OF_RANK_0), (2, STEPS * EPOCHS, 2))
    faults = []
    for phase, rank in places(kind):
        first, last, stride = (steps | of_checkpoint).get(phase, (1, STEPS * EPOCHS, 1))
        step = draw.randrange(first, last + 1, stride)
        faults.append(Fault("kill", rank, step, f"{folder}/{phase}-{rank}", phase))
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(type(one).__name__ for one in kind))
def test_run_survives_kill_at_every_place(spool, tmp_path, monkeypatch, kind):
    (layout, strategy), marks, kinds = kind, tmp_path / "marks", len(places(kind))
    marks.mkdir()
    usage = []

    def gang(*arguments, **options):
        usage.append((psutil.Process().num_fds(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        return LocalCluster.gang(cluster, *arguments, **options)

    with nothing_left(), LocalCluster(WORKERS, timeout=60) as cluster:
        supervisor = Supervisor(cluster, back_off=0, max_restarts=kinds)
        monkeypatch.setattr(cluster, "gang", gang)
        trained = fit(supervisor, tmp_path, *kills(marks, kind), epochs=EPOCHS, layout=layout, strategy=strategy)
        monkeypatch.undo()
        assert_alike(trained, undisturbed(cluster, epochs=EPOCHS, layout=layout, strategy=strategy))
    check_rows(tmp_path, WORKERS, EPOCHS)
    check_checkpoints(tmp_path, STEPS * EPOCHS)
    assert len(list(marks.iterdir())) == kinds
    assert {type(failure) for failure in supervisor.failures} == {WorkerLost}
    assert {failure.rank for failure in supervisor.failures} == set(range(WORKERS))
    assert kinds / 2 < len(supervisor.failures) <= kinds  # two kills may end one attempt
    opened, memory = zip(*usage, strict=True)
    assert max(opened[5:]) <= max(opened[:5])  # descriptors of the driver, as each attempt begins
    assert memory[-1] - memory[4] < 64 << 10  # KiB


OTHERS = [
    ("stop", "decode", 0, 0),
    ("stop", "reduce", 1, 7),
    ("fail", "backward", 0, 8),
    ("slow", "shard", 1, 4),
    ("full", "shard", 1, 4),
    ("full", "manifest", 0, 4),
]
OF_SLICES = [
    ("stop", "forward", 1, 7),
    ("stop", "reduce", 1, 7),
    ("fail", "backward", 0, 8),
    ("fail", "validation", 1, 5),
    ("full", "shard", 1, 4),
]
OF_SHARDS = [("kill", "push", 0, 7), ("kill", "pull", 1, 7), ("stop", "push", 1, 8), ("stop", "pull", 0, 7)]
ERRORS = {"stop": WorkerLost, "kill": WorkerLost, "fail": WorkerFailed}
CASES = [
    *((fault, Replicated(), AllReduce()) for fault in OTHERS),
    *((fault, Sharded(units=("*",)), AllReduce()) for fault in OF_SLICES),
    *((fault, Replicated(), ParameterServer()) for fault in OF_SHARDS),
]


@pytest.fixture(scope="module")
def expected(pair):
    return {(layout, strategy): undisturbed(pair, layout=layout, strategy=strategy) for layout, strategy in KINDS}


@pytest.mark.parametrize(
    ("fault", "layout", "strategy"), CASES, ids=lambda one: "-".join(map(str, one)) if isinstance(one, tuple) else None
)
def test_run_survives_fault(pair, expected, tmp_path, fault, layout, strategy):
    (how, phase, rank, step), events = fault, []
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=3)
    mark = Fault(how, rank, step, f"{tmp_path}/mark", phase)
    trained = fit(supervisor, tmp_path, mark, listener=events.append, layout=layout, strategy=strategy)
    assert (tmp_path / "mark").exists()
    failures = [(type(failure), failure.rank) for failure in supervisor.failures]
    assert failures == ([(ERRORS[how], rank)] if how in ERRORS else [])
    troubles = {event.clock["step"]: event.payload["trouble"] for event in events if event.kind == "checkpoint"}
    assert [at for at, trouble in troubles.items() if trouble] == ([step] if how == "full" else [])
    assert how != "full" or "No space left on device" in troubles[step][0]
    assert_alike(trained, expected[layout, strategy])
    check_rows(tmp_path)
    check_checkpoints(tmp_path)


def test_nan_gradients_end_run_and_keep_earlier_checkpoints(pair, tmp_path):
    supervisor = Supervisor(pair, back_off=0)
    with pytest.raises(InvalidInput, match=r"the loss is nan on rank \d at step 7, .*maxGradNorm"):
        fit(supervisor, tmp_path, Fault("nan", 1, 7, f"{tmp_path}/mark", "backward"))
    assert len(supervisor.failures) == 1
    check_checkpoints(tmp_path, 4, 6)  # the checkpoint of step 4 was complete before step 6
