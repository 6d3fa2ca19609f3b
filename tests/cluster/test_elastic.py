"""Gangs that begin with fewer members where there is no room for all, and become whole again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sparkdl.cluster import elastic
from sparkdl.cluster.elastic import SizePolicy
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import ClusterUnavailable, InvalidInput, WorkerFailed, WorkerLost
from sparkdl.telemetry.event import Event

# ---- the policy, without a clock -------------------------------------------------------------------------------------


def slots(now: int | None, ever: int | None = None) -> Capacity:
    return Capacity(now, ever)


def test_all_begin_where_there_is_room_for_all():
    assert SizePolicy(1, 4, 300).choose(slots(4), 0) == 4
    assert SizePolicy(1, 4, 300).choose(slots(9), 0) == 4


def test_fewer_begin_after_a_wait():
    sizes = SizePolicy(2, 4, 300)
    assert [sizes.choose(slots(3), now) for now in (0, 100, 299, 300)] == [None, None, None, 3]
    assert sizes.choose(slots(2), 301) == 2, "there has been too little room for long enough already"


def test_below_the_least_the_cluster_is_to_wait_for_the_least():
    sizes = SizePolicy(2, 4, 300)
    assert [sizes.choose(slots(now), at) for now, at in ((0, 0), (1, 300))] == [None, 2]


def test_the_wait_begins_anew_after_there_was_room_for_all():
    sizes = SizePolicy(1, 4, 300)
    assert sizes.choose(slots(3), 0) is None
    assert sizes.full(slots(4), 200)
    assert [sizes.choose(slots(3), now) for now in (250, 549, 550)] == [None, None, 3]


def test_room_that_cannot_be_told_is_believed_to_be_there():
    sizes = SizePolicy(1, 4, 300)
    assert sizes.choose(slots(None), 0) == 4
    assert not sizes.full(slots(None), 0), "but a gang that runs is not ended for it"


@pytest.mark.parametrize(("now", "ever", "expected"), [(3, 3, 3), (3, 9, None), (0, 3, None), (0, 1, 2), (1, 1, 2)])
def test_what_can_never_be_is_not_waited_for(now, ever, expected):
    assert SizePolicy(2, 4, 300).choose(slots(now, ever), 0) == expected


def test_what_could_not_be_had_is_halved():
    sizes = SizePolicy(3, 16, 300)
    assert sizes.choose(slots(16), 0) == 16
    found = []
    for now in range(4):
        sizes.refuse(found[-1] if found else 16)
        assert not sizes.full(slots(16), now)
        found.append(sizes.choose(slots(16), now))
    assert found == [8, 4, 3, 3]
    sizes.forget()
    assert sizes.choose(slots(16), 5) == 16


def test_once_the_lost_executor_is_known_to_be_lost_the_room_is_believed_again():
    sizes = SizePolicy(1, 4, 300)
    sizes.refuse(4)
    assert sizes.choose(slots(3), 0) is None
    assert sizes.choose(slots(3), 300) == 3
    assert sizes.full(slots(4), 301)


# ---- with a supervisor, without processes ----------------------------------------------------------------------------


class Clock:
    """Stands for the module ``time``: a second passes whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    def time(self) -> float:
        return 0.0


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(elastic, "time", found)
    monkeypatch.setattr(elastic, "_POLL", 0)
    monkeypatch.setattr(elastic, "_LOOK", 0.01)
    return found


class Scripted:
    """A cluster whose gangs end as they are told; there is as much room as ``rooms`` says, and goes on to say.

    Attributes:
        begun: attempt and size of the gangs that have begun.
    """

    size = 4

    def __init__(self, rooms: list[int | Capacity | None], *endings: Any) -> None:
        self.rooms = rooms
        self.endings = list(endings)
        self.begun: list[tuple[int, int]] = []

    def capacity(self) -> Capacity:
        room = self.rooms.pop(0) if len(self.rooms) > 1 else self.rooms[0]
        return room if isinstance(room, Capacity) else Capacity(room, None)

    def gang(self, work, data=None, columns=None, *, listener=None, attempt=0, guard=None, size=None):
        self.begun.append((attempt, size))
        ending = self.endings.pop(0)
        if isinstance(ending, Exception):
            raise ending
        return ending(listener, attempt, guard) if callable(ending) else ending


def supervised(cluster: Scripted, **given: Any) -> tuple[Supervisor, list[Event]]:
    supervisor, events = Supervisor(cluster, **{"back_off": 0, "min_size": 2, "elastic_timeout": 60} | given), []
    supervisor.gang(print, listener=events.append)
    return supervisor, events


def told(events: list[Event], kind: str) -> list[tuple[int, dict[str, Any]]]:
    return [(event.attempt, event.payload) for event in events if event.kind == kind]


def test_without_a_least_size_nobody_asks_for_the_room(clock):
    cluster = Scripted([0], WorkerLost("killed"), [1])
    cluster.capacity = None
    for least in (None, 4):
        cluster.endings = [WorkerLost("killed"), [1]]
        supervisor, _ = supervised(cluster, min_size=least)
        assert supervisor.sizes == [4, 4]


def test_the_first_attempt_and_the_next_wait_once(clock):
    cluster = Scripted([3], WorkerLost("killed"), [1])
    supervisor, events = supervised(cluster)
    assert cluster.begun == [(0, 3), (1, 3)]
    assert told(events, "resized") == [(0, {"size": 3, "of": 4})]
    waiting = told(events, "waiting")
    assert {attempt for attempt, _ in waiting} == {0}
    assert {payload["what"] for _, payload in waiting} == {"room for 4 members, there is room for 3"}
    seconds = [payload["seconds"] for _, payload in waiting]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= 60 < clock.now
    assert [type(error) for error in supervisor.failures] == [WorkerLost]


def test_slots_that_come_while_they_are_waited_for_are_taken(clock):
    cluster = Scripted([2, 3, 3, 4], [1])
    assert supervised(cluster)[0].sizes == [4]


def test_too_little_room_for_the_least_is_the_clusters_to_wait_for(clock):
    cluster = Scripted([1], ClusterUnavailable("2 members need 2 task slots"))
    with pytest.raises(ClusterUnavailable, match="2 members need 2"):
        supervised(cluster)
    assert cluster.begun == [(0, 2)]


def test_what_the_configuration_never_gives_is_warned_of(clock):
    cluster = Scripted([Capacity(3, 3)], WorkerLost("killed"), [1])
    with pytest.warns(UserWarning, match="a gang of 4 members is wanted, .* allows for 3 at a time") as caught:
        assert supervised(cluster)[0].sizes == [3, 3]
    assert len(caught) == 1
    assert clock.now < 10


def test_a_cluster_on_which_no_gang_runs_says_so_before_any_wait(clock):
    cluster = Scripted([1])
    error = InvalidInput("spark.io.encryption.enabled is on")

    def room():
        raise error

    cluster.capacity = room
    with pytest.raises(InvalidInput, match="is on"):
        supervised(cluster)
    assert cluster.begun == []


def test_slots_that_are_not_to_be_had_cost_no_restart(clock):
    gone = ClusterUnavailable("other jobs held the task slots")
    cluster = Scripted([4], gone, gone, [1])
    cluster.size = 8
    cluster.rooms = [8]
    supervisor, events = supervised(cluster, max_restarts=0)
    assert cluster.begun == [(0, 8), (1, 4), (2, 2)]
    assert supervisor.failures == []
    assert told(events, "resized") == [(1, {"size": 4, "of": 8}), (2, {"size": 2, "of": 8})]
    assert "8 members could not be had: other jobs held" in told(events, "restart")[0][1]["cause"]


def test_an_executor_that_is_counted_although_it_is_lost_costs_one_wait(clock):
    gone = ClusterUnavailable("4 members need 4 task slots")
    cluster = Scripted([4, 4, 3], WorkerLost("killed"), gone, [1])
    supervisor, _ = supervised(cluster, max_restarts=1)
    assert supervisor.sizes == [4, 4, 3]
    assert [type(error) for error in supervisor.failures] == [WorkerLost]


def test_after_a_failure_all_slots_are_asked_for_again(clock):
    cluster = Scripted([4], ClusterUnavailable("held"), WorkerLost("killed"), [1])
    assert supervised(cluster)[0].sizes == [4, 2, 4]


def test_the_least_that_is_not_to_be_had_ends_it(clock):
    gone = ClusterUnavailable("no slots")
    cluster = Scripted([4], gone, gone)
    with pytest.raises(ClusterUnavailable) as caught:
        supervised(cluster)
    assert caught.value is gone
    assert [size for _, size in cluster.begun] == [4, 2]


@pytest.mark.parametrize("least", [0, 5, -1])
def test_a_least_size_that_cannot_be(least):
    with pytest.raises(InvalidInput, match=rf"min_size is {least}; expected 1 to 4"):
        Supervisor(Scripted([4]), min_size=least)


def test_a_wait_that_cannot_be():
    with pytest.raises(InvalidInput, match="elastic_timeout is -1"):
        Supervisor(InlineCluster(), elastic_timeout=-1)


# ---- growing back, without processes ---------------------------------------------------------------------------------


def ends_epochs(listener: Callable[[Event], None], attempt: int, guard: Any, **payload: Any) -> list[int]:
    """A gang that is at an epoch's end again and again, until it is ended, or has been for a while."""
    over = threading.Event()
    with guard.stopping(over.set):
        for rank in (1, 0):
            listener(Event("checkpoint", rank, attempt, 0.0, None, {"pinned": rank == 1}))
        for _ in range(payload.pop("epochs", 10_000)):
            listener(Event("checkpoint", 0, attempt, 0.0, None, {"pinned": True} | payload))
            if over.wait(0.005):
                raise WorkerLost("a consequence of its end")
    return [1]


def test_a_small_gang_is_ended_at_an_epochs_end_once_there_is_room_for_all(clock):
    cluster = Scripted([3] * 70 + [4], ends_epochs, [1])
    supervisor, events = supervised(cluster, max_restarts=0, back_off=1000)
    assert cluster.begun == [(0, 3), (1, 4)]
    assert supervisor.failures == []
    assert told(events, "restart") == [(0, {"cause": "there is room for 4 members, and 3 ran", "seconds": 0.0})]
    assert told(events, "resized") == [(0, {"size": 3, "of": 4}), (1, {"size": 4, "of": 4})]
    assert "checkpoint" in [event.kind for event in events]


@pytest.mark.filterwarnings("ignore:a gang of 4 members is wanted")
@pytest.mark.parametrize(
    ("rooms", "payload"),
    [
        ([3], {}),  # there is no room
        ([3] * 70 + [4], {"pinned": False}),  # an epoch does not end
        ([3] * 70 + [4], {"trouble": ["the disk is full"]}),  # there is no checkpoint
        ([3] * 70 + [None], {}),  # nobody knows
        ([Capacity(3, 3)], {}),  # there will never be more
    ],
)
def test_else_it_goes_on(clock, rooms, payload):
    cluster = Scripted(rooms, partial(ends_epochs, epochs=20, **payload))
    assert supervised(cluster)[0].sizes == [3]


def test_a_gang_is_not_ended_by_a_session_that_is(clock, caplog):
    cluster = Scripted([3])

    def ending(listener, attempt, guard):
        def room():
            raise RuntimeError("SparkContext was shut down")

        cluster.capacity = room
        return ends_epochs(listener, attempt, guard, epochs=20)

    cluster.endings = [ending]
    assert supervised(cluster)[0].sizes == [3]
    assert "SparkContext was shut down" in caplog.text


def test_errors_are_compared_across_a_change_of_size(clock):
    error = WorkerFailed("KeyError: something")
    cluster = Scripted([3] * 70 + [4], error, ends_epochs, error)
    with pytest.raises(WorkerFailed, match="attempt number 2"):
        supervised(cluster)
    assert [size for _, size in cluster.begun] == [3, 3, 4]
