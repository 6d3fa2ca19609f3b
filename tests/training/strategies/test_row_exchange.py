"""Tables under parameter servers: the clocks of rows, exchanges over sockets, and serial simulations."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import PeerLost, WorkerFailed
from sparkdl.net.protocol import Connection
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.row_adagrad import RowAdagrad
from sparkdl.training.layouts.table import Table
from sparkdl.training.layouts.table_rows import TableRows
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.client import ShardClient, body_of
from sparkdl.training.strategies.parameter_server.placement import portions
from sparkdl.training.strategies.parameter_server.row_exchange import RowExchange
from sparkdl.training.strategies.parameter_server.service import ShardServer
from sparkdl.training.strategies.parameter_server.shard import ParameterShard, Push
from sparkdl.training.strategies.parameter_server.significance import Significance
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.contracts import work
from tests.contracts.layout_contract import HELD, HELD_COLUMNS, assert_close, resumable, resume
from tests.contracts.strategy_contract import Case, numbers
from tests.results import merged
from tests.training.layouts.test_table import (
    CASES,
    OPTIMIZERS,
    WithEmbeddings,
    WithTables,
    initial,
    merged_fit,
    single_process,
    waves,
)
from tests.training.strategies.test_local_sgd import fit
from tests.training.strategies.test_parameter_server import KEY, Slow
from tests.training.strategies.test_parameter_shard import SGD

IDS = 7
ONE = [torch.zeros((), dtype=torch.float64)]
STALE = (ParameterServer(3), ParameterServer(math.inf, every=2), ParameterServer(backup=1), ParameterServer(every=3))


class Worker:
    """A worker of several in this process: its rows of one table, a shard, and connections to the other shards."""

    def __init__(self, rank: int, size: int, table: Callable[[], Table], **clocks: Any) -> None:
        self.rank, self.table = rank, table().double()
        self.tables = TableRows(nn.Sequential(self.table), Group(rank, size), 5, torch.device("cpu"))
        self.shard = ParameterShard(portions(ONE, 1)[0], SGD, size, timeout=20.0, tables=self.tables, **clocks)
        self.server = ShardServer(self.shard, rank, range(size), "127.0.0.1", KEY)
        self.client = ShardClient(rank, 20.0, range(size))
        self.exchange = RowExchange(self.tables, self.shard, self.client)
        self.peers = [peer for peer in range(size) if peer != rank]
        self.buffer = self.shard.portion.allocate()

    def push(self, clock: int, share: float = 1.0) -> None:
        self.exchange.collect(share)
        rows = self.exchange.push()
        for peer in self.peers:
            head = {"clock": clock, "share": share, "unused": [0], "options": []}
            self.client.push(peer, head, body_of(self.buffer))
            self.client.ask(peer, "pull", clock)
        self.shard.push(Push(self.rank, clock, share, {0}, rows=rows), self.shard.portion.views(self.buffer))

    def pull(self, clock: int) -> None:
        self.shard.pull(clock)
        for peer in self.peers:
            self.client.answer(peer, body_of(self.buffer))


@pytest.fixture
def gang() -> Iterator[Callable[..., list[Worker]]]:
    workers: list[Worker] = []

    def opened(size: int, table: Callable[[], Table], **clocks: Any) -> list[Worker]:
        workers.extend(Worker(rank, size, table, **clocks) for rank in range(size))
        for worker in workers:
            for peer in worker.peers:
                worker.client.connect(peer, workers[peer].server.endpoint)
        return workers

    yield opened
    for worker in workers:
        worker.client.close()
        worker.server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sparkdl-shard")]


def rows_of(workers: list[Worker]) -> Tensor:
    rows = torch.empty(IDS, workers[0].table.embedding_dim, dtype=torch.float64)
    for worker in workers:
        rows[[*worker.table.held]] = worker.table.weight.detach()
    return rows


@pytest.mark.parametrize("admit", [0, 3])
def test_stale_pushes_equal_a_serial_simulation(gang, admit):
    """Look-ups and pushes of two workers in a random order: each push is a step on gradients of rows read before."""
    draw, adagrad = random.Random(3), partial(RowAdagrad, lr=0.3)
    workers = gang(2, lambda: Table(IDS, 2, init=waves, optimizer=adagrad, admit=admit), staleness=math.inf)
    w, seen = nn.Parameter(torch.zeros(IDS, 2, dtype=torch.float64)), Counter[int]()
    optimizer, pending, clocks = adagrad([w]), dict[int, tuple[list[int], Tensor]](), [0, 0]
    w.data.copy_(rows_of(workers))
    for _ in range(120):
        rank = draw.randrange(2)
        if rank not in pending:
            ids = [draw.randrange(IDS) for _ in range(4)]
            read = workers[rank].table(torch.tensor(ids))
            torch.testing.assert_close(read.detach(), w.detach()[ids], rtol=0, atol=1e-12)
            ((read - rank) ** 2).sum().backward()
            pending[rank] = ids, 2 * (w.detach()[ids] - rank)
            continue
        (ids, gradients), share = pending.pop(rank), draw.uniform(0.1, 1)
        clocks[rank] += 1
        workers[rank].push(clocks[rank], share)
        workers[rank].pull(clocks[rank])
        trained = [place for place, number in enumerate(ids) if seen[number] >= admit]
        places = torch.tensor([[ids[place] for place in trained]], dtype=torch.int64)
        w.grad = torch.sparse_coo_tensor(places, share * gradients[trained], w.shape)
        optimizer.step()
        for number, count in Counter(ids).items():
            seen[number] += count
            if seen[number] - count < admit <= seen[number]:
                w.data[number] = waves(torch.tensor([number]))[0]
    torch.testing.assert_close(rows_of(workers), w.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("admit", [0, 9])
def test_rows_of_the_first_pushes_make_the_step_and_dropped_ones_count_nothing(gang, admit):
    sgd, ids, shares = partial(torch.optim.SGD, lr=1.0), ([0, 1, 1], [1, 2, 3], [1, 5, 6]), (0.5, 0.3, 0.2)
    workers = gang(3, lambda: Table(IDS, 2, init=waves, optimizer=sgd, admit=admit), backup=1)
    expected, counts = rows_of(workers), torch.zeros(IDS, dtype=torch.int32)
    for worker, mine in zip(workers, ids, strict=True):
        worker.table(torch.tensor(mine)).sum().backward()
    for rank in (0, 2, 1):  # the last one is late
        workers[rank].push(1, shares[rank])
        if rank:
            workers[rank].pull(1)
    for rank in (0, 2):
        for number in ids[rank]:
            expected[number] -= 0 if admit else shares[rank] / 0.7
            counts[number] += 1
    torch.testing.assert_close(rows_of(workers), expected, rtol=0, atol=1e-12)
    for worker in workers if admit else ():
        [seen] = worker.tables._seen.values()
        assert seen.tolist() == counts[[*worker.table.held]].tolist()


def zeros(ids: Tensor) -> Tensor:
    return torch.zeros(len(ids), 3)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1, 4, math.inf])
def test_look_ups_read_all_pushes_up_to_the_bound(gang, staleness):
    """150 steps of three threads in a random order; column ``r`` of the table counts the pushes of worker ``r``."""
    workers = gang(3, partial(Table, IDS, 3, init=zeros, optimizer=SGD), staleness=staleness)
    steps, ahead = 150, list[int]()
    gates, turns = [threading.Semaphore(0) for _ in workers], [*range(3)] * steps

    def train(worker: Worker) -> None:
        for clock in range(1, steps + 1):
            gates[worker.rank].acquire()
            read = worker.table(torch.arange(IDS))
            ahead.append(clock - 1 - int(read.min()))
            (-read[:, worker.rank]).sum().backward()
            worker.push(clock)
            worker.pull(clock)

    threads = [threading.Thread(target=train, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    random.Random(3).shuffle(turns)
    for rank in turns:
        gates[rank].release()
    for thread in threads:
        thread.join()
    assert len(ahead) == 3 * steps
    assert (0 < max(ahead) <= staleness) if staleness else not any(ahead)
    assert (rows_of(workers) == steps).all()


def integers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ({"kind": "look up", "table": "1", "ids": 1}, b""),
        ({"kind": "look up", "table": "0", "ids": 1 << 40}, b""),
        ({"kind": "look up", "table": "0", "ids": 1}, integers(1)),
        ({"kind": "look up", "table": "0", "ids": 1}, integers(8)),
        ({"kind": "rows", "ids": 2, "numbers": 1 << 40, "factor": 1.0}, integers(0, 0)),
        ({"kind": "rows", "ids": 2, "numbers": 2, "factor": 1.0}, integers(0, 0) + bytes(16)),
        ({"kind": "rows", "ids": 3, "numbers": 2, "factor": 1.0}, integers(1, 1, 5) + bytes(16)),
        ({"kind": "rows", "ids": 2, "numbers": 0, "factor": 1.0}, integers(-1, -1)),
    ],
)
def test_requests_for_rows_of_others_are_rejected(gang, head, body):
    worker = gang(2, partial(Table, IDS, 2), staleness=1)[0]
    connection = Connection.open("127.0.0.1", worker.server.endpoint, 20.0)
    connection.send([json.dumps(one).encode() for one in ({"rank": 1}, head)])
    connection.socket.sendall(body)
    with pytest.raises((EOFError, OSError)):
        connection.receive()
    connection.close()
    assert worker.server.refused == 1


def test_look_up_of_a_lost_worker_raises(gang):
    first, second = gang(2, partial(Table, IDS, 2), staleness=4)
    second.server.close()
    with pytest.raises(PeerLost, match="rank 1"):
        first.table(torch.arange(IDS))


# ---- gangs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SparseAdam", "schedule", "two pieces, clipping, weights", "admission, pieces"])
def test_one_worker_is_plain_sparse_training(name):
    """Without a peer, staleness changes nothing."""
    case, data = CASES[name], numbers()
    workers = InlineCluster().gang(work.Fit(case.training(ParameterServer(math.inf))), data, case.columns())
    assert_close(merged_fit(workers), single_process(case, data, workers[0]["steps"]))


def test_downpour_with_tables_equals_a_serial_simulation(pair):
    """Local steps of the dense layers read the same rows, whose gradients are one push, also at an epoch's end."""
    sgd, adagrad = partial(torch.optim.SGD, lr=0.05), OPTIMIZERS["Adagrad"]
    case = Case(partial(WithTables, adagrad), optimizer=sgd, batch_size=9, epochs=2)  # epochs of six steps
    workers = pair.gang(work.Fit(case.training(ParameterServer(every=4))), numbers(), case.columns())
    served, *trainees = (WithEmbeddings(initial(case)) for _ in range(3))
    optimizers = [sgd(served.dense.parameters()), adagrad([served.numbers.weight]), adagrad([served.bag.weight])]
    x, y = (torch.from_numpy(numbers()[name]) for name in "xy")
    for number, drawn in enumerate(zip(*(worker["steps"] for worker in workers), strict=True)):
        for trainee, rows in zip(trainees, map(torch.from_numpy, drawn), strict=True):
            trainee.zero_grad()
            (trainee(x[rows]) - y[rows]).square().mean().backward()
            for one, local in zip(served.parameters(), trainee.parameters(), strict=True):
                part = local.grad * (len(rows) / sum(map(len, drawn)))
                one.grad = part if one.grad is None else one.grad + part
            sgd(trainee.dense.parameters()).step()
        if number % 6 in (3, 5):
            for optimizer in optimizers:
                optimizer.step()
            served.zero_grad()
            for trainee in trainees:
                trainee.load_state_dict(served.state_dict())
    assert_close(merged_fit(workers), served.state_dict())


class CountsSteps(torch.optim.Optimizer):
    """Adds 1 wherever a push has a gradient."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        [weight] = self.param_groups[0]["params"]
        gradient = weight.grad.coalesce()
        weight.index_add_(0, gradient.indices()[0], (gradient.values() != 0).to(weight.dtype))


class Bounded(nn.Module):
    """Column ``r`` of a table counts the pushes of worker ``r``, which a look-up compares with its own."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.dense, self.bound = work.Net(), bound
        self.counts = Table(6, 3, optimizer=CountsSteps, init=zeros)

    def forward(self, x: Tensor) -> Tensor:
        read, rank = self.counts(torch.arange(6)), int(os.environ["RANK"])
        if self.training and not read.min() >= read[:, rank].min() - self.bound:
            raise ArithmeticError(f"rows are stale: {read}")
        output: Tensor = self.dense(x) + read[:, rank].mean()
        return output


def test_rows_are_within_the_bound_while_another_worker_is_delayed(three):
    case = Case(partial(Bounded, 4), optimizer=partial(torch.optim.SGD, lr=1e-4), batch_size=3, epochs=8)
    training = replace(case.training(ParameterServer(4)), callbacks=[Slow(1), Slow(2, 7)])
    results = three.gang(training, numbers(), case.columns())
    assert max(row["max_clock_distance"] for row in results[0].history) >= 1
    assert (merged(results)["counts.weight"] > 16).all()


@pytest.mark.parametrize("strategy", [*STALE, ParameterServer(2, filter=Significance(0.1))], ids=repr)
def test_stale_gang_with_a_worker_without_rows_and_validation(pair, strategy):
    """All validation rows are of the first worker; a row of the history needs the rows of all workers."""
    case = replace(CASES["RowAdagrad"], batch_size=9, weight="weight", optimizer=partial(torch.optim.SGD, lr=0.01))
    training = replace(case.training(strategy), patience=4)
    results = pair.gang(training, HELD, HELD_COLUMNS)
    assert results[0].history[-1]["valid_loss"] == results[1].history[-1]["valid_loss"]
    assert all(value.isfinite().all() for value in merged(results).values())
    workers = fit(pair, replace(case, weight=None), strategy)  # the first worker has no rows
    assert all(math.isfinite(row["loss"]) for row in workers[0]["history"])
    assert len(workers[0]["parameters"]["numbers.weight"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STALE, ids=repr)
def test_settled_rows_resume_with_other_workers_and_by_all_reduce(pair, tmp_path, strategy):
    saved = resumable(tmp_path, "AdamW", Replicated(), model=WithTables, strategy=strategy, batch_size=10, epochs=2)
    weights = resume(pair, saved)
    for cluster, other in ((pair, strategy), (InlineCluster(), AllReduce()), (InlineCluster(), ParameterServer(1))):
        assert_close(resume(cluster, replace(saved, strategy=other)), weights, 0)
    changed = resume(pair, replace(saved, strategy=strategy, epochs=3))
    assert not torch.equal(changed["numbers.weight"], weights["numbers.weight"])


@pytest.mark.parametrize("strategy", [ParameterServer(1), ParameterServer(every=3)], ids=repr)
def test_resumed_optimizers_of_tables_go_on(tmp_path, strategy):
    model = partial(WithTables, OPTIMIZERS["SparseAdam"])
    runs = [
        resumable(tmp_path / name, "AdamW", Replicated(), model=model, strategy=strategy, batch_size=10, epochs=epochs)
        for name, epochs in (("whole", 3), ("cut", 2), ("cut", 3))
    ]
    expected, _, resumed = (resume(InlineCluster(), one) for one in runs)
    assert_close(resumed, expected, 1e-12)


class Logs:
    """A callback of rank 0 alone that reads the module, and waits until another worker has pushed."""

    every_rank = False

    def on_step(self, run: Any) -> None:
        assert run.module is not None
        before = [value.detach().clone() for value in run.module.parameters()]
        for _ in range(500):
            if any(not torch.equal(*pair) for pair in zip(before, run.module.parameters(), strict=True)):
                return
            time.sleep(0.001)


def test_callback_of_one_rank_may_read_rows_that_others_change(pair):
    case = Case(WithTables, optimizer=partial(torch.optim.SGD, lr=0.01), batch_size=6, epochs=1)
    events = list[Any]()
    training = replace(case.training(ParameterServer(3)), callbacks=[Logs()])
    pair.gang(training, numbers(), case.columns(), listener=events.append)
    warned = [event.payload["message"] for event in events if event.kind == "warning"]
    assert any("full step of the optimizer of tables, RowAdagrad" in message for message in warned)


class Stumbles(WithTables):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and os.environ["RANK"] == "1":
            raise ArithmeticError("stumbled over a row")
        return super().forward(x)


def test_error_of_a_worker_is_the_gangs_error(pair):
    case = Case(Stumbles, batch_size=12)  # while the first worker looks rows up, or waits for a pull
    with pytest.raises(WorkerFailed, match="ArithmeticError: stumbled over a row") as caught:
        pair.gang(case.training(ParameterServer(math.inf)), numbers(), case.columns())
    assert caught.value.rank == 1
