"""Tables spooled into shards in one process."""

import resource
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from sparkdl.data.spool import Spool


def spooled(columns, batches, directory=None):
    spool = Spool(columns, directory=None if directory is None else str(directory))
    for batch in batches:
        spool.append(batch)
    return spool


@contextmanager
def largest_file(size):
    """Like a full disk: no file of this process may grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def shards_of(tables, columns, *, batch_rows=100):
    """A shard for each table, as the workers of a gang agree on them."""
    spools = [spooled(columns, table.to_batches(max_chunksize=batch_rows)) for table in tables]
    rows = tuple(spool.rows for spool in spools)
    layout = {name: row for spool in spools for name, row in spool.layout().items()}
    return [spool.shard(index, rows, layout) for index, spool in enumerate(spools)]


def cut(table, rows):
    """Consecutive slices of a table with these numbers of rows."""
    firsts = np.cumsum([0, *rows])
    assert firsts[-1] == table.num_rows
    return [table.slice(int(first), count) for first, count in zip(firsts, rows, strict=False)]


def shuffled(table, seed):
    """The rows in another order of arrival."""
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))
