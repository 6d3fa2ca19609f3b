"""The fitted model: transforms DataFrames, and is saved and loaded."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.ml import Model
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl.data.columns import Columns
from sparkdl.data.transforms import AssembledInputs
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.column_params import check_one_length
from sparkdl.ml.evaluation import (
    ClassifierMetrics,
    MultilabelMetrics,
    OutputColumns,
    RegressorMetrics,
    measure,
    measure_labels,
    measure_tokens,
)
from sparkdl.ml.inference.broadcast import ModelBroadcast
from sparkdl.ml.inference.outputs import Outputs
from sparkdl.ml.inference.scorer import Scorer
from sparkdl.ml.inference.udf import with_outputs
from sparkdl.ml.params import OutputParams
from sparkdl.ml.persistence.architecture import load_architecture, save_architecture
from sparkdl.ml.persistence.export import Program, Signature, examples, export
from sparkdl.ml.persistence.reader_writer import Saveable, Saved
from sparkdl.ml.report import Report, TrainingSummary
from sparkdl.spark.columns import check_frame
from sparkdl.spark.jvm import qualify
from sparkdl.training.objective import ModelFactory, OutputKind


class TorchModel(OutputParams, Saveable, Model):
    """A trained model, returned by an estimator's ``fit`` or by ``TorchModel.load``.

    Args:
        factory: makes the module.
        weights: safetensors bytes; empty if the factory carries them, as a ``Program`` does.
        kind: the type of the module's output.
        precision: the precision of the training.
        history: as the attribute.
        report: as the attribute.
        output: the shape of one row of the module's output, such as ``[classes, height, width]``; None if unknown, then
            a classifier predicts one class per row.
        probabilities: whether a classifier's module returns the probability of class 1, or of each independent label,
            as ``nn.BCELoss`` needs it.
        signature: the shape of a row and the dtype's name of each input, such as ``([28, 28], "float32")``; an export
            needs it. None if unknown.

    Attributes:
        history: list of dicts, a row per epoch: ``epoch, step, samples, loss``, ``valid_*``, ``seconds``,
            ``rows_per_second``.
        report: dict of ``seconds, train_seconds, rows, rows_per_second, bytes, restarts, skew`` and more.
    """

    def __init__(
        self,
        *,
        factory: ModelFactory | nn.Module,
        weights: bytes,
        kind: OutputKind = "estimator",
        precision: str = "fp32",
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
        output: list[int] | None = None,
        probabilities: bool = False,
        signature: Signature | None = None,
    ) -> None:
        super().__init__()
        self._factory, self._weights, self._signature = factory, weights, signature
        self._kind, self._precision, self._output, self._probabilities = kind, precision, output, probabilities
        self._shipment = ModelBroadcast()
        self.history, self.report = history or [], Report.of(report, history)

    @property
    def numClasses(self) -> int | None:
        """The number of a classifier's classes; None if the output's shape is unknown."""
        if self._kind != "classifier":
            raise AttributeError(f"the model of a {self._kind} has no classes.")
        if self._output is None:
            return None
        return 2 if self._scalar else self._output[0]

    @property
    def numLabels(self) -> int | None:
        """The number of a multi-label classifier's labels; None if the output's shape is unknown."""
        if self._kind != "multilabel":
            raise AttributeError(f"the model of a {self._kind} has no independent labels.")
        return None if self._output is None else self._output[0]

    @property
    def predicts_arrays(self) -> bool:
        """Whether a classifier's prediction of a row is an array: of independent labels, or of classes of tokens."""
        return self._kind == "multilabel" or self._dims > 0

    @property
    def _dims(self) -> int:
        """The dimensions of a row's tokens or pixels, which a classifier predicts a class for each; 0 for one class."""
        return max(len(self._output or ()) - 1, 0) if self._kind == "classifier" else 0

    @property
    def _scalar(self) -> bool:
        return self._output in ([], [1])

    @property
    def summary(self) -> TrainingSummary:
        """Rows, parameters, seconds, epochs and the last values of the training.

        Raises:
            InvalidInput: no estimator trained the model.
        """
        parameters = sum(parameter.numel() for parameter in self.module().parameters())
        return TrainingSummary.of(self.history, self.report, parameters)

    def evaluate(self, dataset: DataFrame) -> ClassifierMetrics | MultilabelMetrics | RegressorMetrics:
        """Compute the metrics of the predictions over the rows that have a label in ``labelCol``.

        A classifier needs its ``probabilityCol`` for the log loss and the AUC. Of tokens or pixels, each with a label
        from 0 to ``numClasses - 1`` counts, and there is no log loss; other labels, such as -100, are left out.

        Raises:
            InvalidInput: the model is neither a classifier nor a regressor, ``labelCol`` is no column of such labels,
                or no row has a label.
        """
        label = self.getLabelCol()
        if self._kind == "estimator":
            raise InvalidInput(
                "the model of a TorchEstimator has no metrics of its own; expected the model of a TorchClassifier or a "
                "TorchRegressor. The estimator's metrics are in model.history."
            )
        columns, classes = OutputColumns(self.getPredictionCol(), self.getProbabilityCol()), self._kind == "classifier"
        if self._kind == "multilabel" and label is not None:
            return measure_labels(self.transform(dataset), label, columns)
        if not isinstance(label, str):
            raise InvalidInput(f"labelCol is {label}; expected one column, as in model.setLabelCol('label').")
        if self._dims:
            return measure_tokens(self.transform(dataset), label, columns, self.numClasses or 0)
        return measure(self.transform(dataset), label, columns, classes=classes)

    def module(self) -> nn.Module:
        """The trained module on the CPU, in evaluation mode."""
        return self._scorer().module()

    def saved(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The files of the architecture, and the JSON fields of the constructor."""
        written, fields = save_architecture(self._factory, self._weights, self.module, self._program)
        return written, fields | {
            "kind": self._kind,
            "precision": self._precision,
            "output": self._output,
            "probabilities": self._probabilities,
            "signature": self._signature,
            "history": self.history,
            "report": self.report,
        }

    @classmethod
    def restored(cls, saved: Saved) -> TorchModel:
        """The model without its Params."""
        factory, weights = load_architecture(saved)
        names = ("kind", "precision", "history", "report", "output", "probabilities")
        fields = {name: saved.fields[name] for name in names}
        signature = saved.fields["signature"] and [
            (list(shape), str(dtype)) for shape, dtype in saved.fields["signature"]
        ]
        return cls(factory=factory, weights=weights, signature=signature, **fields)

    def exportProgram(self, path: str) -> None:
        """Write the model as a torch.export program for batches of any size, readable by ``torch.export.load``.

        Args:
            path: a path or URI of the file, by convention with the suffix ``.pt2``.

        Raises:
            InvalidInput: the path exists, or the model cannot be exported.
        """
        root = qualify(SparkSession.active(), path)
        if files.exists(root):
            raise InvalidInput(f"{path} exists; delete it, or export to another path.")
        files.write(root, self._program())

    def _program(self) -> bytes:
        if isinstance(self._factory, Program) and not self._weights:
            return self._factory.archive
        if self._signature is None:
            raise InvalidInput(
                "the model cannot be exported: the shapes and types of its inputs are not known. Expected a model that "
                "was trained, or TorchModel(signature=...)."
            )
        return export(self.module(), examples(self._signature))

    def _scorer(self) -> Scorer:
        floating = "float64" if self._precision == "fp64" else "float32"
        columns = Columns(self.described_inputs(), floating=floating)
        thresholds, vectors = self.getThresholds(), bool(self.getRawPredictionCol() or self.getProbabilityCol())
        outputs = Outputs(
            self._kind,
            None if thresholds is None else tuple(thresholds),
            scalar=self._scalar,
            vectors=vectors,
            probabilities=self._probabilities,
            dims=self._dims,
        )
        if self._dims:
            check_one_length(columns.inputs)
        collate = AssembledInputs.around(self.getCollate(), assembled=self.getAssembleInputs(), floating=floating)
        return Scorer(self._factory, self._weights, outputs, self._precision, columns, collate)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        classifies = self._kind in ("classifier", "multilabel")
        vectors = [self.rawPredictionCol, self.probabilityCol] if classifies else []
        check_frame(dataset)
        self.check_free(dataset, [self.predictionCol, *vectors])
        if not classifies and self.getThresholds() is not None:
            warnings.warn(f"thresholds is ignored: this model is a {self._kind}, not a classifier.", stacklevel=3)
        size = self.numLabels if self._kind == "multilabel" else self.numClasses if classifies else None
        return with_outputs(dataset, self._scorer(), self._shipment, self._output_names(), size)

    def _output_names(self) -> dict[str, str]:
        return {
            "prediction": self.getPredictionCol(),
            "probability": self.getProbabilityCol(),
            "raw": self.getRawPredictionCol(),
        }
