"""What a model's raw output means: the columns that it becomes, and their types.

The arrays are made over the memory of the tensors, in exactly the type that Spark was told, for which Spark passes
them on as they are; any other it would cast, element by element where lists are concerned.
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

Kind = Literal["estimator", "classifier", "regressor"]
"""What an output means: anything, class scores, or a number."""

Meaning = Kind | Literal["votes"]
"""The same of an ensemble's output as well, whose votes for each class are at least 0."""


def outputs(
    raw: Tensor,
    kind: Meaning,
    *,
    thresholds: Sequence[float] | None = None,
    vectors: bool = True,
    disagreement: bool = False,
) -> pa.Array:
    """The output columns of a batch.

    Args:
        raw: the model's output, ``[B, ...]``, float32 or float64: scores ``[B, classes]`` or one score, ``[B]`` or
            ``[B, 1]``, for a classifier, a number, ``[B]`` or ``[B, 1]``, for a regressor, float64 votes
            ``[B, classes]`` of an ensemble, whose probabilities are their shares.
        kind: what it means.
        thresholds: a number for each class; a classifier's prediction is the class with the largest probability /
            threshold, as in pyspark.ml: a class with a threshold of 0 wins unless its probability is 0. None: the
            class with the largest score. In either case NaN where a score is NaN.
        vectors: whether a classifier's scores and probabilities are among the columns.
        disagreement: whether the output goes on with how far the members of an ensemble are apart: a number in a last
            column, or behind the votes the weight of the members that predict each class, ``[B, 2 * classes]``.

    Raises:
        InvalidInput: the output has another shape, or there is not one threshold for each class.
    """
    if kind == "votes":
        return _voted(raw, thresholds, vectors=vectors, disagreement=disagreement)
    if disagreement:
        apart = raw[:, -1].double()
        return _struct(_columns(raw[:, :-1], kind, thresholds, vectors) | {"disagreement": pa.array(apart.numpy())})
    return _struct(_columns(raw, kind, thresholds, vectors))


def _columns(raw: Tensor, kind: Kind, thresholds: Sequence[float] | None, vectors: bool) -> dict[str, pa.Array]:
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
        columns["disagreement"] = pa.array(((total - same) / total + 0 * predicted).numpy())  # NaN where that is NaN
    return _struct(columns)


def output_type(
    kind: Meaning, *, scalar: bool, floating: str, vectors: bool = True, disagreement: bool = False
) -> StructType:
    """The Spark type of what ``outputs`` returns.

    Args:
        kind: what the model's output means.
        scalar: whether a raw output is one number a row.
        floating: the dtype of the model's output.
        vectors: whether a classifier's scores and probabilities are among the columns.
        disagreement: whether there is a column of it.
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
    """What ``outputs`` returns for a batch without rows, which goes through no model."""
    return pa.StructArray.from_arrays(
        [pa.array([], _arrow(field.dataType)) for field in returned],
        fields=[pa.field(field.name, _arrow(field.dataType), nullable=False) for field in returned],
    )


def _classes(scores: Tensor, chances: Tensor, thresholds: Sequence[float] | None) -> Tensor:
    """The predicted classes, float64 ``[B]``."""
    if thresholds is None:
        best = scores.argmax(1)
    else:
        if len(thresholds) != scores.shape[1]:
            raise InvalidInput(
                f"thresholds has {len(thresholds)} numbers, but the model tells {scores.shape[1]} classes apart; "
                "expected a number for each class."
            )
        scaled = chances.double() / torch.tensor(thresholds, dtype=torch.float64)
        best = torch.where(chances == 0, 0.0, scaled).argmax(1)  # 0 / 0 is no reason to choose a class
    # The largest of NaN would be the first class, which looks like any other prediction.
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
