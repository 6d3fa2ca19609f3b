"""Predictions of a saved PipelineModel in this process, without Spark and without Java.

``sparkdl.serving.features`` computes the feature stages, and ``Predictor`` scores with the PyTorch stage.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.serving.features.column import Column
from sparkdl.serving.features.conversion import arrow_type, cast_exactly, read_array
from sparkdl.serving.features.reader import FeaturePipeline
from sparkdl.serving.features.stage import Columns, FeatureStage
from sparkdl.serving.predictor import Predictor, picked

_NUMBERS = 1 << 24  # of one batch of rows, in the widest stage: 128 MiB
_MOST_ROWS = 4096


@dataclass(frozen=True)
class TorchStage(FeatureStage):
    """A PyTorch model as a stage of a pipeline; ``types`` are Spark's of the training's columns, by name."""

    predictor: Predictor
    types: Mapping[str, str] = field(default_factory=dict)

    def _outputs(self, columns: Columns) -> dict[str, Column]:
        for name, column in columns.items():
            if nulls := int(column.null.sum()):
                raise InvalidInput(f"the column {name!r} of the PyTorch stage has {nulls} nulls; fill them.")
        scored = self.predictor.predict({name: column.values for name, column in columns.items()})
        arrays = {name: np.stack(list(one)) if one.dtype == object else one.to_numpy() for name, one in scored.items()}
        return {name: Column.full(values) for name, values in arrays.items()}


class SavedPipeline:
    """A saved PipelineModel that predicts in this process."""

    def __init__(self, stages: FeaturePipeline) -> None:
        torch = {at: stage for at, stage in enumerate(stages.stages) if isinstance(stage, TorchStage)}
        if not torch:
            raise InvalidInput("the pipeline has no PyTorch stage; expected a fitted estimator of sparkdl in it.")
        last = stages.stages[min(torch) :]
        self.outputs = list(dict.fromkeys(name for stage in last for name in stage.outputs))
        self._stages = stages.needed(self.outputs)
        self.inputs = self._stages.inputs
        widest = max(stage.width for stage in self._stages.stages)
        self._rows = max(1, min(_MOST_ROWS, _NUMBERS // widest))
        types = {name: kind for stage in torch.values() for name, kind in stage.types.items()}
        self._types = {name: arrow_type(types[name]) for name in self.inputs if name in types}
        if untyped := [name for name in self.inputs if name not in types]:
            warnings.warn(
                f"the pipeline was saved without Spark's types of {listed(untyped)}, as by older versions. It takes "
                "numbers as they come: 1 and 1.0 are different labels, and pandas turns 1 into 1.0 beside a null. "
                "Load it with Spark, set columnTypes = dict(rows.dtypes) of its TorchModel, and save it again.",
                stacklevel=3,
            )

    def predict(self, data: Any) -> pd.DataFrame | pa.Table:
        """Predict the columns that the PyTorch stage and the stages after it add.

        Each column is converted to the type that Spark had in the training, so that 1.0 is 1 in a column of integers.
        None, NA and, in columns of pandas' numpy types, NaN are nulls. Vectors and arrays are numpy arrays.

        Args:
            data: a pandas DataFrame, a pyarrow Table or a mapping of columns, or a list of mappings, one for each row;
                with the columns ``inputs``.

        Returns:
            A Table for a Table; else a DataFrame.

        Raises:
            InvalidInput: a column is missing, has values that its type does not hold exactly, or that a stage rejects.
        """
        arrays = {}
        for name, values in zip(self.inputs, picked(data, self.inputs), strict=True):
            array = read_array(values, name, nan_is_null=True)
            arrays[name] = cast_exactly(array, self._types.get(name, array.type), name)
        if len(rows := {*map(len, arrays.values())}) > 1:
            raise InvalidInput(f"the columns have {sorted(rows)} rows; expected equal numbers.")
        parts = [
            self._stages.transform({name: Column.of(array.slice(at, self._rows)) for name, array in arrays.items()})
            for at in range(0, max(rows, default=0), self._rows)
        ]
        columns = {name: [value for part in parts for value in part[name].items()] for name in self.outputs}
        if isinstance(data, (pa.Table, pa.RecordBatch)):
            types = {name: arrow_type("array<" * depth + kind + ">" * depth) for name, kind, depth in self.output_types}
            return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
        return pd.DataFrame(columns, index=data.index if isinstance(data, pd.DataFrame) else None)

    @property
    def output_types(self) -> list[tuple[str, str, int]]:
        """The name, ``"float"``, ``"double"`` or ``"string"``, and the depth of arrays of each output column."""
        types: dict[str, tuple[str, str, int]] = {}
        for stage in self._stages.stages:
            if isinstance(stage, TorchStage):
                types |= {one[0]: one for one in stage.predictor.output_types}
            else:
                for at, name in enumerate(stage.outputs):
                    same = types.get(stage.inputs[at], ("", "", 0))
                    depth = same[2] if stage.kind == "same" else int(stage.kind == "vector")
                    types[name] = name, "string" if stage.kind == "string" else "double", depth
        return [types[name] for name in self.outputs]
