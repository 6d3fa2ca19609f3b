"""Tasks of rounds on executors, and the results that the driver assembles, without Spark."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster.tasks import TaskResult, reduce_results
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state
from sparkdl.spark import executor_tasks
from sparkdl.spark.executor_tasks import MapTask, PackedData, PackTask, store_of
from sparkdl.spark.independent_tasks import IndependentTask
from sparkdl.spark.session.shared_bytes import SharedFile
from sparkdl.spark.tensor_chunks import RESULT_CHUNK, RoundResults, is_piece
from sparkdl.telemetry.task_recorder import Reporting
from tests.contracts.map_reduce_contract import COLUMNS, Sums, Whole

LAYOUT = {"x": ("float64", (3,)), "id": ("int64", ())}
ROWS = (40, 0, 25)


def pack(index: int, rows: int, key: str = "elsewhere") -> list[Any]:
    """The blocks of a partition that comes from the JVM."""
    random = np.random.default_rng(index)
    ids = random.permutation(rows) + 1000 * index
    x = pa.FixedSizeListArray.from_arrays(pa.array(random.normal(size=rows * 3)), 3)
    shard = pa.array([index] * rows, pa.int32())
    batch = pa.RecordBatch.from_arrays([x, pa.array(ids), shard], names=["0", "1", "2"])
    batches = [batch.slice(0, 0), batch.slice(0, rows // 2), batch.slice(rows // 2)]
    packed = PackTask(COLUMNS, ("x", "id"), key).run(batches)
    return [SimpleNamespace(**row) for blocks in packed for row in blocks.to_pylist()]


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The blocks of each shard, packed on another executor."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return [pack(index, rows) for index, rows in enumerate(ROWS)]


@pytest.fixture
def data(blocks: list[list[Any]]) -> PackedData:
    marks = (json.loads(shard[0].about)["fingerprint"] if shard else "" for shard in blocks)
    return PackedData("key", COLUMNS, ROWS, tuple(marks), LAYOUT)


@pytest.fixture
def task(data: PackedData) -> IndependentTask:
    return IndependentTask(ship(Whole()), data, indices=(0, 2), attempts=1, reporting=Reporting())


def results(task: IndependentTask, rows: Any) -> list[TaskResult]:
    return [TaskResult.unpacked(packed) for _, packed in task.all_rows(0, rows)]


def test_shard_with_truncated_input_is_built_again(blocks, data):
    # If a task's input fails, pyspark's worker sees its end.
    task = MapTask(ship(Sums()), pack_state({"factor": 1.0}), data, 1 << 20, cut=True, reporting=Reporting())
    [expected] = task.build(iter(blocks[0]))
    assert expected[2] == ""  # a small result is never cut
    store_of("key", 0).discard(0)
    short = pack(0, 30, "key")
    [missing] = task.run(0, iter([]))
    assert missing[2:] == ("missing", b"")
    with pytest.raises(EOFError, match="30 of 40 rows came before the input ended"):
        list(task.build(iter(short)))
    assert list(task.build(iter(blocks[0]))) == list(task.run(0, iter([]))) == [expected]


def test_state_that_an_executor_does_not_see_is_an_error_of_the_user(blocks, data, tmp_path):
    state = SharedFile(str(tmp_path / "elsewhere"))
    task = MapTask(ship(Sums()), state, data, 1 << 20, cut=True, reporting=Reporting())
    [(_, _, _, packed)] = task.build(iter(blocks[0]))
    with pytest.raises(InvalidInput, match=r"does not see .*elsewhere; expected a runDir that this process and the"):
        raise TaskResult.unpacked(packed).error("shard 0")


@pytest.mark.parametrize("whole", [True, False])
def test_truncated_input_is_neither_mapped_nor_stored(blocks, task, whole):
    rows, partition = ([*blocks[0], *blocks[2]], 0) if whole else (blocks[2], 2)
    run = partial(task.all_rows if whole else task.shard, partition)
    for few in ([], rows[:-1]):
        with pytest.raises(EOFError, match="rows came before the input ended"):
            list(run(few))
    [(_, packed)] = run(rows)
    assert len(TaskResult.unpacked(packed).note["ids"]) == (sum(ROWS) if whole else ROWS[2])
    with pytest.raises(EOFError):  # also if the rows are stored
        list(run(rows[:-1]))


def test_reordered_shard_is_not_mapped(blocks, task):
    # All rows are there, with other row ids.
    first, *others = task.data.fingerprints
    changed = replace(task, data=replace(task.data, fingerprints=(first[:-1] + "x", *others)))
    rows = itertools.chain(*blocks)
    [result] = results(changed, rows)
    with pytest.raises(InvalidInput, match="member 0: after an executor was lost, Spark recomputed its rows"):
        raise result.error("member 0")
    assert next(rows, None) is None
    [result] = results(task, itertools.chain(*blocks))
    assert result.trouble is None


def test_tasks_take_turns_on_gpus_that_spark_does_not_assign(blocks, task, monkeypatch):
    """Two tasks of one host, whose process IDs may both be even, do not share a GPU."""
    chosen = []

    def task_device(device: str, addresses: Any, *, turn: int | None) -> torch.device:
        chosen.append((device, addresses, turn))
        return torch.device("cpu")

    monkeypatch.setattr(executor_tasks, "task_device", task_device)
    for partition in (4, 5):
        context = SimpleNamespace(
            cpus=lambda: 1, attemptNumber=lambda: 0, resources=dict, partitionId=partial(int, partition)
        )
        monkeypatch.setattr(executor_tasks.TaskContext, "get", lambda context=context: context)
        [mapped] = results(replace(task, device="cuda"), [*blocks[0], *blocks[2]])
        assert mapped.trouble is None
    assert chosen == [("cuda", None, 4), ("cuda", None, 5)]


def test_chunks_of_absent_shard_do_not_count_later():
    # A lost shard may be mapped again on an executor with its files, after it was built elsewhere.
    rows = [(shard, piece, "", b"") for shard in range(3) for piece in (RESULT_CHUNK, 0, 1)]
    assert [row[:2] for row in rows if is_piece([2], row)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_order_of_arrival_does_not_change_the_sum():
    numbers = (1e16, 1.0, -1e16, 0.1, 3.0)  # their running sums depend on the order
    shards = [
        TaskResult(shard, {"sum": torch.tensor(number, dtype=torch.float64)}) for shard, number in enumerate(numbers)
    ]
    rows = [(shard.index, RESULT_CHUNK, "", shard.packed()) for shard in shards]
    totals, sums = set(), set()
    for order in itertools.permutations(rows):
        results = RoundResults(len(numbers))
        results.take(order)
        totals.add(pack_state(reduce_results(Sums(), results.in_order)))
        sums.add(sum(numbers[index] for index, *_ in order))
    assert len(totals) == 1
    assert len(sums) > 1
