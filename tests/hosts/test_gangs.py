"""Gangs on two hosts: how workers meet, which directories they accept, and what they survive."""

import os
import signal

import pytest

from benchmarks.hosts import ended, until
from tests.chaos.runs import STEPS, check_checkpoints, check_rows, logged
from tests.hosts import drivers

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


def test_workers_meet_between_two_addresses(cluster):
    found = cluster.driver().call(drivers.meet).result()
    one, two = cluster.workers
    assert {worker["host"] for worker in found["workers"]} == {"one", "two"}
    assert [(worker["rank"], worker["local_rank"]) for worker in found["workers"]] == [(0, 0), (1, 0)]
    for worker in found["workers"]:
        own, other = (one, two) if worker["host"] == "one" else (two, one)
        assert other.address in worker["connected"]
        # Spark's JVM and its Python worker use loopback.
        assert set(worker["connected"]) <= {cluster.head.address, own.address, other.address, "127.0.0.1"}
    rank, host = found["failed"]
    assert (rank, host in {"one", "two"}) == (1, True)
    cluster.gang_gone()


def test_fit_needs_shared_directory(cluster):
    own = cluster.hosts.local / "run"
    error = cluster.driver().call(drivers.fit, own).result()
    one, two = error.find("rank 0 on"), error.find("rank 1 on")
    assert f"{own}/checkpoints is not one directory for all workers" in error
    assert "cannot read what rank 0 on" in error
    assert "Set runDir to a directory that all hosts share" in error
    assert {error[at + 10 : at + 13] for at in (one, two)} == {"one", "two"}


# ---- what a run survives ---------------------------------------------------------------------------------------------

HELD = 5  # the step after which harm is done; the newest checkpoint is that of step 4
LAST = 2 * STEPS


@pytest.fixture(scope="module")
def undisturbed(two_hosts):
    two_hosts.heal()
    found = two_hosts.driver().call(drivers.fit, two_hosts.shared / "undisturbed").result()
    assert found["failures"] == []
    return found


def start(cluster, folder, rank):
    """Begin a run; returns when a worker waits at step ``HELD``, with its host and pid."""
    mark = folder.with_name("mark")
    driver = cluster.driver().call(drivers.fit, folder, "hold", rank, HELD, mark)
    driver.until(lambda: mark.exists() and mark.read_text(), f"step {HELD}")
    host, pid = mark.read_text().split()
    return driver, cluster.hosts[host], int(pid)


def assert_undisturbed(found, expected, folder):
    """The bits of a run to which nothing happened; it resumed, and no file is left of a checkpoint that was cut off."""
    assert (found["weights"], found["history"]) == (expected["weights"], expected["history"])
    assert [line["step"] for line in logged(folder, 0)] == [*range(1, HELD + 1), *range(HELD, LAST + 1)]
    check_rows(folder)
    check_checkpoints(folder)
    assert [path for path in folder.rglob("*") if path.name.endswith(".tmp")] == []
    assert all((path / "manifest.json").exists() for path in folder.glob("checkpoints/attempt-*"))


def kill_spark_worker(cluster, host, go):
    """Its executors end with it, and Spark starts others on the other host."""
    os.kill(cluster.daemon(host), signal.SIGKILL)


def pull_cable(cluster, host, go):
    """Its processes continue, but nobody hears from them."""
    cluster.unplug(host)
    go.touch()


@pytest.mark.parametrize(
    ("harm", "rank", "message"),
    [(kill_spark_worker, 0, "Spark lost a worker of the gang"), (pull_cable, 1, "sent nothing for")],
)
def test_run_survives(cluster, tmp_path, undisturbed, harm, rank, message):
    folder = tmp_path / "run"
    driver, host, _ = start(cluster, folder, rank)
    harm(cluster, host, tmp_path / "mark.go")
    found = driver.result()
    assert_undisturbed(found, undisturbed, folder)
    (kind, lost, name, text), *more = found["failures"]
    assert (kind, lost, name) == ("WorkerLost", rank, host.name)
    assert message in text
    # Until Spark gives up a silent host, it may send the next attempt there.
    assert [(kind, lost) for kind, lost, *_ in more] in ([], [("WorkerLost", rank)])
    last = {line["host"] for each in (0, 1) for line in logged(folder, each) if line["step"] == LAST}
    assert last == {other.name for other in cluster.workers} - {host.name}
    cluster.nothing_left(host)
    cluster.gang_gone()


def test_next_driver_resumes_after_a_kill(cluster, tmp_path, undisturbed):
    folder = tmp_path / "run"
    driver, _, pid = start(cluster, folder, 1)
    driver.kill()
    cluster.nothing_left()
    until(lambda: ended(pid), "the end of a worker")
    found = cluster.driver().call(drivers.fit, folder).result()
    assert found["failures"] == []
    assert_undisturbed(found, undisturbed, folder)
    cluster.gang_gone()
