"""Gangs that begin with fewer workers if capacity is missing, and grow back. Real processes: tests/training."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from sparkdl.cluster import elastic
from sparkdl.cluster.elastic import SizePolicy
from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import ClusterUnavailable, InvalidInput, WorkerFailed, WorkerLost
from sparkdl.telemetry.event import Event
from tests.cluster.scripted import Scripted

KILLED = WorkerLost("killed")
GONE = ClusterUnavailable("other jobs held the task slots")


# ---- the policy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "queries"),
    [
        (1, [(4, 0, 4), (9, 0, 4)]),
        (2, [(3, 0, None), (3, 100, None), (3, 299, None), (3, 300, 3), (2, 301, 2)]),
        (2, [(0, 0, None), (1, 300, 2)]),  # the cluster waits for the minimum itself
        (1, [(3, 0, None), (4, 200, 4), (3, 250, None), (3, 549, None), (3, 550, 3)]),  # the wait restarts
        (1, [(None, 0, 4)]),
    ],
)
def test_size_by_capacity_and_time(least, queries):
    sizes = SizePolicy(least, 4, 300)
    assert [sizes.choose(Capacity(now, None), at) for now, at, _ in queries] == [size for *_, size in queries]


@pytest.mark.parametrize(("now", "ever", "expected"), [(3, 3, 3), (3, 9, None), (0, 3, None), (0, 1, 2), (1, 1, 2)])
def test_policy_does_not_wait_beyond_configuration(now, ever, expected):
    assert SizePolicy(2, 4, 300).choose(Capacity(now, ever), 0) == expected


def test_sizes_are_multiples():
    sizes = SizePolicy(2, 8, 0, multiple=2)
    assert [sizes.choose(Capacity(now, 7), 0) for now in (7, 5, 3, 2, 1)] == [6, 4, 2, 2, 2]
    sizes.refused = 6
    assert sizes.choose(Capacity(7, 7), 0) == 2


def test_refused_size_is_halved():
    sizes, room, chosen = SizePolicy(3, 16, 300), Capacity(16, None), [16]
    assert sizes.choose(room, 0) == 16
    for now in range(4):
        sizes.refused = chosen[-1]
        assert not sizes.full(room, now)
        chosen.append(sizes.choose(room, now))
    assert chosen == [16, 8, 4, 3, 3]
    sizes.refused = None
    assert sizes.choose(room, 5) == 16


def test_capacity_is_trusted_again_once_lost_executor_is_known():
    sizes = SizePolicy(1, 4, 300)
    sizes.refused = 4
    assert [sizes.choose(Capacity(3, None), now) for now in (0, 300)] == [None, 3]
    assert sizes.full(Capacity(4, None), 301)


# ---- with a supervisor -----------------------------------------------------------------------------------------------


class Clock:
    """Replaces the module ``time``: a second passes with every call."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    def time(self) -> float:
        return 0.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(elastic, "time", clock)
    monkeypatch.setattr(elastic, "_POLL", 0)
    monkeypatch.setattr(elastic, "_POLL_RUNNING", 0.01)
    return clock


def cluster(rooms: list[Any], *endings: Any, size: int = 4) -> Scripted:
    return Scripted(*endings, rooms=rooms, size=size)


def supervised(cluster: Scripted, **options: Any) -> tuple[Supervisor, list[Event]]:
    supervisor, events = Supervisor(cluster, **{"back_off": 0, "min_size": 2, "elastic_timeout": 60} | options), []
    supervisor.gang(print, listener=events.append)
    return supervisor, events


def payloads(events: list[Event], kind: str) -> list[tuple[int, dict[str, Any]]]:
    return [(event.attempt, event.payload) for event in events if event.kind == kind]


@pytest.mark.parametrize("least", [None, 4])
def test_capacity_is_not_queried_without_smaller_minimum(clock, least):
    assert supervised(cluster([], KILLED, [1]), min_size=least)[0].sizes == [4, 4]


def test_only_first_attempt_waits(clock):
    gangs = cluster([3], KILLED, [1])
    supervisor, events = supervised(gangs)
    assert gangs.begun == [(0, 3), (1, 3)]
    assert payloads(events, "resized") == [(0, {"size": 3, "of": 4})]
    waiting = payloads(events, "waiting")
    assert {(attempt, payload["what"]) for attempt, payload in waiting} == {(0, "capacity for 4 workers; 3 fit now")}
    seconds = [payload["seconds"] for _, payload in waiting]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= 60 < clock.now
    assert [type(error) for error in supervisor.failures] == [WorkerLost]


@pytest.mark.parametrize(
    ("rooms", "endings", "options", "sizes", "failures"),
    [
        ([2, 3, 3, 4], [[1]], {}, [4], 0),  # slots appear during the wait
        ([4, 4, 3], [KILLED, ClusterUnavailable("4 need 4"), [1]], {"max_restarts": 1}, [4, 4, 3], 1),
        ([4], [GONE, KILLED, [1]], {}, [4, 2, 4], 1),  # a failure resets the refused size
    ],
)
def test_sizes_of_attempts(clock, rooms, endings, options, sizes, failures):
    supervisor, _ = supervised(cluster(rooms, *endings), **options)
    assert supervisor.sizes == sizes
    assert [type(error) for error in supervisor.failures] == [WorkerLost] * failures


@pytest.mark.parametrize(("rooms", "endings", "begun"), [([1], [GONE], [2]), ([4], [GONE, GONE], [4, 2])])
def test_unavailable_minimum_raises(clock, rooms, endings, begun):
    gangs = cluster(rooms, *endings)
    with pytest.raises(ClusterUnavailable) as caught:
        supervised(gangs)
    assert caught.value is GONE
    assert [size for _, size in gangs.begun] == begun


def test_configuration_that_never_suffices_warns(clock):
    message = "the configuration allows 3 workers at a time, so the gang of 4 has 3"
    with pytest.warns(UserWarning, match=message) as caught:
        assert supervised(cluster([Capacity(3, 3)], KILLED, [1]))[0].sizes == [3, 3]
    assert len(caught) == 1
    assert clock.now < 10


def test_cluster_that_runs_no_gang_raises_before_any_wait(clock):
    def encrypted() -> Capacity:
        raise InvalidInput("spark.io.encryption.enabled is on")

    gangs = cluster([1])
    gangs.capacity = encrypted  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="is on"):
        supervised(gangs)
    assert gangs.begun == []


def test_missing_slots_cost_no_restart(clock):
    gangs = cluster([8], GONE, GONE, [1], size=8)
    supervisor, events = supervised(gangs, max_restarts=0)
    assert gangs.begun == [(0, 8), (1, 4), (2, 2)]
    assert supervisor.failures == []
    assert payloads(events, "resized") == [(1, {"size": 4, "of": 8}), (2, {"size": 2, "of": 8})]
    cause = payloads(events, "restart")[0][1]["cause"]
    assert "the cluster could not supply 8 workers: other jobs held" in cause


# ---- growing back ----------------------------------------------------------------------------------------------------


def ends_epochs(listener: Any, attempt: int, cancellation: Any, *, epochs: int = 10_000, **payload: Any) -> list[int]:
    """A gang that ends epochs until it is cancelled, or ``epochs`` times."""
    ended = threading.Event()
    with cancellation.stopping(ended.set):
        for rank in (1, 0):
            listener(Event("checkpoint", rank, attempt, 0.0, None, {"pinned": rank == 1}))
        for _ in range(epochs):
            listener(Event("checkpoint", 0, attempt, 0.0, None, {"pinned": True} | payload))
            if ended.wait(0.005):
                raise WorkerLost("a consequence of its end")
    return [1]


def test_small_gang_ends_with_epoch_once_all_fit(clock):
    gangs = cluster([3] * 70 + [4], ends_epochs, [1])
    supervisor, events = supervised(gangs, max_restarts=0, back_off=1000)
    assert gangs.begun == [(0, 3), (1, 4)]
    assert supervisor.failures == []
    cause = "the cluster has capacity for 4 workers again; the attempt had 3"
    assert payloads(events, "restart") == [(0, {"cause": cause, "seconds": 0.0})]
    assert payloads(events, "resized") == [(0, {"size": 3, "of": 4}), (1, {"size": 4, "of": 4})]
    assert "checkpoint" in [event.kind for event in events]


@pytest.mark.filterwarnings("ignore:the configuration allows 3")
@pytest.mark.parametrize(
    ("rooms", "payload"),
    [
        ([3], {}),
        ([3] * 70 + [4], {"pinned": False}),  # no epoch ends
        ([3] * 70 + [4], {"trouble": ["the disk is full"]}),  # no checkpoint
        ([3] * 70 + [None], {}),
        ([Capacity(3, 3)], {}),
    ],
)
def test_else_gang_stays_small(clock, rooms, payload):
    assert supervised(cluster(rooms, partial(ends_epochs, epochs=20, **payload)))[0].sizes == [3]


def test_lost_session_does_not_end_gang(clock, caplog):
    def ending(listener, attempt, cancellation):
        gangs.capacity = lambda: 1 / 0  # type: ignore[method-assign]
        return ends_epochs(listener, attempt, cancellation, epochs=20)

    gangs = cluster([3], ending)
    assert supervised(gangs)[0].sizes == [3]
    assert "the gang stays small, since its cluster reports no capacity: division by zero" in caplog.text


def test_errors_are_compared_across_change_of_size(clock):
    error = WorkerFailed("KeyError: something")
    gangs = cluster([3] * 70 + [4], error, ends_epochs, error)
    with pytest.raises(WorkerFailed, match="This was attempt 2"):
        supervised(gangs)
    assert [size for _, size in gangs.begun] == [3, 3, 4]
