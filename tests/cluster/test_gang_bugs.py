"""Bugs of gangs and of training: one test for each, with its story."""

from __future__ import annotations

import datetime
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.distributed import HashStore
from torchmetrics import Metric, MetricCollection
from torchmetrics.regression import MeanSquaredError

from sparkdl.cluster.failure import Failure
from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.worker import WorkerTask, run_worker
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import ErrorContext, InvalidInput, PeerLost, WorkerFailed, WorkerLost
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import Event
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from sparkdl.training.metrics import open_metrics, seen, together
from sparkdl.training.monitor import average_buffers
from sparkdl.training.objective import Objective
from sparkdl.training.strategies.allreduce import AllReduce, AllReduceSync
from sparkdl.training.strategies.reducers import make_buckets
from tests.faults.held import StopsOnArrival

OBJECTIVE = Objective(partial(nn.Linear, 2, 1), nn.MSELoss())

# ---- gangs -----------------------------------------------------------------------------------------------------------

FIRST_OPTIMIZER = """
import sys, torch
from sparkdl.cluster.inline import InlineCluster

def work(world, shard):
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])

InlineCluster().gang(work)
functions = vars(torch.distributed.nn.functional).values()
defaults = [value for function in functions for value in getattr(function, "__defaults__", None) or ()]
sys.exit(any(isinstance(value, torch.distributed.ProcessGroup) for value in defaults))
"""


@pytest.mark.slow
def test_first_optimizer_of_process_kept_sockets_of_gang_open() -> None:
    # The first optimizer of a process imports torch.distributed.nn, whose functions have the world's group as a default
    # argument. That group was never freed: if a worker failed, its peers saw no connection close.
    subprocess.run([sys.executable, "-c", FIRST_OPTIMIZER], check=True)


def test_replica_was_never_freed() -> None:
    # Gradient hooks referred to the replica, and torch keeps hooks where Python's garbage collector does not look.
    replica = Replicated().place(OBJECTIVE, World())
    module = weakref.ref(replica.module)
    del replica
    gc.collect()
    assert module() is None


def raises_from_itself(world: World, shard: Shard | None) -> None:
    try:
        raise ValueError("once")
    except ValueError as error:
        raise error from error


def test_error_raised_from_itself_was_followed_for_ever() -> None:
    # `raise error from error` makes the chain of causes a circle.
    with pytest.raises(WorkerFailed, match="ValueError: once"):
        InlineCluster().gang(raises_from_itself)


def test_wrapped_consequence_was_taken_for_cause() -> None:
    # Only the last error was asked whether it reports a lost peer, and not the errors that it wraps.
    try:
        try:
            raise PeerLost("the other worker has gone")
        except PeerLost as lost:
            raise KeyError("wrapped") from lost
    except KeyError:
        try:
            raise ValueError("without its cause") from None
        except ValueError as last:
            failure = Failure.of(last, ErrorContext("work"))
    assert failure.peer


def test_worker_that_died_between_gangs_broke_the_next_one(pair: LocalCluster) -> None:
    # An idle process that the kernel had killed was sent the next task: BrokenPipeError.
    before = pair.gang(lambda world, shard: os.getpid())
    with open(os.pidfd_open(before[1])) as end:
        os.kill(before[1], signal.SIGKILL)
        assert select.select([end], [], [], 10.0)[0]
    after = pair.gang(lambda world, shard: os.getpid())
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.chaos
def test_worker_stopped_before_rendezvous_times_out(pair: LocalCluster, monkeypatch, tmp_path: Path) -> None:
    # The supervisor cannot miss a worker without a heartbeat, and collectives time out only after the rendezvous.
    columns = Columns((InputColumn("x", decode=StopsOnArrival(str(tmp_path / "mark"))),))
    rows = pa.table({"x": pa.array([bytes(8)] * 4, pa.binary())})
    pair.gang(lambda world, shard: None)  # starts the processes
    with monkeypatch.context() as patch:
        patch.setattr(pair, "_timeout", 5.0)
        with pytest.raises(WorkerLost, match=r"rank \d did not join the rendezvous within 5 s"):
            pair.gang(lambda world, shard: None, rows, columns)
    assert pair.gang(lambda world, shard: shard.rows, rows, columns) == [2, 2]


def test_worker_stopped_before_its_first_heartbeat_was_never_missed() -> None:
    # Its first heartbeat was in the queue, and the monitor ignores workers without one.
    asked, received, before = threading.Event(), [], []

    def listen(event: Event) -> None:
        asked.wait(0.3)  # a busy driver
        received.append(event.kind)

    def batches() -> Iterator[pa.RecordBatch]:
        before.extend(received)
        asked.set()
        yield pa.record_batch({"x": [1.0]})

    with Channel(listen) as channel:
        work, columns = cloudpickle.dumps(lambda world, shard: None), Columns((InputColumn("x"),))
        task = WorkerTask(work, 1, "run", 0, columns, endpoint=channel.endpoint, heartbeat=10.0)
        run_worker(task, 0, "127.0.0.1", lambda line: [line], batches())
    assert before == ["started", "heartbeat"]


def test_store_closed_while_others_still_read() -> None:
    # Rank 0 serves the store and left as soon as it had all answers. A slow worker found nobody, and a worker with bad
    # rows reported a lost peer in place of the rows.
    store = HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.05))
    zero, one = World(0, 2, store=store), World(1, 2, store=store)
    store.set("shards/1", "{}")  # rank 1 has sent its value, and has not read
    with pytest.raises(PeerLost):
        zero.all_gather_json("shards", {})
    assert one.all_gather_json("shards", {}) == zero.all_gather_json("shards", {}) == [{}, {}]


def unreachable(world: World, key: str, value: dict[str, object]) -> None:
    raise PeerLost("another worker is unreachable")


@pytest.mark.parametrize("peers", [True, False])
def test_bad_rows_were_reported_as_join_or_not_at_all(monkeypatch: pytest.MonkeyPatch, peers: bool) -> None:
    # A worker with bad rows first reports to its peers: it failed in that stage, or with their timeout.
    if not peers:
        monkeypatch.setattr(World, "all_gather_json", unreachable)
    with pytest.raises(InvalidInput, match="1 NaN") as caught:
        InlineCluster().gang(lambda world, shard: None, {"x": np.array([np.nan])})
    assert caught.value.stage == "feed"


def broadcast_a_view(world: World, shard: Shard | None) -> list[float]:
    view = (torch.arange(6.0) * (world.rank + 1))[::2]
    world.group().broadcast_(view)
    return view.tolist()


def test_strided_tensor_was_broadcast_into_the_memory_between(pair: LocalCluster) -> None:
    # gloo ignores strides: a parameter that is a view was half rank 0's, and the memory between was overwritten.
    assert pair.gang(broadcast_a_view) == [[0.0, 2.0, 4.0]] * 2


# ---- training --------------------------------------------------------------------------------------------------------


def statistics(world: World, shard: Shard | None) -> float:
    module = nn.BatchNorm1d(1)
    module.running_mean.fill_(0.0 if world.rank else 8.0)
    average_buffers(module, world.group(), 0.0 if world.rank else 1.0)
    return float(module.running_mean)


def test_workers_without_rows_pulled_statistics_to_their_start(pair: LocalCluster) -> None:
    # Running statistics were averaged without the workers' numbers of rows.
    assert pair.gang(statistics) == [8.0, 8.0]


def test_small_buckets_were_not_small() -> None:
    # torch closes the first bucket at 1 MiB, so smaller models exchanged nothing during the backward pass.
    assert len(make_buckets(list(nn.Linear(100, 100).parameters()), 100)) == 2


def test_shared_weight_between_reentrant_checkpoints_lost_gradients() -> None:
    # Its gradient comes in several pieces, and each replaced the one before.
    sync = AllReduceSync(AllReduce(), Replicated().place(OBJECTIVE, World()), Group(0, 2))
    sync.begin(1.0)
    sync.ready(1)
    with pytest.raises(InvalidInput, match="several gradients in one backward pass"):
        sync.ready(1)


class Values(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("values", default=[], dist_reduce_fx=None)

    def update(self, value: torch.Tensor) -> None:
        self.values.append(value)

    def compute(self) -> torch.Tensor:
        return torch.cat(self.values)


def updated(world: World, shard: Shard | None) -> list[float]:
    metric = Values()
    for value in range(3 * world.rank + 1):
        metric.update(torch.tensor([float(value)]))
    found: list[float] = together({"": metric}, world.group().gather(seen({"": metric})))[""]
    return found


def test_metrics_with_lists_of_several_lengths_hung(pair: LocalCluster) -> None:
    # torchmetrics gathers a list item by item: after an empty batch, workers gathered different numbers of items.
    assert pair.gang(updated) == [[0.0, 0.0, 1.0, 2.0, 3.0]] * 2


def test_metric_collection_failed_after_first_epoch() -> None:
    # It looks like a metric, but does not know whether it was updated.
    metrics = open_metrics({"m": MetricCollection([MeanSquaredError()])}, torch.device("cpu"))
    assert list(metrics) == ["m_MeanSquaredError"]


def test_validation_column_without_true_value_made_nan() -> None:
    columns = Columns((InputColumn("x"),), validation=InputColumn("v", "bool"))
    training = Training(Objective(partial(nn.Linear, 1, 1), nn.MSELoss()), 2)
    with pytest.raises(InvalidInput, match="no row is a validation row"):
        InlineCluster().gang(training, {"x": np.zeros((4, 1)), "v": np.zeros(4, bool)}, columns)
