"""Gangs and rounds in this process and in processes of this machine. Workers that die in a run: tests/chaos."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster import local as module
from sparkdl.cluster import worker_process
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.cluster.worker_process import WorkerProcess, wait_for
from sparkdl.cluster.zygote import limit
from sparkdl.errors import InvalidInput, PeerLost, Stopped, WorkerFailed, WorkerLost
from sparkdl.io.pickling import ship
from sparkdl.telemetry.event import Event
from tests.contracts import work
from tests.contracts.cluster_contract import ClusterContract
from tests.contracts.map_reduce_contract import LossContract, MapReduceContract, Sums, Whole
from tests.sessions import ROOT

SOUR = ValueError("the milk is sour")


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    with LocalCluster(2, timeout=20.0) as cluster:
        yield cluster


def pids(cluster) -> list[int]:
    return [worker["pid"] for worker in cluster.gang(work.who)]


def living(processes: list[int]) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]


class TestInlineCluster(ClusterContract, MapReduceContract):
    @pytest.fixture
    def cluster(self):
        return InlineCluster()

    def test_foreign_process_group_is_kept(self, cluster):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            with pytest.raises(InvalidInput, match="destroy its group first"):
                cluster.gang(work.who)
            assert torch.distributed.is_initialized()
        finally:
            torch.distributed.destroy_process_group()

    def test_interrupt_is_raised(self, cluster):
        with pytest.raises(KeyboardInterrupt):
            cluster.gang(work.Fails(0, KeyboardInterrupt()))


class TestLocalCluster(ClusterContract, MapReduceContract, LossContract):
    @pytest.fixture
    def cluster(self, pair):
        return pair

    def test_processes_are_reused(self, cluster):
        before = pids(cluster)
        assert len({os.getpid(), *before}) == cluster.size + 1
        with pytest.raises(WorkerFailed):
            cluster.gang(work.Fails(0, SOUR))
        assert [worker["pid"] for worker in cluster.gang(work.who, size=1)] == before[:1]
        assert pids(cluster) == before

    @pytest.mark.chaos
    def test_killed_worker_is_named_and_replaced(self, cluster):
        before, rank = pids(cluster), cluster.size - 1
        with pytest.raises(WorkerLost, match=rf"rank {rank} \(pid {before[rank]}\) was killed by SIGKILL") as caught:
            cluster.gang(work.Dies(rank), attempt=6)
        assert (caught.value.rank, caught.value.attempt) == (rank, 6)
        after = pids(cluster)
        assert before[rank] not in after
        assert living(before) == [pid for pid in before if pid in after]

    def test_gangs_of_two_threads_take_turns(self, cluster):
        with ThreadPoolExecutor(2) as threads:
            assert [*threads.map(lambda _: cluster.gang(work.total), range(2))] == [[(3.0, 3.0)] * 2] * 2

    def test_shards_of_several_shapes_raise(self, cluster):
        tables = [pa.table({"x": [[0.0] * (2 + rank % 2)]}) for rank in range(cluster.size)]
        with pytest.raises(InvalidInput, match=r"column 'x' has rows of .* in shard 0 and of .* in shard 1"):
            cluster.gang(work.rows, tables, ["x"])


# ---- failures of processes -------------------------------------------------------------------------------------------


@pytest.mark.chaos
def test_worker_dies_before_rendezvous(pair):
    before = pids(pair)
    os.kill(before[1], signal.SIGSTOP)  # before it sends its line

    def listener(event: Event) -> None:
        if event.kind == "started":
            os.kill(before[1], signal.SIGKILL)

    with pytest.raises(WorkerLost, match=r"rank 1 .* SIGKILL"):
        pair.gang(work.total, listener=listener)
    assert living(before) == before[:1]
    after = pids(pair)
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("size", "answer", "timeout", "message"),
    [
        (0, 1.0, 20.0, r"rank 1 \(pid \d+\) did not answer for 1 s, .* and was killed"),
        (10_000_000, 1.0, 20.0, r"rank 1 \(pid \d+\) did not answer for 1 s, .* and was killed"),
        (0, 30.0, 2.0, "rank 1 did not join the rendezvous within 2 s"),
    ],
)
def test_stopped_worker_is_killed_and_replaced(pair, monkeypatch, size, answer, timeout, message):
    before, data = pids(pair), bytes(size)
    monkeypatch.setattr(pair, "_timeout", timeout)
    monkeypatch.setattr(worker_process, "ANSWER_SECONDS", answer)
    limit(pair._workers[1].connection, answer)
    os.kill(before[1], signal.SIGSTOP)  # before it takes its task
    with pytest.raises(WorkerLost, match=message):
        pair.gang(lambda world, shard: len(data))
    assert before[1] not in living(before)
    if size:
        os.kill(before[0], signal.SIGSTOP)
        with pair.map_reduce({"x": [1.0, 2.0], "id": [0, 1]}, ["x", "id"]) as jobs:  # another process takes its shard
            assert jobs.run(Sums(), {"factor": 1.0})[0]["sum"].item() == 3.0


@pytest.mark.chaos
def test_worker_that_is_stopped_at_one_look_lives(monkeypatch):
    process, looks = WorkerProcess(0), []
    monkeypatch.setattr(worker_process, "ANSWER_SECONDS", 0.1)
    os.kill(process.process.pid, signal.SIGSTOP)
    process.start(ship(partial(int, "7")))

    def look(stopped: WorkerProcess) -> bool:
        looks.append(is_stopped(stopped))
        os.kill(stopped.process.pid, signal.SIGCONT)
        return looks[-1]

    is_stopped = WorkerProcess.is_stopped
    monkeypatch.setattr(WorkerProcess, "is_stopped", look)
    assert wait_for([process], 60.0) == [process]
    assert (process.receive(), looks[0]) == (7, True)
    process.kill()


def test_exit_code_is_reported(pair):
    with pytest.raises(WorkerLost, match="exited with code 3"):
        pair.gang(work.Dies(0, None))


@pytest.mark.chaos
def test_orphan_of_killed_worker_hides_nothing(pair, tmp_path):
    file = tmp_path / "pid"
    try:
        with pytest.raises(WorkerLost, match=r"rank 1 .* SIGKILL"):
            pair.gang(work.Dies(1, orphan=str(file)))
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


def test_worker_that_does_not_stop_is_killed(pair, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 0.5)
    before = pids(pair)
    with pytest.raises(WorkerFailed, match="the milk is sour"):
        pair.gang(lambda world, shard: signal.pause() if world.rank else work.Fails(0, SOUR)(world, shard))
    assert living(before) == before[:1]
    assert len(pids(pair)) == 2


def test_collective_has_time_limit(pair, monkeypatch):
    pair.gang(work.total)  # starts both processes, which takes longer than the limit
    monkeypatch.setattr(pair, "_timeout", 2.0)
    with pytest.raises(PeerLost):
        pair.gang(lambda world, shard: world.all_gather_json(f"alone {world.rank}", {}))
    assert pair.gang(work.total) == [(3.0, 3.0)] * 2


@pytest.mark.chaos
def test_interrupt_ends_workers(pair):
    before = pids(pair)

    def listener(event: Event) -> None:
        if (event.kind, event.rank) == ("started", 0):  # only once
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pair.gang(lambda world, shard: signal.pause(), listener=listener)
    assert living(before) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_truncated_answer_means_process_has_ended(stopped, monkeypatch):
    monkeypatch.setattr(worker_process, "ANSWER_SECONDS", 0.2)
    process = WorkerProcess(0)
    ours, theirs = socket.socketpair()
    process.connection.close()
    process.connection = Connection(ours.detach())
    limit(process.connection, 0.2)
    try:
        theirs.sendall(struct.pack("!i", 100) + b"half of it")  # as multiprocessing announces a hundred bytes
        if not stopped:
            theirs.close()
        with pytest.raises(EOFError):
            process.receive()
        assert ("did not answer" if stopped else "exited with code 0") in process.exit_reason()
        assert not process.process.alive
    finally:
        process.kill()


def test_stop_request_saves_and_ends_processes(pair, tmp_path):
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), run="a run")

    def saves(world: World, shard: None) -> None:
        while not checkpoints.attempts.asked_to_stop(2):
            time.sleep(0.01)
        world.clock.tick(3)
        raise Stopped("saved at step 1.")

    def listener(event: Event) -> None:
        if event.kind == "started":
            request_stop("maintenance")

    try:
        with pytest.raises(Stopped) as caught:
            Supervisor(pair, on_stop=checkpoints.attempts.ask_to_stop).gang(saves, attempt=2, listener=listener)
    finally:
        forget_stop()
    assert caught.value.message == "saved at step 1."
    assert (caught.value.step, caught.value.attempt, caught.value.trace) == (1, 2, None)
    assert checkpoints.next_attempt() == 3


# ---- scripts ---------------------------------------------------------------------------------------------------------

UNGUARDED = """
import torch
from sparkdl import LocalCluster

class Doubled:
    def __init__(self, value):
        self.value = 2 * value

def work(world, shard):
    total = torch.tensor([float(world.rank + 1)])
    world.group().sum_(total)
    return Doubled(total.item())

with LocalCluster(2) as cluster:
    print([doubled.value for doubled in cluster.gang(work)])
"""


@pytest.mark.slow
def test_script_needs_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    command, environment = [sys.executable, "script.py"], {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "[6.0, 6.0]\n"


def test_tasks_and_workers_without_a_gpu_raise(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # in this process
    with LocalCluster(1, device="cuda") as cluster, cluster.map_reduce({"x": [1.0]}, ["x"]) as jobs:
        with pytest.raises(InvalidInput, match="shard 0 in round 0: device is 'cuda', and PyTorch sees 0 GPUs"):
            jobs.run(Sums(), {})
        [result] = jobs.each(Whole(), [0], all_rows=True)
        assert "PyTorch sees 0 GPUs" in str(result.trouble)
    with pytest.raises(InvalidInput, match=r"needs 1024 GPUs.*this machine has \d+"):
        LocalCluster(1024, device="cuda")
