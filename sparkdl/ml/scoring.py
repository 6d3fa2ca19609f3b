"""A model inside an Arrow UDF: input columns in, one struct of output columns out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import torch
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.evaluate import predict
from sparkdl.feed.columns import Columns
from sparkdl.feed.decode import decode
from sparkdl.objective import ModelFactory, Objective
from sparkdl.weights import unpack

Kind = Literal["estimator", "classifier", "regressor"]
"""What an output means: anything, class scores, or a number."""

_ROWS = 2048  # rows that go through the model at a time

_ready: dict[str, nn.Module] = {}
"""The model that this Python worker used last; workers outlive tasks, and building one again would cost each task."""


@dataclass(frozen=True)
class Scorer:
    """What a Python worker needs to score rows.

    Attributes:
        factory: makes the module.
        weights: safetensors bytes; none where the factory carries them, as a ``Program`` does.
        kind: what the output means.
        precision: the precision it was trained in.
        columns: the input columns.
    """

    factory: ModelFactory | nn.Module
    weights: bytes
    kind: Kind
    precision: str
    columns: Columns

    def scores(self, batches: Iterable[tuple[pa.Array, ...] | pa.Array]) -> Iterator[pa.Array]:
        """One struct array for each tuple of input arrays; Spark passes a single column without a tuple."""
        module = self._module()
        context = TaskContext.get()
        if context is not None:
            torch.set_num_threads(context.cpus())
        for batch in batches:
            arrays = batch if isinstance(batch, tuple) else (batch,)
            inputs = tuple(self._tensor(array, index) for index, array in enumerate(arrays))
            raw = predict(module, inputs, batch_size=_ROWS)
            yield outputs(raw if raw.dtype == torch.float64 else raw.float(), self.kind)

    @cached_property
    def digest(self) -> str:
        """Tells models apart."""
        return hashlib.sha256(self.weights + repr(self.factory).encode()).hexdigest()

    def module(self) -> nn.Module:
        """The module with its weights, in evaluation mode."""
        module = Objective(self.factory, nn.MSELoss(), precision=self.precision).build()
        if self.weights:
            unpack(self.weights, module)
        return module.eval()

    def _module(self) -> nn.Module:
        if self.digest not in _ready:
            _ready.clear()
            _ready[self.digest] = self.module()
        return _ready[self.digest]

    def _tensor(self, array: pa.Array, index: int) -> Tensor:
        found = decode(array, self.columns.inputs[index], floating=self.columns.floating)
        tensor = torch.from_numpy(found if found.flags.writeable else found.copy())
        return tensor.long() if tensor.dtype in (torch.int16, torch.int32) else tensor


def outputs(raw: Tensor, kind: Kind) -> pa.StructArray:
    """The output columns of a batch.

    Args:
        raw: the model's output, ``[B, ...]``, float32 or float64: scores ``[B, classes]`` or one score, ``[B]`` or
            ``[B, 1]``, for a classifier, a number, ``[B]`` or ``[B, 1]``, for a regressor.
        kind: what it means.

    Raises:
        InvalidInput: the output has another shape.
    """
    if not _single(raw) and (kind == "regressor" or (kind == "classifier" and raw.dim() != 2)):
        wanted = "[B] or [B, 1]" if kind == "regressor" else "[B, classes], [B] or [B, 1]"
        raise InvalidInput(f"the output of a {kind}'s model has the shape {list(raw.shape)}; expected {wanted}.")
    if kind == "classifier":
        scores = torch.stack([-raw.reshape(-1), raw.reshape(-1)], 1) if _single(raw) else raw
        chances = torch.stack([1 - raw.reshape(-1).sigmoid(), raw.reshape(-1).sigmoid()], 1) if _single(raw) else None
        chances = scores.softmax(1) if chances is None else chances
        best = scores.argmax(1).double()
        return pa.StructArray.from_arrays(
            [_lists(scores), _lists(chances), pa.array(best.numpy())], ["raw", "probability", "prediction"]
        )
    if kind == "regressor":
        return pa.StructArray.from_arrays([pa.array(raw.reshape(-1).double().numpy())], ["prediction"])
    values = pa.array(raw.reshape(-1).numpy()) if _single(raw) else _lists(raw.flatten(1))
    return pa.StructArray.from_arrays([values], ["prediction"])


def output_type(kind: Kind, *, scalar: bool, floating: str) -> StructType:
    """The Spark type of what ``outputs`` returns.

    Args:
        kind: what the model's output means.
        scalar: whether a raw output is one number a row.
        floating: the dtype of the model's output.
    """
    number: DataType = DoubleType() if floating == "float64" else FloatType()
    numbers = ArrayType(number, False)
    fields: dict[str, DataType] = {"prediction": DoubleType()}
    if kind == "classifier":
        fields = {"raw": numbers, "probability": numbers, "prediction": DoubleType()}
    if kind == "estimator":
        fields = {"prediction": number if scalar else numbers}
    return StructType([StructField(name, kind_, False) for name, kind_ in fields.items()])


def _single(raw: Tensor) -> bool:
    return raw.dim() == 1 or (raw.dim() == 2 and raw.shape[1] == 1)


def _lists(values: Tensor) -> pa.Array:
    rows, width = values.shape
    offsets = pa.array(range(0, rows * width + 1, width) if width else [0] * (rows + 1), pa.int32())
    flat: Any = values.contiguous().reshape(-1).numpy()
    return pa.ListArray.from_arrays(offsets, pa.array(flat))
