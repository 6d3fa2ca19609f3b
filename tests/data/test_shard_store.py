"""Shards as blocks and as files."""

import errno
import fcntl

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.data.batch import Ragged
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard_store import ShardStore, pack

COLUMNS = Columns(
    (InputColumn("image"), InputColumn("words", ragged="padded", padding=-1)),
    InputColumn("label", "int64"),
    row_id=InputColumn("row", "int64"),
)
LAYOUT = {"image": ("float32", (6,)), "label": ("int64", ()), "row": ("int64", ()), "words": ("int64", ())}


@pytest.fixture
def shards():
    draw = np.random.default_rng(4)
    table = pa.table(
        {
            "row": draw.permutation(50),
            "image": pa.array(draw.normal(size=(50, 6)).astype(np.float32).tolist(), pa.list_(pa.float32())),
            "words": pa.array([[*range(row % 4)] for row in range(50)], pa.list_(pa.int64())),
            "label": np.arange(50) % 3,
        }
    )
    return ShardedData([table.slice(0, 33), table.slice(33, 0), table.slice(33)], COLUMNS, 3).shards()


@pytest.fixture
def store(tmp_path):
    return ShardStore(tmp_path / "store")


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_rows_come_back_in_the_order_of_their_ids(shards, store, size):
    for shard in shards:
        blocks = list(pack(shard, size=size))
        assert size > 1 or len(blocks) == max(1, shard.rows)
        store.write(shard.index, blocks)
    counts = tuple(shard.rows for shard in shards)
    for shard in shards:
        opened = store.open(shard.index, COLUMNS, counts, LAYOUT)
        order = torch.arange(shard.rows) if shard.order is None else shard.order
        assert (opened.index, opened.count, opened.rows, opened.shard_rows) == (shard.index, 3, shard.rows, counts)
        for name, tensor in shard.tensors.items():
            expected, actual = tensor.index_select(0, order), opened.tensors[name]
            if isinstance(expected, Ragged):
                assert torch.equal(expected.values, actual.values)
                assert torch.equal(expected.bounds, actual.bounds)
                assert actual.padding == -1
            else:
                assert torch.equal(expected, actual)
                assert actual.dtype == expected.dtype
                actual.zero_()  # a model may write to its batch, and the file stays as it was
                again = store.open(shard.index, COLUMNS, counts, LAYOUT)
                assert torch.equal(again.tensors[name], expected)


def test_shard_is_published_whole_or_not_at_all(shards, store):
    blocks = list(pack(shards[0], size=100))

    def torn():
        yield from blocks[:2]
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        store.write(0, torn())
    assert not store.has(0)
    assert list(store.folder.iterdir()) == []
    for _ in range(2):  # a second task of the same shard changes nothing
        store.write(0, blocks)
        assert store.has(0)
        assert [path.name for path in store.folder.iterdir()] == ["shard-00000"]
    store.remove()
    assert not store.has(0)


def test_locks_exclude_other_processes_where_they_exist(store, monkeypatch):
    def locked(index):
        with (store.folder / f"shard-{index:05d}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def unsupported(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    with store.exclusive(2), store.exclusive(3):
        assert locked(2)
        assert locked(3)
    assert not locked(2)
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with store.exclusive(2):
        assert not store.has(2)
