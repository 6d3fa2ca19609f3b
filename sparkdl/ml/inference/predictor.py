"""Predictions in this process, without Spark and without pyspark.

The same code scores rows here and in ``transform``. Results differ only in the order of floating-point sums, which
depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sparkdl.cluster.group.devices import task_device
from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.inference.model_cache import CachedModel
from sparkdl.ml.inference.scorer import Scorer
from sparkdl.ml.inference.trained_module import TrainedModule, output_names
from sparkdl.ml.persistence.export import Signature


@dataclass(frozen=True)
class Predictor:
    """A loaded model that predicts in this process; ``sparkdl.load_predictor`` returns one.

    Several threads may predict at the same time.
    """

    _scorer: Scorer
    _names: Mapping[str, str]
    _loaded: CachedModel
    _signature: Signature | None = None

    @staticmethod
    def of(trained: TrainedModule, params: Mapping[str, Any], loaded: CachedModel | None = None) -> Predictor:
        """The predictor of a model with these ``params``; ``loaded`` is its module, if there is one already."""
        scorer = trained.scorer(params)
        if loaded is None:
            loaded = CachedModel.on(task_device(scorer.device), trained.module(), trained.precision)
        return Predictor(scorer, output_names(params), loaded, trained.signature)

    def predict(self, data: Any) -> pd.DataFrame | pa.Table:
        """Predict the columns that ``transform`` adds, the prediction first.

        Args:
            data: a pandas DataFrame or a pyarrow Table with a column for each input, of numbers, lists or arrays; a
                mapping of arrays by input names, rows first; or an array ``[rows, ...]`` if there is one input.

        Returns:
            A Table for a Table; else a DataFrame, in which vectors and arrays are numpy arrays.

        Raises:
            InvalidInput: a column is missing or cannot become a tensor, or the model's output has the wrong shape.
        """
        arrow = isinstance(data, (pa.Table, pa.RecordBatch))
        columns = [_arrow(name, values) for name, values in zip(self.inputs, self._picked(data), strict=True)]
        rows = list(map(len, columns))
        if not any(rows):  # without rows a column of objects has no type
            columns = [pa.array([], pa.float32()) for _ in columns]
        self._scorer.columns.check(pa.schema(list(zip(self.inputs, [column.type for column in columns], strict=True))))
        if len(set(rows)) > 1:
            raise InvalidInput(f"the inputs have {rows} rows; expected equal numbers.")
        scored = next(self._scorer.scores([tuple(columns)], self._loaded))
        arrays = {name: scored.field(field) for name, field in self._fields().items()}
        if arrow:
            return pa.table(arrays)
        index = data.index if isinstance(data, pd.DataFrame) else None
        return pd.DataFrame({name: _numpy(array) for name, array in arrays.items()}, index=index)

    @property
    def inputs(self) -> list[str]:
        """The names of the input columns."""
        return [column.name for column in self._scorer.columns.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of the columns of ``predict``."""
        return list(self._fields())

    @property
    def input_types(self) -> list[tuple[str, list[int], str]] | None:
        """The name, the shape of a row and the dtype of each input; None if unknown.

        If ``collate``, ``assembleInputs`` or a column's description changes the inputs, the module's signature does not
        give their types.
        """
        columns = self._scorer.columns.inputs
        changed = any(column.ragged or column.decode or column.shape is not None for column in columns)
        if self._signature is None or changed or self._scorer.collate or len(columns) != len(self._signature):
            return None
        return [(name, list(shape), dtype) for name, (shape, dtype) in zip(self.inputs, self._signature, strict=True)]

    @property
    def output_types(self) -> list[tuple[str, str, int]]:
        """The name, ``"float"`` or ``"double"``, and the depth of arrays, 0 for none, of each column of ``predict``."""
        returned, types = self._scorer.returned(), []
        for name, field in self._fields().items():
            kind, depth = returned.field(field).type, 0
            while pa.types.is_list(kind):
                kind, depth = kind.value_type, depth + 1
            types.append((name, str(kind), depth))
        return types

    def _fields(self) -> dict[str, str]:
        fields = {field.name for field in self._scorer.returned()}
        return {name: field for field, name in self._names.items() if name and field in fields}

    def _picked(self, data: Any) -> list[Any]:
        inputs = self.inputs
        if isinstance(data, (pd.DataFrame, pa.Table, pa.RecordBatch, Mapping)):
            names = data.schema.names if isinstance(data, (pa.Table, pa.RecordBatch)) else list(map(str, data))
            if missing := [name for name in inputs if name not in names]:
                raise InvalidInput(f"the data has no {listed(missing)}; it has {listed(names)}.")
            return [data[name] for name in inputs]
        if len(inputs) > 1:
            raise InvalidInput(
                f"the data is a {type(data).__name__}, and the model has the inputs {listed(inputs)}; expected a "
                "DataFrame or a Table with these columns, or a mapping of arrays by these names."
            )
        return [data]


def _arrow(name: str, values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    try:
        array = _array(values.to_numpy() if isinstance(values, pd.Series) else values)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise InvalidInput(f"column {name!r} cannot become a tensor: {error}") from error
    if array.type == pa.null() and len(array):
        raise InvalidInput(f"column {name!r} has no values; expected numbers.")
    return array


def _array(values: Any) -> pa.Array:
    if not isinstance(values, np.ndarray) or values.dtype == object:
        values = list(values)
        shapes = {getattr(value, "shape", None) for value in values}
        values = np.stack(values) if len(shapes) == 1 and None not in shapes else values
    if isinstance(values, np.ndarray) and values.dtype != object:
        if not values.ndim:
            raise InvalidInput(f"the input is the number {values}; expected an array with rows first.")
        array = pa.array(np.ascontiguousarray(values).reshape(-1))
        for length in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, length)
        return array
    # Lists of several lengths, bytes, or missing values. As in Spark, NaN stays a number.
    return pa.array([value.tolist() if isinstance(value, np.ndarray) else value for value in values], from_pandas=False)


def _numpy(values: pa.Array) -> Any:
    if not pa.types.is_list(values.type):
        return values.to_numpy(zero_copy_only=False)
    shape, flat = [len(values)], values
    while pa.types.is_list(flat.type) and len(flat):
        flat, rows = flat.flatten(), len(flat)
        shape.append(len(flat) // rows)
    return list(flat.to_numpy().reshape(shape)) if len(values) else []
