"""An ensemble loses an executor, and its driver gets SIGTERM: no finished member is trained again."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from sparkdl.cluster.shutdown import TERMINATED
from tests.faults import Fault
from tests.hosts.driving import PATIENCE
from tests.hosts.ensemble_drivers import MEMBERS, bagged, begun, finished
from tests.hosts.test_rounds import SPECULATION

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

# Two executors of one core; a task takes either, so each trains a member from the start. An executor copies
# its packed rows to the other. By default, Spark may list a new executor as a peer a minute late.
SETTINGS = {"cores__max": "2", "executor__cores": "1", "locality__wait": "0s", "storage__cachedPeersTtl": "100"}


def test_ensemble_resumes_after_lost_executor_and_sigterm(cluster, tmp_path):
    run, done = tmp_path / "run", {0, 1, 2, 4, 5}
    # Members 3 and 6 wait, one in each executor: all members before them and between them are finished.
    lost, *held = [
        Fault(how, member, 3, f"{tmp_path}/{how}-{member}", "batch")
        for how, member in (("executor", 1), ("hold", 3), ("hold", 6))
    ]
    driver = cluster.driver(**SETTINGS).call(bagged, tmp_path, run, [*map(asdict, [lost, *held])])
    for fault in held:
        driver.until(Path(fault.mark).exists, f"member {fault.rank}", timeout=PATIENCE)
    driver.until(lambda: finished(run) == done, "the members that are finished")
    assert Path(lost.mark).exists()
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.code() == TERMINATED
    assert "stopped: the run was asked to stop (the driver got SIGTERM)" in driver.output
    assert "ended now" not in driver.output
    cluster.nothing_left()
    assert finished(run) == done

    # Member 7 waits until a speculative task trains it as well; it counts once.
    twice = Fault("hold", 7, 3, f"{tmp_path}/twice", "batch")
    driver = cluster.driver(**SETTINGS | SPECULATION)
    found = driver.call(bagged, tmp_path, run, [asdict(twice)]).result()
    assert (found["trained"], found["restored"]) == ([3, 6, 7], sorted(done))
    assert not Path(f"{twice.mark}.late").exists()
    times = [len(begun(tmp_path, member)) for member in range(MEMBERS)]
    assert [times[member] for member in (0, 1, 2, 4, 5)] == [1, 2, 1, 1, 1]
    assert len(set(begun(tmp_path, 7))) == 2
    quiet = driver.call(bagged, tmp_path / "quiet", None).result()
    assert found["weights"] == quiet["weights"]
    assert len(set(quiet["weights"])) == MEMBERS
    cluster.gang_gone()
