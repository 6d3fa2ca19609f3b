"""The output columns of a model, and their types.

The arrays share the memory of the tensors and have exactly the type of the UDF. Spark would cast any other type, lists
element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType
from torch import Tensor

from sparkdl.errors import InvalidInput

EstimatorKind = Literal["estimator", "classifier", "regressor"]
"""The type of an output: any tensor, class scores, or a number."""

OutputKind = EstimatorKind | Literal["votes"]
"""The same, or the votes of an ensemble for each class, at least 0."""


def outputs(
    raw: Tensor,
    kind: OutputKind,
    *,
    thresholds: Sequence[float] | None = None,
    vectors: bool = True,
    disagreement: bool = False,
) -> pa.Array:
    """Make the output columns of a batch.

    Args:
        raw: the model's output, ``[B, ...]``, float32 or float64. Classifier: scores ``[B, classes]``, or one score,
            ``[B]`` or ``[B, 1]``. Regressor: ``[B]`` or ``[B, 1]``. Ensemble: float64 votes ``[B, classes]``, whose
            shares are the probabilities.
        kind: the type of the output.
        thresholds: a number per class; as in pyspark.ml, the predicted class has the largest probability / threshold,
            and a class with threshold 0 wins unless its probability is 0. None: the class with the largest score. In
            both cases, a row with a NaN score has the prediction NaN.
        vectors: whether to return a classifier's scores and probabilities.
        disagreement: whether ``raw`` also has the disagreement of an ensemble's members: a last column, or, for votes,
            the weight of the members that predict each class, ``[B, 2 * classes]``.

    Raises:
        InvalidInput: the output has another shape, or the number of thresholds is not the number of classes.
    """
    if kind == "votes":
        return _voted(raw, thresholds, vectors=vectors, disagreement=disagreement)
    more = {"disagreement": pa.array(raw[:, -1].double().numpy())} if disagreement else {}
    return _struct(_columns(raw[:, :-1] if disagreement else raw, kind, thresholds, vectors) | more)


def _columns(
    raw: Tensor, kind: EstimatorKind, thresholds: Sequence[float] | None, vectors: bool
) -> dict[str, pa.Array]:
    if not _single(raw) and (kind == "regressor" or (kind == "classifier" and raw.dim() != 2)):
        wanted = "[B] or [B, 1]" if kind == "regressor" else "[B, classes], [B] or [B, 1]"
        raise InvalidInput(f"the output of a {kind}'s model has the shape {list(raw.shape)}; expected {wanted}.")
    if kind == "classifier":
        scores, chances = _two_classes(raw.reshape(-1)) if _single(raw) else (raw, raw.softmax(1))
        predicted = pa.array(_classes(scores, chances, thresholds).numpy())
        lists = {"raw": _lists(scores), "probability": _lists(chances)} if vectors else {}
        return {**lists, "prediction": predicted}
    if kind == "regressor":
        return {"prediction": pa.array(raw.reshape(-1).double().numpy())}
    return {"prediction": pa.array(raw.reshape(-1).numpy()) if _single(raw) else _lists(raw.flatten(1))}


def _voted(raw: Tensor, thresholds: Sequence[float] | None, *, vectors: bool, disagreement: bool) -> pa.Array:
    votes, ballots = raw.chunk(2, 1) if disagreement else (raw, raw)
    chances = votes / votes.sum(1, keepdim=True)
    predicted = _classes(votes, chances, thresholds)
    columns = {"raw": _lists(votes), "probability": _lists(chances)} if vectors else {}
    columns["prediction"] = pa.array(predicted.numpy())
    if disagreement:
        total = ballots.sum(1)
        same = ballots.gather(1, predicted.nan_to_num().long().unsqueeze(1)).squeeze(1)
        columns["disagreement"] = pa.array(((total - same) / total + 0 * predicted).numpy())  # NaN if the prediction is
    return _struct(columns)


def output_type(
    kind: OutputKind, *, scalar: bool, floating: str, vectors: bool = True, disagreement: bool = False
) -> StructType:
    """The Spark type of the structs that ``outputs`` returns.

    Args:
        kind: the type of the model's output.
        scalar: whether a raw output is one number per row.
        floating: the dtype of the model's output.
        vectors: whether there are columns for a classifier's scores and probabilities.
        disagreement: whether there is a column for it.
    """
    number: DataType = DoubleType() if floating == "float64" or kind == "votes" else FloatType()
    numbers = ArrayType(number, False)
    fields: dict[str, DataType] = {"prediction": DoubleType()}
    if kind in ("classifier", "votes") and vectors:
        fields = {"raw": numbers, "probability": numbers, "prediction": DoubleType()}
    if kind == "estimator":
        fields = {"prediction": number if scalar else numbers}
    if disagreement:
        fields["disagreement"] = DoubleType()
    return StructType([StructField(name, kind_, False) for name, kind_ in fields.items()])


def no_outputs(returned: StructType) -> pa.Array:
    """The empty output columns of a batch without rows."""
    return _struct({field.name: pa.array([], _arrow(field.dataType)) for field in returned})


def _classes(scores: Tensor, chances: Tensor, thresholds: Sequence[float] | None) -> Tensor:
    """The predicted classes, float64 ``[B]``."""
    best = scores.argmax(1)
    if thresholds is not None:
        if len(thresholds) != scores.shape[1]:
            raise InvalidInput(
                f"thresholds has {len(thresholds)} numbers, but the model has {scores.shape[1]} classes; expected one "
                "for each class."
            )
        scaled = chances.double() / torch.tensor(thresholds, dtype=torch.float64)
        best = torch.where(chances == 0, 0.0, scaled).argmax(1)  # 0 / 0 must not win
    # argmax of NaN is the first class, which would look valid.
    return best.double().masked_fill_(scores.isnan().any(1), torch.nan)


def _two_classes(score: Tensor) -> tuple[Tensor, Tensor]:
    chance = score.sigmoid()
    return torch.stack([-score, score], 1), torch.stack([1 - chance, chance], 1)


def _single(raw: Tensor) -> bool:
    return raw.dim() == 1 or (raw.dim() == 2 and raw.shape[1] == 1)


def _lists(values: Tensor) -> pa.Array:
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    flat: Any = pa.array(values.contiguous().reshape(-1).numpy())
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=_arrow_list(flat.type))


def _struct(columns: dict[str, pa.Array]) -> pa.Array:
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields)


def _arrow(kind: DataType) -> pa.DataType:
    if isinstance(kind, ArrayType):
        return _arrow_list(_arrow(kind.elementType))
    return pa.float64() if isinstance(kind, DoubleType) else pa.float32()


def _arrow_list(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element, nullable=False))  # as Spark names it
