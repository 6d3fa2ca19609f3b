"""What went wrong once in gangs and in training: one test for each bug, with its story."""

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
from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousSpec
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
from sparkdl.training.metrics import open_metrics, synchronised
from sparkdl.training.monitor import average_buffers
from sparkdl.training.objective import Objective
from sparkdl.training.strategies.allreduce import AllReduce, AllReduceSync
from sparkdl.training.strategies.buckets import make_buckets
from tests.faults.held import StopsOnArrival

# ---- gangs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    with LocalCluster(2) as cluster:
        yield cluster


FIRST_OPTIMIZER = """
import sys, torch
from sparkdl.cluster.inline import InlineCluster

def work(world, part):
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])

InlineCluster().gang(work)
functions = vars(torch.distributed.nn.functional).values()
defaults = [value for function in functions for value in getattr(function, "__defaults__", None) or ()]
sys.exit(any(isinstance(value, torch.distributed.ProcessGroup) for value in defaults))
"""


@pytest.mark.slow
def test_the_first_optimizer_of_a_process_kept_the_gangs_sockets_open() -> None:
    # The first optimizer of a process imports torch._dynamo, and that torch.distributed.nn, whose functions have the
    # world's group of that moment as a default argument. In the first gang of a process that group was never freed:
    # when a member failed its peers saw no connection close, and waited until they were killed.
    subprocess.run([sys.executable, "-c", FIRST_OPTIMIZER], check=True)


def test_a_replica_was_never_freed() -> None:
    # The hooks that tell of a gradient referred to the replica, and torch keeps hooks where Python's garbage collector
    # does not look. Every run left its model and optimizer behind in the process, and its process group.
    replica = Replicated().place(Objective(partial(nn.Linear, 2, 1), nn.MSELoss()), World())
    module = weakref.ref(replica.module)
    del replica
    gc.collect()
    assert module() is None


def raises_from_itself(world: World, part: Shard | None) -> None:
    try:
        raise ValueError("once")
    except ValueError as error:
        raise error from error


def test_an_error_raised_from_itself_was_followed_for_ever() -> None:
    # Tracebacks are cleared along the chain of causes, and `raise error from error` makes that a circle.
    with pytest.raises(WorkerFailed, match="ValueError: once"):
        InlineCluster().gang(raises_from_itself)


def test_a_wrapped_consequence_was_taken_for_a_cause() -> None:
    # Whether an error only says that another member has gone was read off the error itself. Code that wraps errors in
    # its own made a consequence into a cause, which hid the real one if it was reported first.
    try:
        try:
            raise PeerLost("the other one has gone")
        except PeerLost as lost:
            raise KeyError("wrapped") from lost
    except KeyError:
        try:
            raise ValueError("without a word of it") from None
        except ValueError as last:
            failure = Failure.of(last, ErrorContext("work"))
    assert failure.peer


def test_a_member_that_died_between_gangs_broke_the_next_one(pair: LocalCluster) -> None:
    # A process that had been killed while nothing ran, by the kernel for its memory perhaps, was sent the next task:
    # BrokenPipeError. After a gang that lost a member the others' processes were forgotten, but not ended.
    rank, pid = pair.gang(lambda world, part: (world.rank, os.getpid()))[1]
    with open(os.pidfd_open(pid)) as end:
        os.kill(pid, signal.SIGKILL)
        assert select.select([end], [], [], 10.0)[0]
    assert pair.gang(lambda world, part: world.rank) == [0, rank]


@pytest.mark.chaos
def test_a_member_that_was_stopped_before_its_first_word_held_up_its_gang_for_ever(tmp_path: Path) -> None:
    # Whoever has never given a sign of life is not judged by the supervisor, and the timeout of collectives counts for
    # members that have met. One that was stopped as the task came to it was waited for by all, without any limit.
    columns = Columns((InputColumn("x", decode=StopsOnArrival(str(tmp_path / "mark"))),))
    rows = pa.table({"x": pa.array([bytes(8)] * 4, pa.binary())})
    with LocalCluster(2) as cluster:
        cluster.gang(lambda world, part: None)  # with a new process comes the import of torch
        cluster._timeout = 5.0
        with pytest.raises(WorkerLost, match=r"rank \d did not come to the rendezvous within 5 s"):
            cluster.gang(lambda world, part: None, rows, columns)
        cluster._timeout = 60.0
        assert cluster.gang(lambda world, part: part.rows, rows, columns) == [2, 2]


def test_a_member_that_was_stopped_before_it_was_heard_was_never_missed() -> None:
    # Its first heartbeat was in the queue, and no one is missed who was never heard: the gang waited for its timeout.
    asked, heard, before = threading.Event(), [], []

    def listen(event: Event) -> None:
        asked.wait(0.3)  # a driver that is busy
        heard.append(event.kind)

    def batches() -> Iterator[pa.RecordBatch]:
        before.extend(heard)
        asked.set()
        yield pa.record_batch({"x": [1.0]})

    with Channel(listen) as channel:
        work, columns = cloudpickle.dumps(lambda world, part: None), Columns((InputColumn("x"),))
        task = WorkerTask(work, 1, "run", 0, columns, endpoint=channel.endpoint, heartbeat=10.0)
        run_worker(task, RendezvousSpec(0, 1, "run", 0, Address("127.0.0.1")), lambda line: [line], batches())
    assert before == ["started", "heartbeat"]


def test_a_part_that_could_not_be_read_was_reported_as_a_join() -> None:
    # A member with bad rows has to tell the others before it fails, and by then it was in another stage.
    with pytest.raises(InvalidInput, match="1 NaN") as caught:
        InlineCluster().gang(lambda world, part: None, {"x": np.array([np.nan])})
    assert caught.value.stage == "feed"


def test_the_store_went_while_others_still_read_from_it() -> None:
    # Rank 0 serves the store, and left with it as soon as it knew everyone's part. A member that was held up just then
    # found nobody: a gang whose work was short failed although nothing was wrong, and a member with bad rows reported
    # that a peer had gone, as all the others did. Nobody said which rows.
    store = HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.05))
    zero, one = World(0, 2, store=store), World(1, 2, store=store)
    store.set("parts/1", "{}")  # as far as the other one has come: it has told, and not read
    with pytest.raises(PeerLost):
        zero.all_gather_json("parts", {})
    assert one.all_gather_json("parts", {}) == zero.all_gather_json("parts", {}) == [{}, {}]


def nobody(world: World, key: str, value: dict[str, object]) -> None:
    raise PeerLost("another member could not be reached")


def test_bad_rows_went_unsaid_where_the_others_could_not_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # A member with bad rows first tells the others. Where none came within the timeout that was all it reported.
    monkeypatch.setattr(World, "all_gather_json", nobody)
    with pytest.raises(InvalidInput, match="1 NaN") as caught:
        InlineCluster().gang(lambda world, part: None, {"x": np.array([np.nan])})
    assert caught.value.stage == "feed"


def broadcast_a_view(world: World, part: Shard | None) -> list[float]:
    view = (torch.arange(6.0) * (world.rank + 1))[::2]
    world.group().broadcast_(view)
    return view.tolist()


def test_a_strided_tensor_was_broadcast_into_the_memory_between(pair: LocalCluster) -> None:
    # gloo copies as many elements as a tensor has from where it begins, without a look at its strides. A parameter
    # that is a slice of something larger came out half rank 0's and half its own, and what lay between was overwritten.
    assert pair.gang(broadcast_a_view) == [[0.0, 2.0, 4.0]] * 2


# ---- training --------------------------------------------------------------------------------------------------------


def statistics(world: World, part: Shard | None) -> float:
    module = nn.BatchNorm1d(1)
    module.running_mean.fill_(0.0 if world.rank else 8.0)
    average_buffers(module, world.group(), 0.0 if world.rank else 1.0)
    return float(module.running_mean)


def test_members_without_rows_pulled_the_statistics_to_their_start(pair: LocalCluster) -> None:
    # Batch normalisation's running statistics were averaged over members as equals. With one part of 1000 rows and
    # three of none the saved mean was a quarter of what it should be.
    assert pair.gang(statistics) == [8.0, 8.0]


def test_small_buckets_were_not_small() -> None:
    # The first bucket is closed at 1 MiB however small `bucket_bytes` is, so that models below that had one bucket,
    # and nothing was exchanged before the backward pass was over.
    assert len(make_buckets(list(nn.Linear(100, 100).parameters()), 100)) == 2


def test_a_shared_weight_between_reentrant_checkpoints_lost_gradients() -> None:
    # Its gradient comes in several pieces, and each took the place of the one before in what the members exchange.
    sync = AllReduceSync(
        AllReduce(), Replicated().place(Objective(partial(nn.Linear, 2, 1), nn.MSELoss()), World()), Group(0, 2)
    )
    sync.begin(1.0)
    sync.ready(1)
    with pytest.raises(InvalidInput, match="several pieces"):
        sync.ready(1)


class Kept(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", default=[], dist_reduce_fx=None)

    def update(self, value: torch.Tensor) -> None:
        self.kept.append(value)

    def compute(self) -> torch.Tensor:
        return torch.cat(self.kept)


def keep(world: World, part: Shard | None) -> list[float]:
    metric = Kept()
    for value in range(3 * world.rank + 1):
        metric.update(torch.tensor([float(value)]))
    found: list[float] = synchronised(metric, world.group())
    return found


def test_metrics_with_lists_of_several_lengths_never_came_back(pair: LocalCluster) -> None:
    # torchmetrics gathers a list state item by item. A member that had skipped an empty batch gathered less often than
    # the others, which then took its next collective for the one that they waited for.
    assert pair.gang(keep) == [[0.0, 0.0, 1.0, 2.0, 3.0]] * 2


def test_a_metric_collection_failed_after_the_first_epoch() -> None:
    # It looks like a metric, but does not know whether it has been updated.
    metrics = open_metrics({"m": MetricCollection([MeanSquaredError()])}, torch.device("cpu"))
    assert list(metrics) == ["m_MeanSquaredError"]


def test_a_validation_column_without_a_true_value_made_nan() -> None:
    # The validation loss was NaN, epoch for epoch, and metrics of lists failed inside of torchmetrics.
    columns = Columns((InputColumn("x"),), validation=InputColumn("v", "bool"))
    training = Training(Objective(partial(nn.Linear, 1, 1), nn.MSELoss()), 2)
    with pytest.raises(InvalidInput, match="no row is a validation row"):
        InlineCluster().gang(training, {"x": np.zeros((4, 1)), "v": np.zeros(4, bool)}, columns)
