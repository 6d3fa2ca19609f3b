"""The output columns of a model, and their types.

The arrays share the memory of the tensors and have exactly the type of the UDF. Spark would cast any other type, lists
element by element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.training.objective.objective import OutputKind
from sparkdl.training.objective.probe import check_output

_MOST = 2**31 - 1  # numbers in nested lists, whose offsets are int32

ScoredKind = OutputKind | Literal["votes"]
"""The output of an estimator's model, or the votes of an ensemble for each class, at least 0."""


@dataclass(frozen=True)
class Outputs:
    """The output columns of a model.

    Attributes:
        kind: the type of the model's output.
        thresholds: a number per class; as in pyspark.ml, the predicted class has the largest probability / threshold,
            and a class with threshold 0 wins unless its probability is 0. None: the class with the largest score. In
            both cases, a row with a NaN score has the prediction NaN. Of independent labels, a number in [0, 1] per
            label, which the probability exceeds if the prediction is 1; None: 0.5 each.
        scalar: whether an output of kind ``"estimator"`` is one number per row.
        vectors: whether to return a classifier's scores and probabilities.
        probabilities: whether a classifier's model returns the probability of class 1, or of each independent label,
            as ``nn.BCELoss`` needs it.
        disagreement: whether the output also has the disagreement of an ensemble's members: a last column, or, for
            votes, the weight of the members that predict each class, ``[B, 2 * classes]``.
        dims: dimensions of a row that a classifier predicts a class for: 0 for one class per row, 1 for tokens, 2 for
            pixels, and so on. The columns are nested lists ``[d1, ...]``, of scores ``[d1, ..., classes]``.
    """

    kind: ScoredKind
    thresholds: tuple[float, ...] | None = None
    scalar: bool = False
    vectors: bool = True
    probabilities: bool = False
    disagreement: bool = False
    dims: int = 0

    def __post_init__(self) -> None:
        if self.kind == "multilabel" and self.thresholds is not None and max(self.thresholds) > 1:
            raise InvalidInput(
                f"thresholds is {[*self.thresholds]}; expected numbers from 0 to 1, one for each label: with "
                "multiLabel the prediction is 1 if the probability exceeds the threshold."
            )

    def arrays(self, raw: Tensor) -> pa.Array:
        """Make the columns of a batch, as a struct.

        Args:
            raw: the model's output, ``[B, ...]``, float32 or float64. Classifier: scores ``[B, classes, d1, ...]``, or
                one score, ``[B]`` or ``[B, 1]``. Independent labels: scores ``[B, labels]``. Regressor: ``[B]`` or
                ``[B, 1]``. Ensemble: float64 votes ``[B, classes]``, whose shares are the probabilities.

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
        fields = {"prediction": _nested(pa.float64(), 1 if self.kind == "multilabel" else self.dims)}
        if self.kind in ("classifier", "multilabel", "votes") and self.vectors:
            fields = dict.fromkeys(("raw", "probability"), _nested(number, 1 + self.dims)) | fields
        if self.kind == "estimator":
            fields = {"prediction": number if self.scalar else _nested(number, 1)}
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
        if self.kind == "multilabel":
            return self._independent(raw)
        if self.kind == "classifier":
            if max(raw.dim() - 2, 0) != self.dims:
                raise InvalidInput(
                    f"the model returned {list(raw.shape)}; expected [B, classes{', ...' * bool(self.dims)}] of "
                    f"{2 + self.dims} dimensions, as TorchModel(output=...) has it."
                )
            if self.dims:
                return self._classified(raw.movedim(1, -1), raw.softmax(1).movedim(1, -1))[1]
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

    def _independent(self, raw: Tensor) -> dict[str, pa.Array]:
        chances, thresholds = raw if self.probabilities else raw.sigmoid(), self.thresholds or (0.5,) * raw.shape[1]
        self._check_thresholds(thresholds, raw.shape[1], "labels")
        labels = (chances.double() > torch.tensor(thresholds, dtype=torch.float64)).double()
        vectors = {"raw": _lists(raw), "probability": _lists(chances)} if self.vectors else {}
        return vectors | {"prediction": _lists(labels.masked_fill_(chances.isnan(), torch.nan))}

    def _votes(self, raw: Tensor) -> dict[str, pa.Array]:
        votes, ballots = raw.chunk(2, 1) if self.disagreement else (raw, raw)
        classes, columns = self._classified(votes, votes / votes.sum(1, keepdim=True))
        if self.disagreement:
            total = ballots.sum(1)
            same = ballots.gather(1, classes.nan_to_num().long().unsqueeze(1)).squeeze(1)
            columns["disagreement"] = pa.array(((total - same) / total + 0 * classes).numpy())  # NaN if the class is
        return columns

    def _classified(self, scores: Tensor, chances: Tensor) -> tuple[Tensor, dict[str, pa.Array]]:
        best = scores.argmax(-1)
        if self.thresholds is not None:
            self._check_thresholds(self.thresholds, scores.shape[-1], "classes")
            scaled = chances.double() / torch.tensor(self.thresholds, dtype=torch.float64)
            best = torch.where(chances == 0, 0.0, scaled).argmax(-1)  # 0 / 0 must not win
        # argmax of NaN is the first class, which would look valid.
        classes = best.double().masked_fill_(scores.isnan().any(-1), torch.nan)
        vectors = {"raw": _lists(scores), "probability": _lists(chances)} if self.vectors else {}
        return classes, vectors | {"prediction": _lists(classes)}

    def _check_thresholds(self, thresholds: tuple[float, ...], count: int, of: str) -> None:
        if len(thresholds) != count:
            raise InvalidInput(
                f"thresholds has {len(thresholds)} numbers, but the model has {count} {of}; expected one for each."
            )


def _nested(kind: pa.DataType, depth: int) -> pa.DataType:
    element = pa.field("element", kind, nullable=False)  # as Spark names it
    return kind if depth == 0 else _nested(pa.list_(element), depth - 1)


def _lists(values: Tensor) -> pa.Array:
    if values.numel() > _MOST:
        raise InvalidInput(
            f"the outputs of {len(values)} rows are {values.numel()} numbers, and a batch of Arrow holds {_MOST}; "
            "lower spark.sql.execution.arrow.maxRecordsPerBatch."
        )
    array: Any = pa.array(values.contiguous().reshape(-1).numpy())
    for level in range(values.dim() - 1, 0, -1):
        offsets = np.arange(1 + math.prod(values.shape[:level]), dtype=np.int32) * np.int32(values.shape[level])
        array = pa.ListArray.from_arrays(pa.array(offsets), array, type=_nested(array.type, 1))
    return array


def _struct(columns: dict[str, pa.Array]) -> pa.Array:
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields)
