"""Parts as blocks and as files."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkdl.cluster.local_tasks import dealt
from sparkdl.data.batch import Ragged
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.data.shard_store import ShardStore, pack

COLUMNS = Columns(
    (InputColumn("image"), InputColumn("words", ragged="padded", padding=-1)),
    InputColumn("label", "int64"),
    row_id=InputColumn("row", "int64"),
)
ROWS = 50
RANDOM = np.random.default_rng(4)


@pytest.fixture
def parts() -> list[Shard]:
    import pyarrow as pa

    table = pa.table(
        {
            "row": RANDOM.permutation(ROWS),
            "image": pa.array(RANDOM.normal(size=(ROWS, 6)).astype(np.float32).tolist(), pa.list_(pa.float32())),
            "words": pa.array([[*range(row % 4)] for row in range(ROWS)], pa.list_(pa.int64())),
            "label": np.arange(ROWS) % 3,
        }
    )
    return dealt([table.slice(0, 33), table.slice(33, 0), table.slice(33)], COLUMNS, 3)


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_rows_come_back_in_the_order_of_their_ids(parts: list[Shard], tmp_path: Path, size: int) -> None:
    store = ShardStore(tmp_path / "parts")
    for part in parts:
        blocks = list(pack(part, size=size))
        assert len(blocks) == (max(1, part.rows) if size == 1 else len(blocks))
        store.write(part.index, blocks)
    counts = tuple(part.rows for part in parts)
    layout = {"image": ("float32", (6,)), "label": ("int64", ()), "row": ("int64", ()), "words": ("int64", ())}
    for part in parts:
        found = store.open(part.index, COLUMNS, counts, layout)
        order = torch.arange(part.rows) if part.order is None else part.order
        assert (found.index, found.count, found.rows, found.parts) == (part.index, 3, part.rows, counts)
        for name, tensor in part.tensors.items():
            expected, own = tensor.index_select(0, order), found.tensors[name]
            if isinstance(expected, Ragged):
                assert isinstance(own, Ragged)
                assert torch.equal(expected.values, own.values)
                assert torch.equal(expected.bounds, own.bounds)
                assert own.padding == -1
            else:
                assert torch.equal(expected, own)
                assert own.dtype == expected.dtype


def test_a_part_is_there_as_a_whole_or_not_at_all(parts: list[Shard], tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "parts")
    blocks = list(pack(parts[0], size=100))

    def torn():
        yield from blocks[:2]
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        store.write(0, torn())
    assert not store.has(0)
    assert list((tmp_path / "parts").iterdir()) == []
    store.write(0, blocks)
    store.write(0, blocks)  # a second task, of the same part, changes nothing
    assert store.has(0)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["part-00000"]
    store.remove()
    assert not store.has(0)


def test_a_model_that_writes_to_its_batch_changes_no_file(parts: list[Shard], tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "parts")
    store.write(0, pack(parts[0]))
    layout = {"image": ("float32", (6,))}
    opened = store.open(0, COLUMNS, (33,), layout)
    image = opened.tensors["image"]
    assert isinstance(image, torch.Tensor)
    before = image.clone()
    image.zero_()
    again = store.open(0, COLUMNS, (33,), layout).tensors["image"]
    assert isinstance(again, torch.Tensor)
    assert torch.equal(again, before)


def test_one_process_at_a_time_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ShardStore(tmp_path / "store")

    def held(index: int) -> bool:
        with (store.folder / f"part-{index:05d}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with store.exclusive(2), store.exclusive(3):
        assert held(2)
        assert held(3)
    assert not held(2)

    def unsupported(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with store.exclusive(2):
        assert not store.has(2)
