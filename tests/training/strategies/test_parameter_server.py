"""A parameter server equals one process with staleness 0, and serial simulations with other settings."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.weights import read_state
from sparkdl.net.protocol import Connection, Endpoint
from sparkdl.serving.format.param_values import allowed_types, same
from sparkdl.training.callbacks.ema import EMA
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.table import Table
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.client import ShardClient, body_of
from sparkdl.training.strategies.parameter_server.placement import portions
from sparkdl.training.strategies.parameter_server.service import ShardServer
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.contracts import work
from tests.contracts.strategy_contract import (
    ADAM,
    CASES,
    Case,
    StrategyContract,
    SynchronousContract,
    assert_equal,
    numbers,
    single_process,
    together,
)
from tests.results import merged
from tests.training.strategies.serial import Trainee, assert_ends_as
from tests.training.strategies.test_local_sgd import fit
from tests.training.strategies.test_parameter_shard import SGD, shard
from tests.training.test_resume import Folder, assert_alike, essence, run

PLAIN = Case(optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=7, epochs=2)
OPTIMIZERS = {
    "momentum and clipping": Case(max_grad_norm=0.05, batch_size=9),
    "Adagrad": Case(optimizer=partial(torch.optim.Adagrad, lr=0.05), batch_size=9),
    "AdamW, pieces": Case(optimizer=partial(torch.optim.AdamW, lr=0.01), batch_size=20, accumulate=2),
    "Adam of unused parameters": CASES["parameters for a few rows, Adam"],
}


class TestParameterServer(SynchronousContract):
    strategy = ParameterServer()
    cases = tuple(name for name in CASES if not name.startswith("sparse"))
    test_a_scaled_loss_falls_and_replicas_skip_the_same_steps = None  # fp16 raises

    @pytest.fixture
    def cluster(self, pair):
        return pair


class TestDownpour(StrategyContract):
    strategy = ParameterServer(every=3)
    test_one_worker_is_plain_optimizer = None  # one worker takes local steps of SGD, too
    test_a_scaled_loss_falls_and_replicas_skip_the_same_steps = None

    @pytest.fixture
    def cluster(self, three):
        return three


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_uneven_gang_equals_all_reduce_and_one_process(four, name):
    case = OPTIMIZERS[name]
    served, reduced = (fit(four, case, strategy) for strategy in (ParameterServer(), AllReduce()))
    expected = single_process(case.training(), numbers(), case.columns(), together(served))
    assert_equal(served[0]["parameters"], expected, 1e-12)
    assert_equal(served[0]["parameters"], reduced[0]["parameters"], 1e-12)
    for worker in served[1:]:
        assert_equal(worker["parameters"], served[0]["parameters"])


@pytest.mark.parametrize("optimizer", [None, partial(torch.optim.Adagrad, lr=0.1)])
@pytest.mark.parametrize("every", [2, 3])
def test_downpour_equals_a_serial_simulation(four, every, optimizer):
    """Local steps of SGD; a scheduler halves the rates of the workers, and with them that of the shards."""
    halving = partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.5)
    case = replace(PLAIN, scheduler=halving)
    workers = fit(four, case, ParameterServer(every=every, optimizer=optimizer))
    trainees = [Trainee(case, case.training()) for _ in workers]
    w = nn.Parameter(trainees[0].vector)
    served = (optimizer or case.optimizer)([w])
    rates = served.param_groups[0]["lr"], 0.05
    rows = {name: torch.as_tensor(array) for name, array in numbers().items()}
    total, inside = torch.zeros_like(w), 0
    for number, drawn in enumerate(zip(*(worker["steps"] for worker in workers), strict=True)):
        factor, inside = 0.5 ** (number // 4), inside + 1
        for trainee, mine in zip(trainees, drawn, strict=True):
            trainee.optimizer.param_groups[0]["lr"], before = rates[1] * factor, trainee.vector
            trainee.step({name: column[torch.from_numpy(mine)] for name, column in rows.items()})
            total += len(mine) / sum(map(len, drawn)) * (before - trainee.vector) / (rates[1] * factor)
        if inside == every or (number + 1) % 7 == 0:
            settled = inside < every  # at an epoch's end, after the scheduler's step
            served.param_groups[0]["lr"] = rates[0] * (0.5 ** ((number + 1) // 4) if settled else factor)
            w.grad = total
            served.step()
            total, inside = torch.zeros_like(w), 0
            for trainee in trainees:
                trainee.vector = w.detach()
    assert_ends_as(workers, w.detach(), case)


@pytest.mark.parametrize("strategy", [ParameterServer(3), ParameterServer(math.inf), ParameterServer(backup=1)])
def test_stale_gang_ends_alike_and_reports_its_clocks(four, strategy):
    workers = fit(four, replace(PLAIN, epochs=6), strategy)
    for worker in workers:
        assert_equal(worker["parameters"], workers[0]["parameters"])
        assert [row["loss"] for row in worker["history"]] == [row["loss"] for row in workers[0]["history"]]
    first, *_, last = workers[0]["history"]
    assert last["loss"] < first["loss"]
    columns = ("clock_distance", "max_clock_distance") if strategy.staleness else ("dropped_pushes",)
    assert all(0 <= row[name] < math.inf for row in (first, last) for name in columns)
    assert all(row.get("max_clock_distance", 0) <= strategy.staleness for row in workers[0]["history"])


@dataclass(frozen=True)
class Slow:
    """A callback that delays one worker in some steps."""

    rank: int
    every: int = 10
    seconds: float = 0.02

    def on_step(self, run: Any) -> None:
        if run.rank == self.rank and run.clock.step % self.every == 0:
            time.sleep(self.seconds)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ParameterServer(4), ParameterServer(backup=1)])
def test_no_pull_is_served_further_ahead_while_another_worker_is_delayed(three, strategy):
    """With a backup worker, nobody waits for delayed pushes, which are dropped."""
    case = replace(PLAIN, batch_size=3, epochs=32)  # 512 steps
    training = replace(case.training(strategy), callbacks=[Slow(1), Slow(2, 7)])
    history = three.gang(work.Fit(training), numbers(), case.columns())[0]["history"]
    assert history[-1]["step"] == 512
    if strategy.backup:
        assert 10 < sum(row["dropped_pushes"] for row in history) < 3 * 512
    else:
        assert 2 <= max(row["max_clock_distance"] for row in history) <= 4


class Halves:
    """Gives parameters other memory, as ``value.data = ...`` does."""

    def on_step(self, run: Any) -> None:
        for value in run.parameters.values():
            value.data = value.data / 2


def test_weights_that_a_callback_sets_count_as_with_all_reduce(pair):
    results = [
        pair.gang(replace(PLAIN.training(one), callbacks=(Halves(),)), numbers(), PLAIN.columns())
        for one in (ParameterServer(), AllReduce())
    ]
    actual, expected = map(merged, results)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=1e-12)


def test_bytes_are_those_of_the_cost_model(four):
    for every in (1, 4):
        strategy = ParameterServer(every=every)
        counted = sum(worker["report"]["bytes_per_step"] for worker in fit(four, PLAIN, strategy)) / 4
        assert counted == pytest.approx(strategy.explain(PLAIN.model().double(), 4, 100.0, 0.0).bytes, rel=0.15)


# ---- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"staleness": -1}, "staleness is -1; expected a whole number of at least 0, or math.inf"),
        ({"staleness": math.nan}, "staleness is nan; expected"),
        ({"staleness": 1.5}, r"staleness is 1.5; expected"),
        ({"staleness": "4"}, "staleness is '4'; expected"),
        ({"every": 0}, "every is 0; expected"),
        ({"backup": -1}, "backup is -1; expected"),
        ({"backup": 1, "staleness": 2}, "backup is 1 and staleness is 2; expected one of them to be 0"),
    ],
)
def test_bad_settings_raise(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        ParameterServer(**arguments)


@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        (ParameterServer(backup=2), {}, "backup is 2, and there are 2 workers"),
        (ParameterServer(), {"precision": "fp16"}, "precision is 'fp16'"),
        (ParameterServer(), {"model": work.Lookup}, "numbers, bag has sparse gradients"),
        (ParameterServer(inside=AllReduce()), {"model": partial(Table, 8, 2)}, "inside is set, .* has a Table"),
        (ParameterServer(optimizer=partial(torch.optim.Muon, lr=0.1)), {}, "optimizer computes an element's step"),
        (ParameterServer(), {"optimizer": partial(torch.optim.Adafactor, lr=0.1)}, "optimizer computes"),
    ],
)
def test_what_shards_cannot_train_raises(strategy, changes, message):
    training = replace(Case(), **changes).training(strategy)
    module = work.new_model(training)
    with pytest.raises(InvalidInput, match=message):
        strategy.check(training.objective, module, training.layout, 2)
    with pytest.raises(InvalidInput, match=r"layout is Sharded.*; expected layout=Replicated"):
        ParameterServer().check(Case().training().objective, work.Net(), Sharded(), 2)


def test_callback_that_needs_equal_weights_raises_with_staleness():
    with pytest.raises(InvalidInput, match=r"callbacks has EMA, .* strategy is ParameterServer"):
        replace(PLAIN.training(ParameterServer(1)), callbacks=[EMA()])
    replace(PLAIN.training(ParameterServer()), callbacks=[EMA()])


def test_strategy_is_saved_without_pickles():
    for strategy in (
        ParameterServer(math.inf, every=2),
        ParameterServer(optimizer=partial(torch.optim.Adagrad, lr=0.1)),
    ):
        types = allowed_types("strategy")
        assert same(types.resolve(json.loads(json.dumps(types.describe(strategy)))), strategy)


# ---- checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["Adam", "SGD"])
def test_resumed_run_is_bit_identical(case, pair, tmp_path):
    settings = {"strategy": ParameterServer()}
    expected = run(pair, case, whole := Folder(str(tmp_path)), **settings)
    ends = [essence(tmp_path, 10, rank) for rank in range(2)]
    for step in (2, 5):
        assert_alike(run(pair, case, replace(whole, start=step), **settings), expected)
        assert [essence(tmp_path, 10, rank) for rank in range(2)] == ends


def test_resumed_run_with_local_steps_is_bit_identical(pair, tmp_path):
    """A checkpoint is a common clock, at which the exchange of a block follows early."""
    settings = {"strategy": ParameterServer(every=3), "patience": None, "epochs": 2}
    expected = run(pair, "Adam", whole := Folder(str(tmp_path)), **settings)
    assert_alike(run(pair, "Adam", replace(whole, start=7), **settings), expected)


SAVED = Case(optimizer=ADAM, epochs=8)  # all rows in each step, so that the steps are the same for any workers


def weights(
    cluster: Any, strategy: Any, folder: Any, epochs: int = 8, every: Any = 3, **options: Any
) -> dict[str, Any]:
    checkpoints = Checkpoints(str(folder), run="one")
    training = replace(SAVED, epochs=epochs, batch_size=options.pop("batch_size", None)).training(strategy)
    training = replace(training, checkpointer=Checkpointer(checkpoints, CheckpointInterval.of(every), elastic=True))
    workers = cluster.gang(training, numbers(), SAVED.columns(), attempt=checkpoints.next_attempt(), **options)
    return read_state(merge_weights([worker.weights for worker in workers]))


@pytest.mark.parametrize("after", [AllReduce(), ParameterServer(), ParameterServer(2)])
def test_run_resumes_with_other_workers_and_by_all_reduce(after, pair, three, tmp_path):
    """After four epochs; with staleness in one process."""
    expected = weights(InlineCluster(), AllReduce(), tmp_path / "whole")
    weights(pair, ParameterServer(), tmp_path / "cut", epochs=4)
    resumed = weights(InlineCluster() if after == ParameterServer(2) else three, after, tmp_path / "cut")
    for name, value in expected.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-12)
    with pytest.raises(InvalidInput, match="of the strategy AllReduce, and this training's is ParameterServer"):
        weights(InlineCluster(), ParameterServer(), tmp_path / "whole", epochs=9)


def test_stale_run_saves_at_steps_and_ends_of_epochs(pair, tmp_path):
    """Two epochs of four steps; the folder has the two newest checkpoints."""
    for every, expected in ((3, [7, 8]), ("auto", [8])):
        events, folder = list[Any](), tmp_path / str(every)
        weights(pair, ParameterServer(math.inf), folder, 2, every, batch_size=12, listener=events.append)
        saved = sorted(int(path.parent.name.split("-")[-1]) for path in folder.rglob("manifest.json"))
        assert saved[-len(expected) :] == expected
        warned = [event.payload["message"] for event in events if event.kind == "warning"]
        assert any("full step of Adam; divide the learning rate by 2" in message for message in warned)
        assert any("saved at epochs' ends alone" in message for message in warned) == (every == "auto")


# ---- connections --------------------------------------------------------------------------------------------------

KEY = b"k" * 32


@pytest.fixture
def service():
    one = shard(2, SGD, timeout=20.0)
    server = ShardServer(one, 0, [0, 1], "127.0.0.1", KEY)
    yield one, server
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sparkdl-shard-0"]


def connected(endpoint: Endpoint) -> ShardClient:
    client = ShardClient(1, 20.0, [0, 1])
    client.connect(0, endpoint)
    return client


def record(service: Any) -> bytes:
    """What a worker sends that pushes once, as someone on the way reads it."""
    _, server = service
    relay, sent = socket.create_server(("127.0.0.1", 0)), bytearray()

    def pass_on() -> None:
        inner, _ = relay.accept()
        outer = socket.create_connection(("127.0.0.1", server.endpoint.port))

        def back() -> None:
            while data := outer.recv(4096):
                inner.sendall(data)

        answers = threading.Thread(target=back)
        answers.start()
        while data := inner.recv(4096):
            sent.extend(data)
            outer.sendall(data)
        outer.shutdown(socket.SHUT_RDWR)
        answers.join()
        outer.close(), inner.close(), relay.close()

    thread = threading.Thread(target=pass_on)
    thread.start()
    endpoint = Endpoint(("127.0.0.1",), relay.getsockname()[1], KEY)
    client, buffer = (
        connected(endpoint),
        portions([torch.zeros((), dtype=torch.float64)], 1)[0].allocate(),
    )
    client.push(0, {"clock": 1, "share": 1.0, "unused": [], "options": []}, body_of(buffer))
    client.ask(0, "pull", 0)
    client.answer(0, body_of(buffer))
    client.close()
    thread.join()
    return bytes(sent)


def test_strangers_and_replays_reach_no_shard(service):
    one, server = service
    taken = record(service)
    with one._turn:  # a thread of the server notes that the worker left
        assert one._turn.wait_for(lambda: one._trouble is not None, 20.0)
        one._trouble, pushed, refused = None, dict(one._waiting), server.refused  # as before the worker left
    with pytest.raises(PeerLost, match="the parameter shard of rank 0 is unreachable"):
        connected(replace(server.endpoint, key=b"x" * 32))
    silent = [socket.create_connection(("127.0.0.1", server.endpoint.port)) for _ in range(20)]
    for speech in (taken, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64):
        with socket.create_connection(("127.0.0.1", server.endpoint.port)) as stranger:
            stranger.sendall(speech)
            nonce = b""
            while data := stranger.recv(4096):
                nonce += data
            assert len(nonce) == 32
    assert one._waiting == pushed
    assert one._trouble is None
    assert server.refused >= refused + 4
    client = connected(server.endpoint)  # beside the silent ones
    client.close()
    for stranger in silent:
        stranger.close()


@pytest.mark.parametrize("head", [{"kind": "push", "clock": 1, "bytes": 1 << 40}, {"rank": 0}, {"rank": 9}])
def test_head_of_another_shape_is_rejected(service, head):
    _, server = service
    connection = Connection.open("127.0.0.1", server.endpoint, 20.0)
    connection.send([json.dumps(one).encode() for one in ([head] if "rank" in head else [{"rank": 1}, head])])
    with pytest.raises((EOFError, OSError)):
        connection.receive()
    connection.close()
    assert server.refused == 1


def test_worker_that_leaves_is_lost_to_those_that_wait(service):
    one, server = service
    client = connected(server.endpoint)
    waiting = threading.Thread(target=client.close)
    waiting.start()
    with pytest.raises(PeerLost, match="rank 1 left"):
        one.pull(1)
    waiting.join()
