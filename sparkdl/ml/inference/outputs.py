"""The output columns of a model, and their types.

The arrays share the memory of the tensors and have exactly the type of the UDF. Spark would cast any other type, lists
element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.training.objective import OutputKind
from sparkdl.training.trial import check_output

ScoredKind = OutputKind | Literal["votes"]
"""The output of an estimator's model, or the votes of an ensemble for each class, at least 0."""


@dataclass(frozen=True)
class Outputs:
    """The output columns of a model.

    Attributes:
        kind: the type of the model's output.
        thresholds: a number per class; as in pyspark.ml, the predicted class has the largest probability / threshold,
            and a class with threshold 0 wins unless its probability is 0. None: the class with the largest score. In
            both cases, a row with a NaN score has the prediction NaN.
        scalar: whether an output of kind ``"estimator"`` is one number per row.
        vectors: whether to return a classifier's scores and probabilities.
        probabilities: whether a classifier's model returns the probability of class 1, as ``nn.BCELoss`` needs it.
        disagreement: whether the output also has the disagreement of an ensemble's members: a last column, or, for
            votes, the weight of the members that predict each class, ``[B, 2 * classes]``.
    """

    kind: ScoredKind
    thresholds: tuple[float, ...] | None = None
    scalar: bool = False
    vectors: bool = True
    probabilities: bool = False
    disagreement: bool = False

    def arrays(self, raw: Tensor) -> pa.Array:
        """Make the columns of a batch, as a struct.

        Args:
            raw: the model's output, ``[B, ...]``, float32 or float64. Classifier: scores ``[B, classes]``, or one
                score, ``[B]`` or ``[B, 1]``. Regressor: ``[B]`` or ``[B, 1]``. Ensemble: float64 votes
                ``[B, classes]``, whose shares are the probabilities.

        Raises:
            InvalidInput: the output has another shape, or the number of thresholds is not the number of classes.
        """
        if self.kind == "votes":
            return _struct(self._votes(raw))
        more = {"disagreement": pa.array(raw[:, -1].double().numpy())} if self.disagreement else {}
        return _struct(self._columns(raw[:, :-1] if self.disagreement else raw) | more)

    def type(self, floating: str) -> pa.StructType:
        """The type of the structs, of a model whose output has the dtype ``floating``."""
        number = pa.float64() if floating == "float64" or self.kind == "votes" else pa.float32()
        fields = {"prediction": pa.float64()}
        if self.kind in ("classifier", "votes") and self.vectors:
            fields = {"raw": _list_of(number), "probability": _list_of(number), "prediction": pa.float64()}
        if self.kind == "estimator":
            fields = {"prediction": number if self.scalar else _list_of(number)}
        if self.disagreement:
            fields["disagreement"] = pa.float64()
        return pa.struct([pa.field(name, kind, nullable=False) for name, kind in fields.items()])

    def none(self, floating: str) -> pa.Array:
        """The columns of a batch without rows."""
        return pa.array([], self.type(floating))

    def _columns(self, raw: Tensor) -> dict[str, pa.Array]:
        assert self.kind != "votes"
        check_output(raw, len(raw), self.kind)
        single = raw.dim() == 1 or (raw.dim() == 2 and raw.shape[1] == 1)
        if self.kind == "classifier":
            if self.probabilities:
                chances = torch.stack([1 - raw.reshape(-1), raw.reshape(-1)], 1) if single else raw
                return self._classified(chances, chances)[1]
            if single:
                score = raw.reshape(-1)
                chance = score.sigmoid()
                return self._classified(torch.stack([-score, score], 1), torch.stack([1 - chance, chance], 1))[1]
            return self._classified(raw, raw.softmax(1))[1]
        if self.kind == "regressor":
            return {"prediction": pa.array(raw.reshape(-1).double().numpy())}
        return {"prediction": pa.array(raw.reshape(-1).numpy()) if single else _lists(raw.flatten(1))}

    def _votes(self, raw: Tensor) -> dict[str, pa.Array]:
        votes, ballots = raw.chunk(2, 1) if self.disagreement else (raw, raw)
        classes, columns = self._classified(votes, votes / votes.sum(1, keepdim=True))
        if self.disagreement:
            total = ballots.sum(1)
            same = ballots.gather(1, classes.nan_to_num().long().unsqueeze(1)).squeeze(1)
            columns["disagreement"] = pa.array(((total - same) / total + 0 * classes).numpy())  # NaN if the class is
        return columns

    def _classified(self, scores: Tensor, chances: Tensor) -> tuple[Tensor, dict[str, pa.Array]]:
        """The predicted classes, float64 ``[B]``, and a classifier's columns."""
        best = scores.argmax(1)
        if self.thresholds is not None:
            if len(self.thresholds) != scores.shape[1]:
                raise InvalidInput(
                    f"thresholds has {len(self.thresholds)} numbers, but the model has {scores.shape[1]} classes; "
                    "expected one for each class."
                )
            scaled = chances.double() / torch.tensor(self.thresholds, dtype=torch.float64)
            best = torch.where(chances == 0, 0.0, scaled).argmax(1)  # 0 / 0 must not win
        # argmax of NaN is the first class, which would look valid.
        classes = best.double().masked_fill_(scores.isnan().any(1), torch.nan)
        vectors = {"raw": _lists(scores), "probability": _lists(chances)} if self.vectors else {}
        return classes, vectors | {"prediction": pa.array(classes.numpy())}


def _lists(values: Tensor) -> pa.Array:
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    flat: Any = pa.array(values.contiguous().reshape(-1).numpy())
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=_list_of(flat.type))


def _list_of(number: pa.DataType) -> pa.ListType:
    return pa.list_(pa.field("element", number, nullable=False))  # as Spark names it


def _struct(columns: dict[str, pa.Array]) -> pa.Array:
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields)
