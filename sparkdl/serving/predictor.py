"""Predictions in this process, without Spark and without pyspark.

The same code scores rows here and in ``transform``. Results differ only in the order of floating-point sums, which
depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from sparkdl.cluster.group.devices import task_device
from sparkdl.data.columns import InputColumn, element_type, listed
from sparkdl.data.hashed_columns import hashed_ids
from sparkdl.errors import InvalidInput
from sparkdl.serving.features.conversion import cast_exactly, read_array, with_elements
from sparkdl.serving.model_cache import CachedModel
from sparkdl.serving.scorer import Scorer
from sparkdl.serving.trained_module import TrainedModule, output_names
from sparkdl.training.rng import kept_random_state


@dataclass(frozen=True)
class Predictor:
    """A loaded model that predicts in this process; ``sparkdl.load_predictor`` returns one.

    Several threads may predict at the same time.
    """

    _scorer: Scorer
    _names: Mapping[str, str]
    _loaded: CachedModel

    @staticmethod
    def of(trained: TrainedModule, params: Mapping[str, Any], loaded: CachedModel | None = None) -> Predictor:
        """The predictor of a model with these ``params``; ``loaded`` is its module, if there is one already."""
        scorer = trained.scorer(params)
        if loaded is None:
            loaded = CachedModel.on(task_device(scorer.device), trained.module(), trained.precision)
        return Predictor(scorer, output_names(params), loaded)

    def predict(self, data: Any) -> pd.DataFrame | pa.Table:
        """Predict the columns that ``transform`` adds, the prediction first.

        Args:
            data: a pandas DataFrame or a pyarrow Table with a column for each input, of numbers, lists or arrays; a
                mapping of arrays by input names; a list of mappings, one for each row; or an array ``[rows, ...]`` of
                the only input.

        Returns:
            A Table for a Table; else a DataFrame, in which vectors and arrays are numpy arrays.

        Raises:
            InvalidInput: a column is missing or cannot become a tensor, or the model's output has the wrong shape.
        """
        pairs = zip(self.inputs, picked(data, self.inputs, alone=True), strict=True)
        arrays = [read_array(values, name, nan_is_null=False) for name, values in pairs]
        rows = list(map(len, arrays))
        columns = list(map(self._transported, arrays, self._scorer.columns.inputs))
        self._scorer.columns.check(pa.schema(list(zip(self.inputs, [column.type for column in columns], strict=True))))
        if len(set(rows)) > 1:
            raise InvalidInput(f"the inputs have {rows} rows; expected equal numbers.")
        scored = self._scored(tuple(columns))
        outputs = {name: scored.field(field) for name, field in self._fields().items()}
        if isinstance(data, (pa.Table, pa.RecordBatch)):
            return pa.table(outputs)
        index = data.index if isinstance(data, pd.DataFrame) else None
        return pd.DataFrame({name: _numpy(array) for name, array in outputs.items()}, index=index)

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
        columns, signature = self._scorer.columns.inputs, self._scorer.signature
        changed = any(column.ragged or column.decode or column.hash or column.shape is not None for column in columns)
        if signature is None or changed or self._scorer.collate or len(columns) != len(signature):
            return None
        return [(name, list(shape), dtype) for name, (shape, dtype) in zip(self.inputs, signature, strict=True)]

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

    def _transported(self, array: pa.Array, column: InputColumn) -> pa.Array:
        """The array in the type in which ``transform`` sends it to Python."""
        if column.hash is not None:
            return hashed_ids(array, column)
        kind, floating = element_type(array.type), self._scorer.columns.floating
        real, decimal = column.dtype in (None, "float32", "float64"), pa.types.is_decimal(kind)
        if not decimal and not pa.types.is_null(kind) and (column.dtype != "float64" or not pa.types.is_floating(kind)):
            return array
        alias = floating if real or not decimal else "float64" if kind.scale else "int64"
        return cast_exactly(array, with_elements(array.type, pa.type_for_alias(alias)), column.name)

    def _scored(self, columns: tuple[pa.Array, ...]) -> pa.Array:
        loaded = self._loaded
        # Restoring the state would rewind other threads' numbers, so it is only for models that draw.
        with nullcontext() if loaded.draws is False else kept_random_state(loaded.device) as drew:
            scored = next(self._scorer.scores([columns], loaded))
            if drew is not None and loaded.draws is None and len(scored):
                loaded.draws = drew()
        return scored

    def _fields(self) -> dict[str, str]:
        fields = {field.name for field in self._scorer.returned()}
        return {name: field for field, name in self._names.items() if name and field in fields}


def picked(data: Any, inputs: Sequence[str], *, alone: bool = False) -> list[Any]:
    """The columns ``inputs`` of a DataFrame, a Table, a mapping of columns, or a list of mappings, one for each row.

    ``alone`` takes other data for the only input.

    Raises:
        InvalidInput: the data is none of these, or a column is missing or there twice.
    """
    if isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data):
        data = {name: [row.get(name) for row in data] for name in dict.fromkeys(name for row in data for name in row)}
    if not isinstance(data, (pd.DataFrame, pa.Table, pa.RecordBatch, Mapping)):
        if alone and len(inputs) == 1:
            return [data]
        raise InvalidInput(
            f"the data is a {type(data).__name__}; expected a DataFrame or a Table with {listed(inputs)}, or a mapping "
            "of arrays by these names, or a list of mappings of single values."
        )
    names = data.schema.names if isinstance(data, (pa.Table, pa.RecordBatch)) else list(data)
    if wrong := [name for name in inputs if names.count(name) != 1]:
        count = "no" if {*wrong}.isdisjoint(names) else "not one of each of"
        raise InvalidInput(f"the data has {count} {listed(wrong)}; it has {listed(list(map(str, names)))}.")
    return [data[name] for name in inputs]


def _numpy(values: pa.Array) -> Any:
    if not pa.types.is_list(values.type):
        return values.to_numpy(zero_copy_only=False)
    shape, flat = [len(values)], values
    while pa.types.is_list(flat.type) and len(flat):
        flat, rows = flat.flatten(), len(flat)
        shape.append(len(flat) // rows)
    return list(flat.to_numpy().reshape(shape)) if len(values) else []
