"""Gangs in this process and in processes of this machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster import local as module
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.errors import InvalidInput, PeerLost, WorkerFailed, WorkerLost
from sparkdl.telemetry.event import Event
from tests.contracts import work
from tests.contracts.cluster_contract import ClusterContract

ROOT = Path(__file__).resolve().parents[2]
LONG = 30.0  # seconds after which something that should have happened has not


@pytest.fixture(scope="module", params=[1, 2, 4])
def local(request):
    with LocalCluster(request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2, timeout=20.0) as cluster:
        yield cluster


def pids(cluster) -> list[int]:
    return [member["pid"] for member in cluster.gang(work.who)]


def living(processes: Iterable[int]) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]


def wait_for_the_end(processes: Iterable[int]) -> None:
    """Wait until processes that are not this one's children are gone, or nothing but a parent's to bury."""
    for pid in processes:
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with closing(os.fdopen(end)) as file:
            assert select.select([file], [], [], LONG)[0], f"process {pid} does not end"


class TestInlineCluster(ClusterContract):
    @pytest.fixture
    def cluster(self):
        return InlineCluster()

    def test_this_process_is_as_it_was(self, cluster, monkeypatch):
        monkeypatch.setenv("MASTER_ADDR", "outer.invalid")
        monkeypatch.delenv("RANK", raising=False)
        before = dict(os.environ), torch.get_num_threads(), threading.enumerate()
        cluster.gang(work.make_a_mess, {"x": np.zeros(8)})
        with pytest.raises(WorkerFailed):
            cluster.gang(work.Fails(0, ValueError("the milk is sour")))
        assert (dict(os.environ), torch.get_num_threads(), threading.enumerate()) == before
        assert not torch.distributed.is_initialized()

    def test_a_group_that_somebody_needs_is_left_alone(self, cluster):
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            with pytest.raises(InvalidInput, match="destroy its group first"):
                cluster.gang(work.who)
            assert torch.distributed.is_initialized()
        finally:
            torch.distributed.destroy_process_group()

    def test_an_interrupt_is_an_interrupt(self, cluster):
        with pytest.raises(KeyboardInterrupt):
            cluster.gang(work.Fails(0, KeyboardInterrupt()))


class TestLocalCluster(ClusterContract):
    @pytest.fixture
    def cluster(self, local):
        return local

    def test_processes_are_used_again(self, cluster):
        before = pids(cluster)
        assert len({os.getpid(), *before}) == cluster.size + 1
        with pytest.raises(WorkerFailed):
            cluster.gang(work.Fails(0, ValueError("the milk is sour")))
        assert pids(cluster) == before

    @pytest.mark.chaos
    def test_a_member_that_is_killed_is_named_and_replaced(self, cluster):
        before, rank = pids(cluster), cluster.size - 1
        with pytest.raises(WorkerLost, match=rf"rank {rank} \(pid {before[rank]}\) was killed by SIGKILL") as caught:
            cluster.gang(work.Dies(rank), attempt=6)
        assert (caught.value.rank, caught.value.attempt) == (rank, 6)
        after = pids(cluster)
        assert before[rank] not in after
        assert living(before) == [pid for pid in before if pid in after]

    def test_parts_are_taken_as_they_are(self, cluster):
        tables = [pa.table({"x": np.arange(rank * 10.0, rank * 11.0)}) for rank in range(cluster.size)]
        found = cluster.gang(work.rows, [*tables[1:], pa.table({"x": [7.0]})], ["x"])
        assert [part["rows"] for part in found] == [*range(1, cluster.size), 1]
        assert [part["columns"]["x"][0] for part in found] == [*(10.0 * rank for rank in range(1, cluster.size)), 7.0]
        with pytest.raises(InvalidInput, match=f"{cluster.size + 1} tables were given for {cluster.size} members"):
            cluster.gang(work.rows, [*tables, tables[0]], ["x"])

    def test_parts_have_to_fit_together(self, cluster):
        tables = [pa.table({"x": [[0.0] * (2 + rank % 2)]}) for rank in range(cluster.size)]
        if cluster.size == 1:
            pytest.skip("one part fits itself")
        with pytest.raises(InvalidInput, match=r"column 'x' has rows of .* in part 0 and of .* in part 1"):
            cluster.gang(work.rows, tables, ["x"])


# ---- what may happen to processes -------------------------------------------------------------------------------


@pytest.mark.chaos
def test_a_member_that_dies_before_the_gang_has_met(pair):
    before = pids(pair)
    os.kill(before[1], signal.SIGSTOP)  # it will not get as far as its line

    def listener(event: Event) -> None:
        if event.kind == "started":
            os.kill(before[1], signal.SIGKILL)

    with pytest.raises(WorkerLost, match=r"rank 1 .* SIGKILL"):
        pair.gang(work.total, listener=listener)
    assert living(before) == before[:1]
    after = pids(pair)
    assert after[0] == before[0]  # nobody else had to be given up
    assert after[1] != before[1]


@pytest.mark.chaos
def test_a_member_that_dies_between_gangs_is_replaced_without_a_word(pair):
    before = pids(pair)
    os.kill(before[0], signal.SIGKILL)
    wait_for_the_end(before[:1])
    after = pids(pair)
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_member_that_exits_says_how(pair):
    with pytest.raises(WorkerLost, match="exited with code 3"):
        pair.gang(work.Dies(0, None))


@pytest.mark.chaos
def test_an_orphan_cannot_hide_a_death(pair, tmp_path):
    file = tmp_path / "pid"
    try:
        with pytest.raises(WorkerLost, match=r"rank 1 .* SIGKILL"):
            pair.gang(work.Dies(1, orphan=str(file)))
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_member_that_keeps_silent_is_given_up(pair, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 0.5)
    before = pids(pair)
    with pytest.raises(WorkerFailed, match="the milk is sour"):
        pair.gang(
            lambda world, part: (
                signal.pause() if world.rank else work.Fails(0, ValueError("the milk is sour"))(world, part)
            )
        )
    assert living(before) == before[:1]
    assert len(pids(pair)) == 2


def test_gangs_of_several_threads_take_turns(pair):
    with ThreadPoolExecutor(3) as pool:
        gangs = [pool.submit(pair.gang, work.who, attempt=attempt) for attempt in range(6)]
        for attempt, gang in enumerate(gangs):
            assert [(member["rank"], member["attempt"]) for member in gang.result()] == [(0, attempt), (1, attempt)]


@pytest.mark.slow
def test_a_collective_has_a_time_limit():
    with LocalCluster(2) as cluster:
        cluster.gang(work.total)  # a member that comes late is given up too, and new ones import torch
        cluster._timeout = 2.0
        with pytest.raises(PeerLost):
            cluster.gang(lambda world, part: world.all_gather_json(f"alone {world.rank}", {}))
        assert cluster.gang(work.total) == [(3.0, 3.0)] * 2


@pytest.mark.chaos
def test_an_interrupt_ends_the_members(pair):
    before = pids(pair)

    def listener(event: Event) -> None:
        if (event.kind, event.rank) == ("started", 0):  # once: nobody would catch another one
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pair.gang(lambda world, part: signal.pause(), listener=listener)
    assert living(before) == []


def test_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    data = {"x": np.zeros((1000, 10))}
    descriptors = len(os.listdir("/proc/self/fd"))
    cluster = LocalCluster(2)
    members = pids(cluster)
    found = cluster.gang(lambda world, part: os.listdir(os.environ["TMPDIR"]), data)
    assert [name.partition("-")[0] for name in found[0]] == ["sparkdl"]  # the parts; a member's own files have no name
    for way in (work.Fails(1, ValueError("the milk is sour")), work.Dies(1)):
        with pytest.raises((WorkerFailed, WorkerLost)):
            cluster.gang(way, data)
        assert os.listdir(tmp_path) == []
    members += pids(cluster)
    cluster.close()
    assert living(members) == []
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


# ---- scripts ----------------------------------------------------------------------------------------------------

UNGUARDED = """
import os, torch
from sparkdl import LocalCluster

FACTOR = 10

class Doubled:
    def __init__(self, value):
        self.value = 2 * value

def work(world, part):
    total = torch.tensor([float(world.rank + 1)])
    world.group().sum_(total)
    return Doubled(FACTOR * total.item())

with LocalCluster(2) as cluster:
    print([doubled.value for doubled in cluster.gang(work)])
"""

DOOMED = """
import os, sys, time
from sparkdl import LocalCluster

def work(world, part):
    os.write(1, f"{os.getpid()}\\n".encode())
    if world.rank:
        while True:
            pass
    world.all_gather_json("never", {})

LocalCluster(2).gang(work)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_script_needs_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[60.0, 60.0]\n"


@pytest.mark.chaos
def test_members_end_with_their_parent():
    command = [sys.executable, "-c", DOOMED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as parent:
        members = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        wait_for_the_end(members)


# ---- settings --------------------------------------------------------------------------------------------------


def test_settings_are_checked():
    with pytest.raises(InvalidInput, match="LocalCluster of 0 members"):
        LocalCluster(0)
    with pytest.raises(InvalidInput, match=r"1024 GPUs are needed.*there are \d+"):
        LocalCluster(1024, device="cuda")
