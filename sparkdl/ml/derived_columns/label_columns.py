"""The label columns of an estimator, and the labels that are valid, by its Params and the kind of its output."""

from __future__ import annotations

import warnings

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, BinaryType
from torch import nn

from sparkdl.data.columns import InputColumn, check_one_length
from sparkdl.errors import InvalidInput
from sparkdl.ml.params import TrainingParams
from sparkdl.serving.outputs import Outputs
from sparkdl.spark.columns import VECTORS
from sparkdl.training.objective.labels import Classes
from sparkdl.training.objective.loss import as_module
from sparkdl.training.objective.objective import OutputKind

# They compare the scores of exclusive classes, or take class indices.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss, nn.MultiLabelMarginLoss)


def target_columns(
    params: TrainingParams, kind: OutputKind, floating: str
) -> InputColumn | tuple[InputColumn, ...] | None:
    """The target of ``sparkdl.data.columns.Columns``.

    Raises:
        InvalidInput: several columns have labels of a model that predicts one number, or ``columnSpecs`` is wrong.
    """
    label = params.getLabelCol()
    one_number = kind == "regressor" or (kind == "classifier" and _is_binary(params))
    if isinstance(label, list):
        if len(label) > 1 and one_number:
            independent = "multiLabel=True is for independent labels. " if kind == "classifier" else ""
            raise InvalidInput(
                f"labelCol is {label}; expected one column: a {kind} with {params.getLoss()} predicts one number a "
                f"row. {independent}TorchEstimator takes several labels and predicts arrays."
            )
        return tuple(InputColumn(name, floating) for name in label)
    if label is None:
        return None
    indices = kind == "classifier" and not one_number
    return params.described_label(label, None if kind == "estimator" else "int64" if indices else floating)


def valid_labels(params: TrainingParams, kind: OutputKind) -> Classes | None:
    """The labels that are valid, None if any number is; raises ``InvalidInput`` if Params contradict each other."""
    name, count = type(params).__name__, params.getNumClasses()
    if kind == "multilabel":
        return _independent(params)
    if params.getMultiLabel():
        raise InvalidInput(f"multiLabel is True, and this is a {name}; expected a TorchClassifier.")
    if kind != "classifier" or not isinstance(params.getLabelCol(), str):
        if count is not None and kind == "classifier":
            warnings.warn(f"numClasses is ignored: this {name} has several label columns, or none.", stacklevel=5)
        return None
    if _is_binary(params):
        if count not in (None, 2):
            raise InvalidInput(f"numClasses is {count}; expected 2: {params.getLoss()} is for two classes.")
        count = 2
    loss = as_module(params.getLoss())
    return Classes(count, getattr(loss, "ignore_index", None), by_output=params.getCollate() is None)


def _independent(params: TrainingParams) -> Classes:
    loss, weights = as_module(params.getLoss()), params.getClassWeights()
    if isinstance(loss, _OF_CLASSES):
        raise InvalidInput(
            f"multiLabel is True, and loss is {loss}, which is for class indices; expected nn.BCEWithLogitsLoss(), the "
            "default, or another loss of labels that are 0 or 1."
        )
    if weights is not None:
        raise InvalidInput(
            f"multiLabel is True, and classWeights is {weights!r}; expected one of them. "
            "nn.BCEWithLogitsLoss(pos_weight=...) weighs the rows with a label of 1, for each label."
        )
    Outputs("multilabel", tuple(params.getThresholds() or (0,)))  # raises if a threshold is above 1
    if params.getNumClasses() is not None:
        warnings.warn("numClasses is ignored: with multiLabel, the model has labels, not classes.", stacklevel=6)
    return Classes(independent=True)


def check_label_type(params: TrainingParams, kind: OutputKind, dataset: DataFrame) -> None:
    """Raise ``InvalidInput`` for arrays of class indices if the loss is for two classes, or an input is ragged."""
    label = params.getLabelCol()
    # A collate function may make other labels.
    if kind != "classifier" or not isinstance(label, str) or label not in dataset.columns or params.getCollate():
        return
    type_ = dataset.schema[label].dataType
    if not isinstance(type_, (ArrayType, BinaryType, *VECTORS)):
        return
    if _is_binary(params):
        raise InvalidInput(
            f"label column {label!r} has type {type_.simpleString()[:200]}, and loss is {params.getLoss()}; expected "
            "multiLabel=True for independent labels, or nn.CrossEntropyLoss() for classes of tokens or pixels."
        )
    check_one_length(params.described_inputs())


def _is_binary(params: TrainingParams) -> bool:
    return isinstance(as_module(params.getLoss()), nn.BCELoss | nn.BCEWithLogitsLoss)
