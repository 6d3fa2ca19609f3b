"""Predictions of a saved PipelineModel in this process, without Spark and without Java, on pandas DataFrames.

``sparkdl.ml.features`` computes the feature stages, and ``Predictor`` scores with the PyTorch stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.features.column import Column
from sparkdl.ml.features.reader import FeaturePipeline
from sparkdl.ml.features.stage import Columns, FeatureStage
from sparkdl.ml.inference.predictor import Predictor

_NUMBERS = 1 << 24  # of one batch of rows, in the widest stage: 128 MiB
_MOST_ROWS = 4096


@dataclass(frozen=True)
class TorchStage:
    """A PyTorch model as a stage of a pipeline."""

    predictor: Predictor

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(self.predictor.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns that it adds, the prediction first."""
        return tuple(self.predictor.outputs)

    @property
    def width(self) -> int:
        """The numbers that it adds to a row, at least."""
        return len(self.outputs)

    def transform(self, columns: Columns) -> dict[str, Column]:
        """The columns and the predictions; raises ``InvalidInput`` if an input is missing or has nulls."""
        inputs = {}
        for name in self.inputs:
            if name not in columns:
                raise InvalidInput(f"the PyTorch stage needs {name!r}; there are {listed(list(columns))}.")
            if nulls := int(columns[name].null.sum()):
                raise InvalidInput(f"the column {name!r} of the PyTorch stage has {nulls} nulls; fill them.")
            inputs[name] = columns[name].values
        scored = self.predictor.predict(inputs)
        return {**columns, **{name: _column(scored[name]) for name in scored}}


def _column(values: pd.Series) -> Column:
    return Column.full(np.stack(list(values)) if values.dtype == object else values.to_numpy())


class SavedPipeline:
    """A saved PipelineModel that predicts in this process."""

    def __init__(self, stages: FeaturePipeline) -> None:
        torch = [at for at, stage in enumerate(stages.stages) if isinstance(stage, TorchStage)]
        if not torch:
            raise InvalidInput("the pipeline has no PyTorch stage; expected a fitted estimator of sparkdl in it.")
        last = stages.stages[torch[0] :]
        self.outputs = list(dict.fromkeys(name for stage in last for name in stage.outputs))
        self._stages = stages.needed(self.outputs)
        self.inputs = self._stages.inputs
        widest = max(stage.width for stage in self._stages.stages)
        self._rows = max(1, min(_MOST_ROWS, _NUMBERS // widest))

    def predict(self, data: Any) -> pd.DataFrame | pa.Table:
        """Predict the columns that the PyTorch stage and the stages after it add.

        Vectors and arrays are numpy arrays. The missing values of pandas, NaN included, are nulls.

        Args:
            data: a pandas DataFrame, a pyarrow Table, or a mapping of columns, with the columns ``inputs``.

        Returns:
            A Table for a Table; else a DataFrame.

        Raises:
            InvalidInput: a column is missing, or has values that a stage rejects.
        """
        if isinstance(data, (pa.Table, pa.RecordBatch)):
            frame = self.predict(data.to_pandas())
            return pa.table(
                {name: pa.array(list(frame[name]), _type(kind, depth)) for name, kind, depth in self.output_types}
            )
        if not isinstance(data, (pd.DataFrame, Mapping)):
            raise InvalidInput(f"the data is a {type(data).__name__}; expected a DataFrame with {listed(self.inputs)}.")
        frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(dict(data))
        missing = [name for name in self.inputs if name not in frame]
        if missing:
            raise InvalidInput(f"the data has no {listed(missing)}; it has {listed(list(map(str, frame)))}.")
        parts = list(self._parts(frame))
        columns = {name: [value for part in parts for value in part[name].items()] for name in self.outputs}
        return pd.DataFrame(columns, index=frame.index)

    def _parts(self, frame: pd.DataFrame) -> Iterator[dict[str, Column]]:
        for start in range(0, len(frame), self._rows):
            rows = frame.iloc[start : start + self._rows]
            yield self._stages.transform({name: Column.of(rows[name], name) for name in self.inputs})

    @property
    def output_types(self) -> list[tuple[str, str, int]]:
        """The name, ``"float"``, ``"double"`` or ``"string"``, and the depth of arrays of each output column."""
        types: dict[str, tuple[str, str, int]] = {}
        for stage in self._stages.stages:
            if isinstance(stage, TorchStage):
                types |= {one[0]: one for one in stage.predictor.output_types}
            elif isinstance(stage, FeatureStage):
                for at, name in enumerate(stage.outputs):
                    same = types.get(stage.inputs[at], ("", "", 0))
                    depth = same[2] if stage.kind == "same" else int(stage.kind == "vector")
                    types[name] = name, "string" if stage.kind == "string" else "double", depth
        return [types[name] for name in self.outputs]


def _type(kind: str, depth: int) -> pa.DataType:
    plain = {"float": pa.float32(), "double": pa.float64(), "string": pa.string()}[kind]
    return plain if depth == 0 else pa.list_(_type(kind, depth - 1))
