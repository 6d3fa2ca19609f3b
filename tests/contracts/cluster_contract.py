"""What every cluster promises. A concrete test class inherits the suite and has a fixture ``cluster``.

    class TestThatCluster(ClusterContract):
        @pytest.fixture(scope="class")
        def cluster(self): ...

Which member gets which rows is the cluster's own affair: no test here leans on it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.telemetry.event import Event
from tests.contracts import work

NUMBERS = {
    "id": np.random.default_rng(0).permutation(101).astype(np.int64) * 1_000_003,
    "image": np.random.default_rng(1).normal(size=(101, 2, 3)).astype(np.float32),
    "price": np.random.default_rng(2).normal(size=101),
    "count": np.arange(101, dtype=np.int32) - 50,
    "good": np.arange(101) % 3 == 0,
}


class ClusterContract:
    """Every test starts one gang, or a few."""

    def make_data(self, arrays: dict[str, np.ndarray]) -> Any:
        """Arrays ``[rows, ...]`` as the cluster takes them; on Spark a DataFrame."""
        return arrays

    # ---- who is there ---------------------------------------------------------------------------------------

    def test_values_come_in_rank_order_from_members_that_know_their_place(self, cluster):
        found = cluster.gang(work.who, attempt=3)
        assert [member["rank"] for member in found] == list(range(cluster.size))
        assert {member["size"] for member in found} == {cluster.size}
        assert {member["attempt"] for member in found} == {3}
        assert all(member["part"] is None for member in found)
        seen: Counter[str] = Counter()
        for rank, member in enumerate(found):
            assert member["local_rank"] == seen[member["host"]]
            seen[member["host"]] += 1
            wanted = {"RANK": str(rank), "WORLD_SIZE": str(cluster.size), "LOCAL_RANK": str(member["local_rank"])}
            assert member["variables"] == {"MASTER_ADDR": None, "MASTER_PORT": None, **wanted}

    def test_torch_distributed_is_ready(self, cluster):
        expected = cluster.size * (cluster.size + 1) / 2
        assert cluster.gang(work.total) == [(expected, expected)] * cluster.size

    def test_work_is_pickled_by_value(self, cluster):
        factor = 3
        assert cluster.gang(lambda world, part: world.rank * factor) == [rank * 3 for rank in range(cluster.size)]

    def test_what_work_leaves_behind_does_not_reach_the_next_gang(self, cluster):
        cluster.gang(work.make_a_mess)
        before, after = cluster.gang(work.make_a_mess), cluster.gang(work.who)
        for name in ("rank", "variables", "threads"):
            assert [member[name] for member in after] == [member[name] for member in before]

    def test_a_gang_may_have_fewer_members(self, cluster):
        for size in {1, cluster.size}:
            found = cluster.gang(work.rows, self.make_data({"price": NUMBERS["price"]}), ["price"], size=size)
            assert [(part["index"], part["count"]) for part in found] == [(rank, size) for rank in range(size)]
            prices = np.concatenate([part["columns"]["price"] for part in found])
            np.testing.assert_array_equal(np.sort(prices), np.sort(NUMBERS["price"].astype(np.float32)))
            assert cluster.gang(work.total, size=size) == [(size * (size + 1) / 2,) * 2] * size
        for size in (0, cluster.size + 1):
            with pytest.raises(InvalidInput, match=rf"size is {size}; expected 1 to {cluster.size}"):
                cluster.gang(work.who, size=size)

    def test_there_is_room_while_a_gang_runs(self, cluster):
        rooms = []
        cluster.gang(work.noted, listener=lambda event: rooms.append(cluster.capacity()))
        assert rooms
        for room in rooms:
            assert room.now is None or room.now >= cluster.size
            assert room.ever is None or room.ever >= cluster.size

    # ---- data -----------------------------------------------------------------------------------------------

    def test_each_row_arrives_once_as_tensors(self, cluster):
        columns = work.columns_of("image price count", "good", row_id="id")
        found = cluster.gang(work.rows, self.make_data(NUMBERS), columns)
        parts = tuple(part["rows"] for part in found)
        assert sum(parts) == 101
        assert [(part["index"], part["count"], part["parts"]) for part in found] == [
            (rank, cluster.size, parts) for rank in range(cluster.size)
        ]
        kinds = {"id": "int64", "image": "float32", "price": "float32", "count": "int32", "good": "bool"}
        order = np.argsort(NUMBERS["id"])
        for name, kind in kinds.items():
            pieces = [part["columns"][name] for part in found]
            assert [(piece.dtype, piece.shape) for piece in pieces] == [
                (kind, (rows, *NUMBERS[name].shape[1:])) for rows in parts
            ]
            whole = np.concatenate(pieces)[np.argsort(np.concatenate([part["columns"]["id"] for part in found]))]
            np.testing.assert_array_equal(whole, NUMBERS[name][order].astype(kind))
        for part in found:
            assert (np.diff(part["columns"]["id"]) > 0).all()

    def test_columns_may_be_names_and_floats_double(self, cluster):
        data = {name: NUMBERS[name] for name in ("price", "count")}
        double = work.columns_of("price", floating="float64")
        for columns, kind in ((["price"], "float32"), (None, "float32"), (double, "float64")):
            found = cluster.gang(work.rows, self.make_data(data), columns)
            assert ("count" in found[0]["columns"]) == (columns is None)
            prices = np.sort(np.concatenate([part["columns"]["price"] for part in found]))
            np.testing.assert_array_equal(prices, np.sort(data["price"].astype(kind)))

    def test_a_part_may_be_empty(self, cluster):
        data = {"image": np.ones((1, 2, 3), np.float32), "label": np.array([7])}
        found = cluster.gang(work.rows, self.make_data(data), work.columns_of("image", "label"))
        assert sorted(part["rows"] for part in found) == [*[0] * (cluster.size - 1), 1]
        for part in found:
            image, label = part["columns"]["image"], part["columns"]["label"]
            assert (image.shape, image.dtype) == ((part["rows"], 2, 3), np.float32)
            assert (label.shape, label.dtype) == ((part["rows"],), np.int64)

    def test_columns_are_checked_before_anything_is_launched(self, cluster):
        events: list[Event] = []
        data = self.make_data({"x": np.zeros(8)})
        with pytest.raises(InvalidInput, match="no column 'y'; the data has 'x'"):
            cluster.gang(work.rows, data, ["y"], listener=events.append)
        with pytest.raises(InvalidInput, match="columns were given without data"):
            cluster.gang(work.who, None, ["x"], listener=events.append)
        assert events == []

    def test_values_that_cannot_be_used_are_invalid_input(self, cluster):
        values = np.where(np.arange(40) == 33, np.nan, 1.0)
        with pytest.raises(InvalidInput, match="'x' has 1 NaN") as caught:
            cluster.gang(work.rows, self.make_data({"x": values}), ["x"])
        assert caught.value.stage == "feed"

    # ---- what comes back ------------------------------------------------------------------------------------

    def test_large_values_come_back(self, cluster):
        numbers = 5_000_000
        *others, last = cluster.gang(work.Large(numbers))
        assert all(len(other) == 0 for other in others)
        np.testing.assert_array_equal(last, np.arange(numbers, dtype=np.uint32))

    def test_a_value_that_cannot_be_pickled_is_a_clean_failure(self, cluster):
        with pytest.raises(WorkerFailed, match="TypeError: cannot pickle") as caught:
            cluster.gang(work.a_lock)
        assert caught.value.stage == "result"

    def test_a_value_that_cannot_be_unpickled_is_a_clean_failure(self, cluster):
        with pytest.raises(WorkerFailed, match="the driver cannot unpickle the result of rank 0: ValueError") as caught:
            cluster.gang(work.a_trap)
        assert caught.value.stage == "result"

    # ---- what goes wrong ------------------------------------------------------------------------------------

    def test_the_first_cause_comes_back_with_its_place_while_the_others_wait(self, cluster):
        for rank in {0, cluster.size - 1}:
            fails, events = work.Fails(rank, ValueError("the milk is sour"), step=5), list[Event]()
            with pytest.raises(WorkerFailed) as caught:
                cluster.gang(fails, attempt=2, listener=events.append)
            hosts = {event.rank: event.payload["host"] for event in events if event.kind == "started"}
            error = caught.value
            assert (error.stage, error.rank, error.host) == ("work", rank, hosts[rank])
            assert (error.attempt, error.step) == (2, 5)
            first = str(error).splitlines()[0]
            assert first.startswith("ValueError: the milk is sour")
            assert f"rank {rank}, host {hosts[rank]}, attempt 2, step 5" in first
            assert "in give_up" in error.trace
            assert "PeerLost" not in error.trace
        assert len(cluster.gang(work.total)) == cluster.size

    def test_an_error_on_all_members_is_one_error(self, cluster):
        with pytest.raises(WorkerFailed) as caught:
            cluster.gang(work.Fails(None, KeyError("nobody knows")))
        assert caught.value.rank in range(cluster.size)
        assert str(caught.value).count("Traceback") == 1

    def test_invalid_input_stays_what_it_is(self, cluster):
        with pytest.raises(InvalidInput, match="expected a smaller model") as caught:
            cluster.gang(work.Fails(None, InvalidInput("expected a smaller model")))
        assert caught.value.trace is None

    # ---- events ---------------------------------------------------------------------------------------------

    def test_the_listener_hears_every_member(self, cluster):
        events: list[Event] = []
        cluster.gang(work.noted, listener=events.append, attempt=4)
        assert {event.attempt for event in events if event.rank >= 0} == {4}
        assert sorted(event.rank for event in events if event.kind == "started") == list(range(cluster.size))
        for rank in range(cluster.size):
            noted = [event for event in events if (event.kind, event.rank) == ("noted", rank)]
            assert [event.payload for event in noted] == [{"value": n, "name": f"rank {rank}"} for n in range(3)]
            assert noted[0].clock == {"epoch": 0, "step": 0, "samples": 0}

    def test_a_failure_is_an_event_too(self, cluster):
        events: list[Event] = []
        with pytest.raises(WorkerFailed):
            cluster.gang(work.Fails(0, ValueError("the milk is sour")), listener=events.append)
        failed = [event for event in events if (event.kind, event.rank) == ("failed", 0)]
        assert [event.payload["message"] for event in failed] == ["the milk is sour"]

    def test_a_listener_that_raises_hears_the_rest_and_stops_nothing(self, cluster):
        events: list[Event] = []

        def listener(event: Event) -> None:
            events.append(event)
            raise RuntimeError("the listener is broken")

        assert cluster.gang(work.noted, listener=listener) == [None] * cluster.size
        assert sum(event.kind == "noted" for event in events) == 3 * cluster.size
