"""What the tests of the feed share: tables spooled into the parts of one process."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkdl.data.columns import Columns
from sparkdl.data.shard import Shard
from sparkdl.data.spool import Spool


def spooled(columns: Columns, batches: Sequence[pa.RecordBatch], directory: Path | None = None) -> Spool:
    spool = Spool(columns, directory=None if directory is None else str(directory))
    for batch in batches:
        spool.append(batch)
    return spool


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell: no file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def parts_of(tables: Sequence[pa.Table], columns: Columns, *, batch_rows: int = 100) -> list[Shard]:
    """A part for each table, as the members of a gang agree on them."""
    spools = [spooled(columns, table.to_batches(max_chunksize=batch_rows)) for table in tables]
    rows = tuple(spool.rows for spool in spools)
    layout = {name: found for spool in spools for name, found in spool.layout().items()}
    return [spool.part(index, rows, layout) for index, spool in enumerate(spools)]


def cut(table: pa.Table, rows: Sequence[int]) -> list[pa.Table]:
    """Runs of a table with so many rows."""
    firsts = np.cumsum([0, *rows])
    assert firsts[-1] == table.num_rows
    return [table.slice(int(first), own) for first, own in zip(firsts, rows, strict=False)]


def shuffled(table: pa.Table, seed: int) -> pa.Table:
    """The rows in another order of arrival."""
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))
