"""The rules of a parameter shard's clocks, without a network."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from sparkdl.errors import PeerLost
from sparkdl.training.strategies.parameter_server.placement import PIECE_BYTES, portions
from sparkdl.training.strategies.parameter_server.shard import ParameterShard, Push

SGD = partial(torch.optim.SGD, lr=1.0)
ONE = [torch.zeros((), dtype=torch.float64)]


def shard(workers: int, optimizer: Any = SGD, **settings: Any) -> ParameterShard:
    """One weight, which is 0 and falls by each gradient."""
    return ParameterShard(portions(ONE, 1)[0], optimizer, workers, **settings)


def push(one: ParameterShard, rank: int, clock: int, gradient: float = 1.0, share: float = 1.0) -> None:
    one.push(Push(rank, clock, share), [torch.full((1,), gradient, dtype=torch.float64)])


def weight(buffer: torch.Tensor) -> float:
    return portions(ONE, 1)[0].views(buffer)[0].item()


def act(one: ParameterShard, action: str) -> float | str:
    """Act as "push rank clock", "pull clock" or "settle rank": the weight, or "waits"."""
    verb, *numbers = action.split()
    try:
        if verb == "push":
            push(one, *map(int, numbers))
            return 0.0
        return weight((one.pull if verb == "pull" else one.settle)(int(numbers[0]))[1])
    except PeerLost:
        return "waits"


RULES: list[Any] = [
    ("pull before any push", 2, {}, ["pull 0"], [0.0]),
    ("pull before any push, stale", 2, {"staleness": 3}, ["pull 0", "pull 3", "pull 4"], [0.0, 0.0, "waits"]),
    ("synchronous", 2, {}, ["push 0 1", "pull 1", "push 1 1", "pull 1", "push 0 2", "pull 2"], ["waits", -2, "waits"]),
    ("bound 1", 2, {"staleness": 1}, ["push 0 1", "pull 1", "push 0 2", "pull 2"], [-1, "waits"]),
    ("bound 1, caught up", 2, {"staleness": 1}, ["push 0 1", "push 0 2", "push 1 1", "pull 2"], [-3]),
    ("bound 4", 3, {"staleness": 4}, [*(f"push 0 {c}" for c in range(1, 6)), "pull 4", "pull 5"], [-5, "waits"]),
    ("no bound", 2, {"staleness": math.inf}, [*(f"push 0 {c}" for c in range(1, 9)), "pull 8"], [-8]),
    ("backup", 3, {"backup": 1}, ["push 2 1", "pull 1", "push 0 1", "pull 1"], ["waits", -1.0]),
    ("late", 3, {"backup": 1}, ["push 2 1", "push 0 1", "push 1 1", "pull 1", "push 1 2", "pull 2"], [-1, "waits", 1]),
    ("two backups", 3, {"backup": 2}, ["push 2 1", "push 0 1", "pull 1", "push 0 2", "pull 2"], [-1, -2, 1]),
    (
        "finished worker",
        2,
        {"staleness": 1},
        ["push 0 1", "push 1 1", "settle 1", "push 0 2", "push 0 3", "pull 3"],
        ["waits", -4],
    ),
    (
        "finished workers",
        3,
        {"backup": 1},
        ["push 0 1", "push 1 1", "settle 0", "settle 1", "push 2 2", "pull 2"],
        ["waits", "waits", -2],
    ),
    ("settled", 2, {"staleness": 9}, ["push 0 1", "settle 0", "push 1 1", "push 1 2", "settle 1"], ["waits", -3]),
]


@pytest.mark.parametrize(("rule", "workers", "settings", "actions", "answers"), RULES, ids=[row[0] for row in RULES])
def test_clock_rules(rule, workers, settings, actions, answers):
    """The answers to pulls and settlements; in the rows of late pushes, also how many were dropped."""
    one = shard(workers, timeout=0.0, **settings)
    results = [(action, act(one, action)) for action in actions]
    read = [result for action, result in results if not action.startswith("push")]
    assert read + [one.dropped] * (one.dropped > 0) == answers


def test_pushes_are_added_in_rank_order():
    gradients = [1e16, 1.0, -1e16]  # another order has another sum
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        one = shard(3)
        threads = [threading.Thread(target=push, args=(one, rank, 1, gradients[rank])) for rank in order]
        for thread in threads:
            thread.start()
            thread.join()
        assert weight(one.pull(1)[1]) == -sum(gradients)


def test_all_get_the_same_weights_before_the_next_push():
    one = shard(2, staleness=math.inf)
    push(one, 0, 1)
    weights: list[float] = []
    threads = [
        threading.Thread(target=lambda rank=rank: weights.append(weight(one.settle(rank)[1]))) for rank in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late = threading.Thread(target=push, args=(one, 0, 1))  # waits for the owner
    late.start()
    assert weights == [-1, -1] == [weight(one.pull(0)[1])] * 2
    one.open([torch.full((1,), 5.0)])
    late.join()
    assert weight(one.pull(1)[1]) == 4


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_no_pull_is_served_further_ahead(staleness):
    """500 steps of three threads, of which the others wait for a random one at random moments."""
    one, steps = shard(3, staleness=staleness), 500
    gates, draw = [threading.Semaphore(0) for _ in range(3)], random.Random(3)
    served: list[int] = []

    def work(rank: int) -> None:
        for clock in range(1, steps + 1):
            gates[rank].acquire()
            push(one, rank, clock)
            one.pull(clock)
            served.append(clock - min(one._pushed))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    turns = [rank for rank in range(3) for _ in range(steps)]
    draw.shuffle(turns)
    for rank in turns:
        gates[rank].release()
    for thread in threads:
        thread.join()
    assert weight(one.pull(steps)[1]) == -3 * steps
    if staleness:
        assert 0 < max(one.distances) <= staleness
        assert one.distances.total() == 3 * steps + 1


def test_backup_equals_a_serial_simulation():
    """Pushes in a random order, of random shares: the first two of a clock make a step of Adagrad."""
    draw, adagrad = random.Random(5), partial(torch.optim.Adagrad, lr=0.5)
    one = shard(3, adagrad, backup=1)
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer, clocks, clock, first, dropped = adagrad([w]), [0, 0, 0], 0, dict[int, tuple[float, float]](), 0
    for _ in range(300):
        rank = draw.choice([rank for rank in range(3) if clocks[rank] <= clock and rank not in first])
        share, gradient = draw.uniform(0.1, 1), draw.uniform(-1, 1)
        push(one, rank, clocks[rank] + 1, share * gradient, share)
        if clocks[rank] < clock:
            dropped += 1
            clocks[rank] = clock
        else:
            first[rank] = share, gradient
        if len(first) == 2:
            w.grad = w.new_tensor([sum(p * g for p, g in first.values()) / sum(p for p, _ in first.values())])
            optimizer.step()
            clock += 1
            clocks = [clock if rank in first else mine for rank, mine in enumerate(clocks)]
            first = {}
    assert (one.dropped, one.clock) == (dropped, clock)
    assert dropped > 50
    assert weight(one.pull(clock)[1]) == pytest.approx(w.item(), abs=1e-12)


def test_error_of_the_optimizer_reaches_all_callers():
    def fails(parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = SGD(parameters)
        optimizer.step = lambda: 1 / 0  # type: ignore[method-assign]
        return optimizer

    one = shard(2, fails)
    push(one, 0, 1)
    for call in (lambda: push(one, 1, 1), lambda: one.pull(1), lambda: one.settle(0)):
        with pytest.raises(ZeroDivisionError):
            call()


# ---- placement ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_each_row_has_one_shard_and_shards_are_of_one_size(shards):
    shapes = [(784, 512), (512,), (), (3, 0), (2000, 2000), (1,), (64, 3, 7, 7)]
    tensors = [torch.empty(shape, device="meta", dtype=torch.float32) for shape in shapes]
    parts = portions(tensors, shards)
    for index, tensor in enumerate(tensors):
        rows = [row for part in parts for row in part.rows[index]]
        assert rows == [*range(tensor.shape[0] if tensor.dim() else 1)]
    sizes = [part.nbytes for part in parts]
    assert max(sizes) - min(sizes) <= PIECE_BYTES
    assert max(sizes) <= 1.2 * sum(sizes) / shards


def test_views_are_aligned_and_disjoint():
    tensors = [torch.rand(3, 5), torch.rand(7, dtype=torch.float64), torch.rand(2, 3).to(torch.bfloat16)]
    for part in portions(tensors, 2):
        buffer = part.allocate()
        for view, rows in zip(part.views(buffer), part.cut(tensors), strict=True):
            view.copy_(rows)
        for view, rows in zip(part.views(buffer), part.cut(tensors), strict=True):
            assert view.dtype == rows.dtype
            assert torch.equal(view, rows)


def test_a_slow_worker_is_waited_for_while_it_pushes(monkeypatch):
    """The timeout counts silence: a finished worker may wait longer for one that works."""
    one, clocks = shard(2, staleness=math.inf, timeout=1.0), iter((1, 2, 3))

    def time_out(ready: Any, timeout: float) -> bool:
        if (clock := next(clocks, None)) is not None:
            push(one, 1, clock)
        return False

    monkeypatch.setattr(one._turn, "wait_for", time_out)
    with pytest.raises(PeerLost, match="no other worker pushed within 1 s"):
        one.settle(0)
    assert next(clocks, None) is None


def test_an_error_of_the_shard_is_the_first_cause_of_lost_workers():
    one, lost = shard(1, partial(torch.optim.SGD, lr=1.0)), PeerLost("rank 1 left")
    assert one.first_cause(lost) is lost
    one.fail(lost)
    assert one.first_cause(lost) is lost
    other = shard(1)
    other.fail(error := ValueError("on purpose"))
    other.fail(lost)
    assert other.first_cause(lost) is error
