"""Guarantees of every cluster. A concrete test class inherits the suite and has a fixture ``cluster``.

The cluster decides which worker gets which rows: no test here depends on it.
"""

from __future__ import annotations

import threading
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

    # ---- workers ------------------------------------------------------------------------------------------------

    def test_workers_know_their_place_and_start_clean(self, cluster):
        workers = cluster.gang(work.make_a_mess, attempt=3)
        assert [worker["rank"] for worker in workers] == list(range(cluster.size))
        assert {(worker["size"], worker["attempt"], worker["shard"]) for worker in workers} == {(cluster.size, 3, None)}
        ranks: Counter[str] = Counter()
        for rank, worker in enumerate(workers):
            assert worker["local_rank"] == ranks[worker["host"]]
            ranks[worker["host"]] += 1
            variables = {"RANK": str(rank), "WORLD_SIZE": str(cluster.size), "LOCAL_RANK": str(worker["local_rank"])}
            assert worker["variables"] == {"MASTER_ADDR": None, "MASTER_PORT": None, **variables}
        for worker, after in zip(workers, cluster.gang(work.who), strict=True):
            assert all(after[name] == worker[name] for name in ("rank", "variables", "threads"))

    def test_work_is_pickled_by_value_and_values_come_in_rank_order(self, cluster):
        factor = 3
        assert cluster.gang(lambda world, shard: world.rank * factor) == [rank * 3 for rank in range(cluster.size)]

    def test_gangs_may_be_smaller(self, cluster):
        expected = np.sort(NUMBERS["price"].astype(np.float32))
        for size in {1, cluster.size}:
            shards = cluster.gang(work.rows, self.make_data({"price": NUMBERS["price"]}), ["price"], size=size)
            assert [(shard["index"], shard["count"]) for shard in shards] == [(rank, size) for rank in range(size)]
            prices = np.concatenate([shard["columns"]["price"] for shard in shards])
            np.testing.assert_array_equal(np.sort(prices), expected)
            assert cluster.gang(work.total, size=size) == [(size * (size + 1) / 2,) * 2] * size
        for size in (0, cluster.size + 1):
            with pytest.raises(InvalidInput, match=f"size is {size}; expected a whole number from 1"):
                cluster.gang(work.who, size=size)

    # ---- data ---------------------------------------------------------------------------------------------------

    def test_each_row_arrives_once_as_tensors(self, cluster):
        columns = work.columns_of("image price count", "good", row_id="id")
        shards = cluster.gang(work.rows, self.make_data(NUMBERS), columns)
        rows = tuple(shard["rows"] for shard in shards)
        assert sum(rows) == 101
        places = [(shard["index"], shard["count"], shard["shards"]) for shard in shards]
        assert places == [(rank, cluster.size, rows) for rank in range(cluster.size)]
        dtypes = {"id": "int64", "image": "float32", "price": "float32", "count": "int32", "good": "bool"}
        order = np.argsort(NUMBERS["id"])
        arrived = np.argsort(np.concatenate([shard["columns"]["id"] for shard in shards]))
        for name, dtype in dtypes.items():
            arrays = [shard["columns"][name] for shard in shards]
            shape = NUMBERS[name].shape[1:]
            assert [(array.dtype, array.shape) for array in arrays] == [(dtype, (count, *shape)) for count in rows]
            np.testing.assert_array_equal(np.concatenate(arrays)[arrived], NUMBERS[name][order].astype(dtype))
        assert all((np.diff(shard["columns"]["id"]) > 0).all() for shard in shards)

    def test_columns_default_to_all_and_floats_may_be_double(self, cluster):
        data = {name: NUMBERS[name] for name in ("price", "count")}
        double = work.columns_of("price", floating="float64")
        for columns, dtype in ((None, "float32"), (double, "float64")):
            shards = cluster.gang(work.rows, self.make_data(data), columns)
            assert ("count" in shards[0]["columns"]) == (columns is None)
            prices = np.sort(np.concatenate([shard["columns"]["price"] for shard in shards]))
            np.testing.assert_array_equal(prices, np.sort(data["price"].astype(dtype)))

    def test_shards_may_be_empty(self, cluster):
        data = {"image": np.ones((1, 2, 3), np.float32), "label": np.array([7])}
        shards = cluster.gang(work.rows, self.make_data(data), work.columns_of("image", "label"))
        assert sorted(shard["rows"] for shard in shards) == [*[0] * (cluster.size - 1), 1]
        for shard in shards:
            image, label = shard["columns"]["image"], shard["columns"]["label"]
            assert (image.shape, image.dtype) == ((shard["rows"], 2, 3), np.float32)
            assert (label.shape, label.dtype) == ((shard["rows"],), np.int64)

    def test_bad_columns_raise_before_launch_and_bad_values_after(self, cluster):
        events: list[Event] = []
        data = self.make_data({"x": np.zeros(8)})
        with pytest.raises(InvalidInput, match="no column 'y'; the data has 'x'"):
            cluster.gang(work.rows, data, ["y"], listener=events.append)
        with pytest.raises(InvalidInput, match="columns were given without data"):
            cluster.gang(work.who, None, ["x"], listener=events.append)
        assert events == []
        values = np.where(np.arange(40) == 33, np.nan, 1.0)
        with pytest.raises(InvalidInput, match="'x' has 1 NaN") as caught:
            cluster.gang(work.rows, self.make_data({"x": values}), ["x"])
        assert caught.value.stage == "feed"

    # ---- values and errors --------------------------------------------------------------------------------------

    def test_large_values_come_back(self, cluster):
        *empty, last = cluster.gang(work.Large(5_000_000))
        assert all(len(value) == 0 for value in empty)
        np.testing.assert_array_equal(last, np.arange(5_000_000, dtype=np.uint32))

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda *_: threading.Lock(), "TypeError: cannot pickle"),
            (lambda *_: work.Trap(), "the driver cannot unpickle the result of rank 0: ValueError"),
        ],
    )
    def test_values_that_cannot_be_pickled_or_unpickled_raise(self, cluster, function, message):
        with pytest.raises(WorkerFailed, match=message) as caught:
            cluster.gang(function)
        assert caught.value.stage == "result"

    def test_first_cause_is_raised_with_its_place(self, cluster):
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
            failed = [event for event in events if (event.kind, event.rank) == ("failed", rank)]
            assert [event.payload["message"] for event in failed] == ["the milk is sour"]
        assert len(cluster.gang(work.total)) == cluster.size

    def test_error_of_all_workers_is_one_error(self, cluster):
        with pytest.raises(WorkerFailed) as caught:
            cluster.gang(work.Fails(None, KeyError("nobody knows")))
        assert caught.value.rank in range(cluster.size)
        assert str(caught.value).count("Traceback") == 1
        with pytest.raises(InvalidInput, match="expected a smaller model") as caught:
            cluster.gang(work.Fails(None, InvalidInput("expected a smaller model")))
        assert caught.value.trace is None

    # ---- events -------------------------------------------------------------------------------------------------

    def test_listener_that_blocks_delays_no_gang(self, cluster, monkeypatch):
        monkeypatch.setattr("sparkdl.telemetry.event.OBSERVING", 0.1)
        gate = threading.Event()
        for _ in range(2):
            assert cluster.gang(work.noted, listener=lambda event: gate.wait(60)) == [None] * cluster.size
        gate.set()

    def test_listener_gets_all_events_even_if_it_raises(self, cluster):
        events, rooms = list[Event](), []

        def listener(event: Event) -> None:
            events.append(event)
            rooms.append(cluster.capacity())
            raise RuntimeError("the listener is broken")

        assert cluster.gang(work.noted, listener=listener, attempt=4) == [None] * cluster.size
        assert all(room.now is None or room.now >= cluster.size for room in rooms)
        assert all(room.ever is None or room.ever >= cluster.size for room in rooms)
        assert {event.attempt for event in events if event.rank >= 0} == {4}
        assert sorted(event.rank for event in events if event.kind == "started") == list(range(cluster.size))
        for rank in range(cluster.size):
            noted = [event for event in events if (event.kind, event.rank) == ("noted", rank)]
            assert [event.payload for event in noted] == [{"value": n, "name": f"rank {rank}"} for n in range(3)]
            assert noted[0].clock == {"epoch": 0, "step": 0, "samples": 0}
