"""A member goes, at every place of a run: another one takes its part, and the run ends as if nothing had been."""

from __future__ import annotations

import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput, WorkerFailed, WorkerLost
from tests.chaos.leavings import nothing_left
from tests.chaos.runs import STEPS, check_checkpoints, check_rows, fit, undisturbed
from tests.faults import Fault
from tests.training.test_resume import assert_alike

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

KILLS = [
    *[("decode", rank, 0) for rank in (0, 1)],
    *[("joined", rank, 0) for rank in (0, 1)],
    *[("feed", rank, 4) for rank in (0, 1)],
    *[("backward", rank, 5) for rank in (0, 1)],
    *[("reduce", rank, 7) for rank in (0, 1)],
    *[("step", rank, 1 + 2 * rank) for rank in (0, 1)],
    *[("validation", rank, STEPS) for rank in (0, 1)],
    *[("shard", rank, 4) for rank in (0, 1)],
    *[("written", rank, 2 * STEPS) for rank in (0, 1)],
    *[(phase, 0, 6) for phase in ("manifest", "rename", "renamed")],
]


def outlives(cluster, folder, whole, fault, expected):
    """The fault costs one attempt and nothing else."""
    supervisor = Supervisor(cluster, back_off=0, heartbeat_timeout=3)
    found = fit(supervisor, folder, fault)
    (failure,) = supervisor.failures
    assert isinstance(failure, expected), failure
    assert failure.rank == fault.rank
    assert_alike(found, whole)
    check_rows(folder, cluster.size)
    check_checkpoints(folder)


@pytest.mark.parametrize(("phase", "rank", "step"), KILLS)
def test_a_member_is_killed(pair, whole, tmp_path, phase, rank, step):
    outlives(pair, tmp_path, whole, Fault("kill", rank, step, str(tmp_path / "mark"), phase), WorkerLost)


@pytest.mark.parametrize(
    ("phase", "rank", "step"), [("decode", 0, 0), ("reduce", 1, 7), ("shard", 1, 4), ("feed", 0, 8)]
)
def test_a_member_is_stopped_for_longer_than_the_timeout(pair, whole, tmp_path, phase, rank, step):
    outlives(pair, tmp_path, whole, Fault("stop", rank, step, str(tmp_path / "mark"), phase), WorkerLost)


@pytest.mark.parametrize(("phase", "rank", "step"), [("joined", 1, 0), ("feed", 1, 3), ("backward", 0, 8)])
def test_a_member_fails_once(pair, whole, tmp_path, phase, rank, step):
    outlives(pair, tmp_path, whole, Fault("fail", rank, step, str(tmp_path / "mark"), phase), WorkerFailed)


@pytest.mark.parametrize("phase", ["feed", "backward", "validation", "shard"])
def test_a_slow_member_is_waited_for(pair, whole, tmp_path, phase):
    fault = Fault("slow", 1, 10 if phase == "validation" else 4, str(tmp_path / "mark"), phase)
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=3)
    found = fit(supervisor, tmp_path, fault)
    assert (tmp_path / "mark").exists()
    assert supervisor.failures == []
    assert_alike(found, whole)
    check_rows(tmp_path)


def test_gradients_that_are_nan_end_the_run_and_spare_the_checkpoints_before(pair, tmp_path):
    supervisor = Supervisor(pair, back_off=0)
    with pytest.raises(InvalidInput, match=r"the loss is nan on rank \d at step 7, .*maxGradNorm"):
        fit(supervisor, tmp_path, Fault("nan", 1, 7, str(tmp_path / "mark"), "backward"))
    assert len(supervisor.failures) == 1
    check_checkpoints(tmp_path, 4, 6)  # that of step 4 was whole before that of step 6 began


def test_three_members_of_which_two_go(spool, tmp_path):
    with nothing_left(), LocalCluster(3, timeout=60) as cluster:
        supervisor = Supervisor(cluster, back_off=0)
        first = Fault("kill", 2, 4, str(tmp_path / "first"), "feed")
        second = Fault("kill", 1, 8, str(tmp_path / "second"), "reduce")
        found = fit(supervisor, tmp_path, first, second)
        assert [failure.rank for failure in supervisor.failures] == [2, 1]
        assert_alike(found, undisturbed(cluster))
    check_rows(tmp_path, 3)
    check_checkpoints(tmp_path)
