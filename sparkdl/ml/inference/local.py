"""Predictions in this process, without Spark, on pandas DataFrames and arrays.

The same code scores rows here and in ``transform``. Results differ only in the order of floating-point sums, which
depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import ArrayType

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.inference.model_cache import CachedModel
from sparkdl.ml.model import TorchModel


class InProcess:
    """A loaded model that predicts in this process."""

    def __init__(self, model: TorchModel) -> None:
        self._names = model._output_names()
        self._scorer = model._scorer()
        self._loaded = CachedModel(self._scorer.module())

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Predict the columns that ``transform`` adds, the prediction first; vectors and arrays are numpy arrays.

        Args:
            data: a DataFrame with a column for each input, of numbers, lists or arrays; a mapping of arrays by input
                names, rows first; or an array if there is one input.
            params: ignored; MLflow passes it to every model.

        Raises:
            InvalidInput: a column is missing or cannot become a tensor, or the model's output has the wrong shape.
        """
        inputs = [column.name for column in self._scorer.columns.inputs]
        columns = [_arrow(name, values) for name, values in zip(inputs, _picked(data, inputs), strict=True)]
        self._scorer.columns.check(pa.schema(list(zip(inputs, [column.type for column in columns], strict=True))))
        rows = list(map(len, columns))
        if len(set(rows)) > 1:
            raise InvalidInput(f"the inputs have {rows} rows; expected equal numbers.")
        scored = next(self._scorer.scores([tuple(columns)], self._loaded))
        arrays = {self._names[field.name]: _numpy(scored.field(field.name)) for field in scored.type}
        ordered = {name: arrays[name] for name in self._names.values() if name and name in arrays}
        return pd.DataFrame(ordered, index=data.index if isinstance(data, pd.DataFrame) else None)


def input_types(model: TorchModel) -> list[tuple[str, list[int], str]] | None:
    """The name, the shape of a row and the dtype of each input; None if unknown.

    If ``collate``, ``assembleInputs`` or a column's description changes the inputs, the module's signature does not
    give their types.
    """
    names, specs = model.getInputCols(), model.described_inputs()
    changed = any(spec.ragged or spec.decode or spec.shape is not None for spec in specs)
    changed |= model.getAssembleInputs() or model.getCollate() is not None
    if model._signature is None or changed or len(names) != len(model._signature):
        return None
    return [(name, list(shape), dtype) for name, (shape, dtype) in zip(names, model._signature, strict=True)]


def output_types(model: TorchModel) -> list[tuple[str, str, int]]:
    """The name, ``"float"`` or ``"double"``, and the depth of arrays, 0 for none, of each column of ``predict``."""
    types, names = {}, model._output_names()
    for field in model._scorer().returned():
        kind, depth = field.dataType, 0
        while isinstance(kind, ArrayType):
            kind, depth = kind.elementType, depth + 1
        types[names[field.name]] = names[field.name], kind.typeName(), depth
    return [types[name] for name in names.values() if name and name in types]


def _picked(data: Any, inputs: Sequence[str]) -> list[Any]:
    if isinstance(data, (pd.DataFrame, Mapping)):
        missing = [name for name in inputs if name not in data]
        if missing:
            raise InvalidInput(f"the data has no {listed(missing)}; it has {listed(list(map(str, data)))}.")
        return [data[name] for name in inputs]
    if len(inputs) > 1:
        raise InvalidInput(
            f"the data is a {type(data).__name__}, and the model has the inputs {listed(inputs)}; expected a DataFrame "
            "with these columns, or a mapping of arrays by these names."
        )
    return [data]


def _arrow(name: str, values: Any) -> pa.Array:
    try:
        array = _array(values.to_numpy() if isinstance(values, pd.Series) else values)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise InvalidInput(f"column {name!r} cannot become a tensor: {error}") from error
    if array.type == pa.null():
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
