"""The rows of a trained embedding table as a DataFrame ``(id bigint, vector array<float>)``.

Tasks read the rows from the model's files, so that neither the driver nor a task holds a large table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyspark.sql import DataFrame, SparkSession
from torch import Tensor

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import WeightsFile, read_rows, rows_header
from sparkdl.serving.trained_module import TrainedModule
from sparkdl.training.layouts.table import tables_of

_BATCH = 16 << 20  # bytes of vectors that a task reads at a time


@dataclass(frozen=True)
class TableReader:
    """Reads pieces of the files of a table, in tasks.

    Attributes:
        files: file ``r`` of ``n`` has the rows ``r, r + n, r + 2 n, ...``.
        pieces: of each piece, the number of its file, its first row in the file, and its count of rows.
    """

    files: tuple[WeightsFile, ...]
    pieces: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(files: tuple[WeightsFile, ...]) -> TableReader:
        """Divide the files into pieces."""
        pieces = []
        for number, file in enumerate(files):
            dtype, (rows, width) = rows_header(file)
            count = max(1, _BATCH // (width * dtype.itemsize))
            pieces += [(number, first, min(count, rows - first)) for first in range(0, rows, count)]
        return TableReader(files, tuple(pieces))

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the pieces whose numbers are in the batches' first column."""
        for batch in batches:
            for piece in batch.column(0).to_pylist():
                number, first, count = self.pieces[piece]
                ids = torch.arange(first, first + count) * len(self.files) + number
                yield from record_batches(ids, read_rows(self.files[number], first, count)).to_batches()


def table_frame(
    session: SparkSession, trained: TrainedModule, name: str, values: Sequence[Any] | None = None
) -> DataFrame:
    """The rows of the table ``name``, as ``TorchModel.table``."""
    weights = trained.weights
    files = weights.tables if isinstance(weights, WeightsFile) else {}
    tables = {} if files else tables_of(trained.module())  # either all tables of a model are in files, or none is
    if name not in {**files, **tables}:
        raise InvalidInput(f"the model has no Table {name!r}; it has {listed([*files, *tables]) or 'no Table'}.")
    if name in files:
        reader = TableReader.of(files[name])
        kind = "double" if rows_header(files[name][0])[0] == torch.float64 else "float"
        numbers = session.range(len(reader.pieces), numPartitions=min(len(reader.pieces), 200))
        frame = numbers.mapInArrow(reader.read, f"id bigint, vector array<{kind}>")
    else:
        rows = tables[name].weight.detach()
        frame = session.createDataFrame(record_batches(torch.arange(len(rows)), rows))
    if values is None:
        return frame
    named = pa.table({"id": pa.array(range(len(values)), pa.int64()), "value": pa.array(values)})
    return frame.join(session.createDataFrame(named), "id", "left")


def record_batches(ids: Tensor, rows: Tensor) -> pa.Table:
    """Ids ``[k]`` and rows ``[k, d]`` as Arrow columns; lists of vectors have 32-bit offsets."""
    rows = rows if rows.dtype == torch.float64 else rows.float()
    offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
    vectors = pa.ListArray.from_arrays(offsets, pa.array(rows.reshape(-1).numpy()))
    return pa.table({"id": pa.array(ids.numpy()), "vector": vectors})
