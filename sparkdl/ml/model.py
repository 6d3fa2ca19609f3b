"""The fitted model: transforms DataFrames, and is saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any

from pyspark.ml import Model
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from torch import nn

from sparkdl.data.columns import InputColumn, listed
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.weights import pack
from sparkdl.io.weights_file import Weights, WeightsFile
from sparkdl.ml.broadcast import MappedFactory, ModelBroadcast
from sparkdl.ml.evaluation import LossMetrics, Metrics, OutputColumns, measure, measure_labels, measure_tokens
from sparkdl.ml.params import OutputParams
from sparkdl.ml.persistence.reader_writer import Saveable, SavedInstance
from sparkdl.ml.persistence.table_frame import table_frame
from sparkdl.ml.report import Report, TrainingSummary
from sparkdl.ml.udf import with_outputs
from sparkdl.rounds.evaluate import Validation
from sparkdl.rounds.parameters import weights_of
from sparkdl.serving.format.architecture import save_architecture
from sparkdl.serving.format.export import Signature
from sparkdl.serving.format.factory import NO_TRUST
from sparkdl.serving.format.onnx import to_onnx
from sparkdl.serving.format.param_values import NotDescribable, allowed_types
from sparkdl.serving.model_cache import CachedModel
from sparkdl.serving.predictor import Predictor
from sparkdl.serving.scorer import Scorer
from sparkdl.serving.trained_module import TrainedModule, output_names
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.columns import check_frame, col
from sparkdl.spark.session import qualify
from sparkdl.training.layouts.table import dropped_weights
from sparkdl.training.objective.labels import IGNORED
from sparkdl.training.objective.module_factory import ModelFactory
from sparkdl.training.objective.objective import Objective, OutputKind


class TorchModel(OutputParams, Saveable, Model):
    """A trained model, returned by an estimator's ``fit`` or by ``TorchModel.load``.

    Args:
        factory: makes the module.
        weights: safetensors bytes, or a ``WeightsFile``; empty if the factory carries them, as a ``Program`` does.
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
        ignored: the label that the loss, by its ``ignore_index``, and ``evaluate`` ignore; None if they use all labels.

    Attributes:
        history: list of dicts, a row per epoch: ``epoch, step, samples, loss``, ``valid_*``, ``seconds``,
            ``rows_per_second``.
        columnTypes: dict of the Spark types of the training's columns by name, such as ``{"age": "int"}``, to which
            ``load_predictor`` converts the inputs of a pipeline with this model; the same as ``dict(rows.dtypes)``.
        report: dict of ``seconds, train_seconds, rows, rows_per_second, bytes, restarts, skew`` and more.
    """

    def __init__(
        self,
        *,
        factory: ModelFactory | nn.Module,
        weights: Weights,
        kind: OutputKind = "estimator",
        precision: str = "fp32",
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
        output: list[int] | None = None,
        probabilities: bool = False,
        signature: Signature | None = None,
        ignored: int | None = IGNORED,
    ) -> None:
        super().__init__()
        self._trained = TrainedModule(factory, weights, kind, precision, output, probabilities, signature, ignored)
        self._shipment = ModelBroadcast()
        self.columnTypes: dict[str, str] = {}
        self.evaluated: dict[str, Any] = {}
        self._trust = NO_TRUST
        self.history, self.report = history or [], Report.of(report, history)

    @property
    def numClasses(self) -> int | None:
        """The number of a classifier's classes; None if the output's shape is unknown."""
        if self._kind != "classifier":
            raise AttributeError(f"the model of a {self._kind} has no classes.")
        return self._trained.num_outputs

    @property
    def numLabels(self) -> int | None:
        """The number of a multi-label classifier's labels; None if the output's shape is unknown."""
        if self._kind != "multilabel":
            raise AttributeError(f"the model of a {self._kind} has no independent labels.")
        return self._trained.num_outputs

    @property
    def ignoredLabel(self) -> int | None:
        """The label that the loss and ``evaluate`` ignore; None if they use all labels."""
        return self._trained.ignored

    @property
    def predictsArrays(self) -> bool:
        """Whether a classifier's prediction of a row is an array: of independent labels, or of classes of tokens."""
        return self._kind == "multilabel" or self._trained.dims > 0

    @property
    def _kind(self) -> OutputKind:
        return self._trained.kind

    @property
    def summary(self) -> TrainingSummary:
        """Rows, parameters, seconds, epochs and the last values of the training.

        Raises:
            InvalidInput: no estimator trained the model.
        """
        return TrainingSummary.of(self.history, self.report, self._trained.parameters)

    def in_memory(self) -> TorchModel:
        """This model, with weights of a file read into memory, so that the file may go."""
        if isinstance(weights := self._trained.weights, WeightsFile):
            packed = pack(self.module()) if weights.tables else b"".join(weights.copied())
            self._trained = replace(self._trained, weights=packed)
        return self

    def evaluate(self, dataset: DataFrame) -> Metrics:
        """Compute the metrics of the predictions over the rows that have a label in ``labelCol``.

        A classifier needs its ``probabilityCol`` for the log loss and the AUC. Of tokens or pixels, each with a label
        from 0 to ``numClasses - 1`` counts, and there is no log loss. Rows, tokens and pixels with the label
        ``ignoredLabel`` are left out, and counted as ``ignored``. The model of a ``TorchEstimator`` computes its
        ``loss`` and ``metrics`` in a job of its own.

        Returns:
            ``ClassifierMetrics``, ``MultilabelMetrics``, ``RegressorMetrics``, or ``LossMetrics`` of a
            ``TorchEstimator``.

        Raises:
            InvalidInput: ``labelCol`` is no column of such labels, no row has a label, or the loss of a
                ``TorchEstimator`` is unknown.
        """
        label = self.getLabelCol()
        if self._kind == "estimator":
            return self._evaluate_loss(dataset, label)
        columns = OutputColumns(self.getPredictionCol(), self.getProbabilityCol(), ignored=self.ignoredLabel)
        if self._kind == "multilabel" and label is not None:
            return measure_labels(self.transform(dataset), label, columns)
        if not isinstance(label, str):
            raise InvalidInput(f"labelCol is {label}; expected one column, as in model.setLabelCol('label').")
        if self._trained.dims:
            return measure_tokens(self.transform(dataset), label, columns, self.numClasses or 0)
        return measure(self.transform(dataset), label, columns, classes=self._kind == "classifier")

    def _evaluate_loss(self, dataset: DataFrame, label: str | list[str] | None) -> LossMetrics:
        if not self.evaluated:
            raise InvalidInput(
                "the loss of this TorchEstimator's model is unknown: fit did not train it, or save found no name for "
                "its loss or a metric. Expected an nn module, or a function of a module that can be imported."
            )
        check_frame(dataset)
        live, scorer = "loss" in self.evaluated, self._scorer()  # a loaded model has a description
        evaluated = self.evaluated if live else allowed_types("loss").resolve(self.evaluated, self._trust)
        mapped = isinstance(scorer.weights, WeightsFile) and scorer.weights.tables
        factory = MappedFactory(scorer) if mapped else scorer.factory
        objective = Objective(factory, precision=scorer.precision, **evaluated)
        target: Any = self.described_label(label, None) if isinstance(label, str) else None
        if isinstance(label, list):
            target = tuple(InputColumn(name, scorer.columns.floating) for name in label)
        columns = replace(scorer.columns, target=target)
        if missing := [column.name for column in columns.targets if column.name not in dataset.columns]:
            raise InvalidInput(f"there is no label column {listed(missing)}; the data has {listed(dataset.columns)}.")
        rows = dataset.where(reduce(and_, [col(column.name).isNotNull() for column in columns.targets], lit(True)))
        transforms = Transforms(scorer.collate, None, objective.criterion().denominators)
        module = scorer.module()
        with dropped_weights(module) if mapped else nullcontext():
            weights = weights_of(module)
        cluster = SparkCluster(dataset.sparkSession, 1, device=scorer.device, title="sparkdl: evaluate")
        with cluster.map_reduce(rows, columns, shuffle=False) as jobs:
            validation = Validation(objective, transforms, validation=False)
            values = validation.measure(jobs, weights)
            return LossMetrics(values.pop("loss"), values, sum(jobs.shard_rows))

    def predict(self, data: Any) -> Any:
        """Predict in this process, without a Spark session, the columns that ``transform`` adds.

        The first call makes the module, and the model keeps it. ``sparkdl.load_predictor`` loads a saved model where
        pyspark is not installed.

        Args:
            data: a pandas DataFrame or a pyarrow Table with a column for each input, of numbers, lists or arrays; a
                mapping of arrays by input names; a list of mappings, one for each row; or an array ``[rows, ...]`` of
                the only input.

        Returns:
            A pyarrow Table for a Table; else a pandas DataFrame, in which vectors and arrays are numpy arrays.

        Raises:
            InvalidInput: a column is missing or cannot become a tensor, or the model's output has the wrong shape.
        """
        return self.predictor(self._shipment.local(self._scorer())).predict(data)

    def module(self, tables: str = "whole") -> nn.Module:
        """The trained module on the CPU, in evaluation mode.

        Args:
            tables: ``"whole"`` has all rows of each ``Table`` in memory. With ``"mapped"``, a table of a model with
                more than 256 MiB of weights has its rows in a file on this host's disk, which is mapped.

        Raises:
            InvalidInput: ``tables`` has another value, or a file of weights is gone.
        """
        return self._trained.module(tables)

    def table(self, name: str, values: Sequence[Any] | None = None) -> DataFrame:
        """The trained rows of a ``Table``, for joins, a store of a service, or an index of nearest neighbours.

        Args:
            name: the table's dotted name, as in ``module().named_modules()``.
            values: the original value of each id, such as the ``labels`` of the ``StringIndexerModel`` that made the
                ids. Hashed columns have ids alone.

        Returns:
            ``id bigint, vector array<float>``, or ``array<double>`` of a training with fp64; with ``values``, ``value``
            as well. Tasks read large tables from the model's files, which have to stay until then.

        Raises:
            InvalidInput: the model has no such table.
        """
        return table_frame(SparkSession.builder.getOrCreate(), self._trained, name, values)

    def saved(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        """The files of the architecture, and the JSON fields of the constructor."""
        trained, program = self._trained, partial(self._trained.program, self.getColumnSpecs())
        written, fields = save_architecture(trained.factory, trained.weights, self.module, program)
        evaluated = self.evaluated
        if "loss" in evaluated:
            try:
                evaluated = allowed_types("loss").describe(evaluated)
            except NotDescribable:  # a pickle would have to be trusted, also by programs that only predict
                evaluated = {}
        records = {name: getattr(self, name) for name in ("history", "report", "columnTypes")}
        return written, fields | trained.fields() | records | {"evaluated": evaluated}

    @classmethod
    def restored(cls, saved: SavedInstance) -> TorchModel:
        """The model without its Params."""
        fields = {name: saved.fields[name] for name in ("history", "report")}
        model = cls(**vars(TrainedModule.load(saved)), **fields)
        model.columnTypes = saved.fields.get("columnTypes", {})
        model.evaluated, model._trust = saved.fields.get("evaluated", {}), saved.trust
        return model

    def withOutputs(self, layer: str) -> TorchModel:
        """The model of the same weights that predicts the output of a layer, such as an embedding.

        ``predictionCol`` then holds the layer's output, flattened to an array. If ``forward`` calls the layer several
        times, the last output counts.

        Args:
            layer: the layer's dotted name, as in ``module().named_modules()``.

        Raises:
            InvalidInput: there is no such layer, or its output is no tensor ``[B, ...]``.
        """
        model = TorchModel(**vars(self._trained.layer(layer)), history=self.history, report=self.report)
        self._copyValues(model)
        model.clear(model.thresholds)
        model.columnTypes = self.columnTypes
        return model

    def exportProgram(self, path: files.StrPath) -> None:
        """Write the model as a torch.export program for batches of any size, readable by ``torch.export.load``.

        Args:
            path: a path or URI of the file, by convention with the suffix ``.pt2``.

        Raises:
            InvalidInput: the path exists, or the model cannot be exported.
        """
        _write_new(path, lambda: self._trained.program(self.getColumnSpecs()))

    def exportOnnx(self, path: files.StrPath) -> None:
        """Write the model in the ONNX format for batches of any size; needs the extra ``onnx``.

        The output, ``output``, is the module's own: scores of classes, no probabilities. The inputs have the names of
        the input columns, or of the arguments of ``forward`` if columns are assembled, collated or described. If
        onnxruntime is installed, it compares the outputs with the module's on 1, 2, 3 and 33 rows.

        Args:
            path: a path or URI of the file, by convention with the suffix ``.onnx``.

        Raises:
            InvalidInput: the path exists, the model cannot be exported, the outputs differ, onnxruntime cannot run the
                file, as with convolutions in float64, or packages are missing.
        """
        types = self.predictor(CachedModel(self.module())).input_types
        names = None if types is None else [name for name, _, _ in types]
        _write_new(path, lambda: to_onnx(self._trained.program(self.getColumnSpecs()), names))

    def predictor(self, loaded: CachedModel | None = None) -> Predictor:
        """The predictor of this model's Params; ``loaded`` is its module, if there is one already."""
        return Predictor.of(self._trained, self._values(), loaded)

    def _scorer(self) -> Scorer:
        return self._trained.scorer(self._values())

    def _values(self) -> dict[str, Any]:
        values = {one.name: self.getOrDefault(one) for one in self.params if self.isDefined(one)}
        return values | {"inputCols": self.getInputCols()}

    def _transform(self, dataset: DataFrame) -> DataFrame:
        classifies = self._kind in ("classifier", "multilabel")
        vectors = [self.rawPredictionCol, self.probabilityCol] if classifies else []
        check_frame(dataset)
        self.check_free(dataset, [self.predictionCol, *vectors])
        if not classifies and self.getThresholds() is not None:
            warnings.warn(f"thresholds is ignored: this model is a {self._kind}, not a classifier.", stacklevel=3)
        names, size = output_names(self._values()), self._trained.num_outputs if classifies else None
        return with_outputs(dataset, self._scorer(), self._shipment, names, size)


def _write_new(path: files.StrPath, content: Callable[[], bytes]) -> None:
    session = SparkSession.getActiveSession()
    root = path if session is None else qualify(session, path)
    if files.exists(root):
        raise InvalidInput(f"{path} exists; delete it, or export to another path.")
    files.write(root, content())
