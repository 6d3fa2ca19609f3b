"""Estimators of pyspark.ml that train on a gang or in rounds."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, cast

from pyspark.sql import DataFrame
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sparkdl.data.columns import Columns, InputColumn, listed
from sparkdl.data.transforms import AssembledInputs, Collate
from sparkdl.errors import InvalidInput
from sparkdl.ml.column_params import check_arguments
from sparkdl.ml.derived_columns.label_columns import check_label_type, target_columns, valid_labels
from sparkdl.ml.derived_columns.rows import DerivedColumns
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.fit_spec import FitResult, FitSpec
from sparkdl.ml.gang_fit import chosen_workers, fit_gang
from sparkdl.ml.model import TorchModel
from sparkdl.ml.param_declaration import Scope, with_default
from sparkdl.ml.param_maps import ParamMapEstimator
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.persistence.describe import Describer
from sparkdl.ml.persistence.nested_params import aliases
from sparkdl.ml.persistence.reader_writer import Saveable
from sparkdl.ml.rounds_fit import fit_rounds
from sparkdl.ml.run import IDENTITY, Run, ask_older_attempt_to_stop
from sparkdl.ml.warm_start import WarmStart
from sparkdl.rounds import is_algorithm
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.columns import check_frame
from sparkdl.spark.session import result_limit
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from sparkdl.training.objective.labels import Classes
from sparkdl.training.objective.loss import LossFunction, as_module
from sparkdl.training.objective.module_factory import ModelFactory
from sparkdl.training.objective.monitored_value import check_monitor
from sparkdl.training.objective.objective import Objective, OutputKind
from sparkdl.training.objective.optimizers import optimizer_factory
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce


class DistributedEstimator(ParamMapEstimator, Saveable):
    """Base class of the estimators; subclasses define the types of labels and outputs.

    Raises:
        InvalidInput: a Param has an invalid value.
    """

    @property
    def _kind(self) -> OutputKind:
        return "estimator"

    @property
    def kind(self) -> OutputKind:
        """The output that scoring needs."""
        return self._kind

    def _take(self, values: dict[str, Any]) -> None:
        super()._take(values)
        self.getInputCols()  # raises if inputCols and featuresCol disagree

    def _fit(self, dataset: DataFrame) -> TorchModel:
        return self.fit_to(dataset)

    def train_to(self, dataset: DataFrame, last_epoch: int | None) -> FitResult:
        """Train as ``fit`` does, and pause after an epoch: a later call or fit with the same ``runDir`` continues.

        The result has no weights unless training finished. Raises the errors of ``fit``.
        """
        return self._trained(dataset, last_epoch=last_epoch)[0]

    def fit_to(self, dataset: DataFrame, last_epoch: int | None = None) -> TorchModel:
        """Train as ``fit`` does, and end after an epoch as if training stopped there; default: the last one."""
        fitted, factory, watch = self._trained(dataset, last_epoch=last_epoch, pauses=False)
        weights = watch.run.keep(fitted.weights, factory, dataset.sparkSession)
        model = self.make_model(replace(fitted, weights=weights), factory)
        model.columnTypes = dict(dataset.dtypes)
        watch.finish(model)
        return model

    def _trained(self, dataset: DataFrame, **ends: Any) -> tuple[FitResult, ModelFactory | nn.Module, FitMonitor]:
        check_frame(dataset, bounded=True)
        start, fit = time.monotonic(), self.fit_spec(dataset)
        fit = replace(fit, training=replace(fit.training, **ends))
        for name in self.changed_from_default(self._unused()):
            value, strategy = self.getOrDefault(name), self.getStrategy()
            warnings.warn(f"{name}={value!r} is ignored: {strategy!r} does not use it.", stacklevel=5)
        self.warn_of_ignored()
        unit = "Rank" if fit.algorithm is None else "Shard"
        chosen = None if self.getNumWorkers() is not None else chosen_workers(self, fit)
        sized = self if chosen is None else self.copy()._set(numWorkers=chosen)
        watch = FitMonitor(fit.run, sized, trackers=self.getTrackers(), events=self.getTelemetry(), unit=unit)
        watch.phases.start -= time.monotonic() - start
        with watch:
            cluster = SparkCluster(
                fit.data.sparkSession,
                sized.getNumWorkers() or 1,
                timeout=self.getCollectiveTimeout(),
                event_directory=fit.run.events if self.getTelemetry() else None,
                run_directory=fit.run.directory,
                logs=self.getLogLevel(),
                title=watch.title,
                **self.settings("device", "backend", "taskCpus", "taskGpus", "resourceTimeout", "allowUnencrypted"),
            )
            cluster.warm_up()
            before = time.monotonic() - start
            fitted = (fit_gang if fit.algorithm is None else fit_rounds)(fit, cluster, watch)
        values = fitted.report | {"seconds": before + fitted.report["seconds"], "device": self.getDevice()}
        if fit.class_weights is not None:
            values["class_weights"] = fit.class_weights
        report = watch.report(fitted.history, values)
        return replace(fitted, report=report), fit.training.objective.model, watch

    def fit_spec(self, dataset: DataFrame) -> FitSpec:
        """Convert the Params to the settings of a fit on the rows ``dataset``; an older attempt of its run stops.

        Raises:
            InvalidInput: a Param is missing or has an invalid value.
        """
        derived, strategy = self.derived_columns(), self.getStrategy()
        check_label_type(self, self._kind, dataset)
        training, run = self.training(), Run(self.run_directory(dataset, derived.columns))
        split = {} if run.directory is None else derived.described_split(dataset, run.load(IDENTITY))
        descriptions = {} if run.directory is None else self.descriptions() | split
        ask_older_attempt_to_stop(run, descriptions)  # before the first job, which may need its slots
        rows = derived.read(dataset)
        return FitSpec(
            rows.frame,
            rows.columns,
            training,
            run,
            descriptions,
            algorithm=strategy if is_algorithm(strategy) else None,
            class_weights=rows.class_weights,
            **self.settings("checkpointInterval", "maxRestarts", "minWorkers"),
            **self.settings("elasticTimeout", "maxRounds", "maxSeconds"),
        )

    def warn_of_ignored(self) -> None:
        """Warn of set Params that other Params make useless."""
        scheduler, in_rounds = self.getScheduler(), is_algorithm(self.getStrategy())
        factory = getattr(scheduler, "func", scheduler)
        # A function may make a ReduceLROnPlateau.
        plateau = scheduler is not None and not (isinstance(factory, type) and factory is not ReduceLROnPlateau)
        keep_best = self.getKeepBest()
        compared = self.getPatience() is not None or (self._is_validated if keep_best is None else keep_best)
        ignored: dict[str, str] = {}
        if scheduler is None and not in_rounds:
            ignored["schedulerInterval"] = "scheduler"
        if self._kind in ("estimator", "regressor"):
            names = ("numClasses", "thresholds", "rawPredictionCol", "probabilityCol")
            ignored |= dict.fromkeys(names, "a TorchClassifier")
        if not compared:
            ignored["minDelta"] = "patience and keepBest"
            if in_rounds or not plateau:
                ignored |= dict.fromkeys(("monitor", "monitorMode"), "patience, keepBest and ReduceLROnPlateau")
        for name in self.changed_from_default(tuple(ignored)):
            value = self.getOrDefault(name)
            warnings.warn(f"{name}={value!r} is ignored without {ignored[name]}.", stacklevel=6)

    def _unused(self) -> tuple[str, ...]:
        strategy = self.getStrategy()
        if not is_algorithm(strategy):
            return self.names_outside(Scope.GANG)
        unused = self.names_outside(Scope.ROUNDS | Scope.STEPS if strategy.uses_optimizer else Scope.ROUNDS)
        unused += () if getattr(strategy, "shuffle", True) else ("numWorkers",)
        # If rounds are saved, each one is, whatever the interval is.
        return unused if self.getCheckpointInterval() == "never" else (*unused, "checkpointInterval")

    def make_model(self, fitted: FitResult, factory: ModelFactory | nn.Module) -> TorchModel:
        """Make the model of a finished fit, with the estimator's values of the Params that both have."""
        loss = as_module(self.getLoss())
        model = TorchModel(
            factory=factory.factory if isinstance(factory, WarmStart) else factory,
            kind=self._kind,
            precision=self.getPrecision(),
            probabilities=self._kind != "estimator" and isinstance(loss, nn.BCELoss),
            ignored=getattr(loss, "ignore_index", None),
            **vars(fitted),
        )
        if self._kind == "estimator":
            model.evaluated = {"loss": self.getLoss(), "metrics": self.getMetrics()}
        # As in pyspark: transform() accepts a map with Params of the estimator, so the model takes over its uid.
        copied = self._copyValues(model._resetUid(self.uid))
        copied.clear(copied.device)  # tasks that score need no GPU of their own
        return copied

    def objective(self) -> Objective:
        """The objective that training minimizes, from the Params.

        Raises:
            InvalidInput: a Param is missing or has an invalid value.
        """
        for name in ("model", "loss"):
            if not self.isDefined(self.getParam(name)) or self.getOrDefault(name) is None:
                raise InvalidInput(f"{name} is not set; expected it as {type(self).__name__}({name}=...).")
        model, arguments = self.getModel(), self.getModelArgs()
        network = model.factory if isinstance(model, WarmStart) else model
        if arguments and isinstance(network, nn.Module):
            raise InvalidInput(
                f"model is a {type(network).__name__}, which is made already, and modelArgs is {arguments}; expected "
                f"the class, as in model={type(network).__name__}, or no modelArgs."
            )
        if isinstance(model, WarmStart):
            model = model.called_with(arguments)
        elif arguments:
            model = partial(model, **arguments)
        if self.getCollate() is None:
            check_arguments(model, self.described_inputs(), assembled=self.getAssembleInputs())
        metrics, in_rounds = self.getMetrics(), is_algorithm(self.getStrategy())
        check_monitor(self.getMonitor(), metrics, validated=self._is_validated, in_rounds=in_rounds)
        objective = Objective(
            model,
            self.getLoss(),
            optimizer_factory(self.getOptimizer(), self.getLearningRate(), self.getOptimizerArgs()),
            metrics=metrics,
            **self.settings("scheduler", "precision", "maxGradNorm", "schedulerInterval"),
            **self.settings("monitor", "monitorMode", "channelsLast", "compile", "tf32", "microBatches"),
        )
        strategy = self.getStrategy()
        if not is_algorithm(strategy) or strategy.uses_optimizer:  # others ignore the scheduler, with a warning
            objective.check_schedule(in_rounds=is_algorithm(strategy))
        return objective

    def training(self) -> Training:
        """The settings of a worker's training loop, from the Params; an algorithm of rounds is no part of them.

        Raises:
            InvalidInput: a Param is missing or has an invalid value.
        """
        strategy = self.getStrategy()
        return Training(
            self.objective(),
            strategy=AllReduce() if is_algorithm(strategy) else cast(Strategy, strategy),  # rounds do not read it
            layout=self.single_layout() if is_algorithm(strategy) else self._layout(),
            measured=self.getTelemetry(),
            kind=self._kind,
            callbacks=tuple(self.getCallbacks()),
            classes=self.classes(),
            collate=self.collation(),
            result_limit=result_limit(),
            **self.settings("batchSize", "epochs", "seed", "dropLast", "patience", "minDelta"),
            **self.settings("keepBest", "replicaCheckInterval", "augment", "cacheOnDevice"),
        )

    def _layout(self) -> Layout:
        layout, synchronised = self.getLayout(), self.getSyncBatchNorm()
        if not self.isSet(self.layout):
            return Replicated(synchronised)
        same = getattr(layout, "sync_batch_norm", False) == synchronised
        if self.isSet(self.syncBatchNorm) and not same:
            raise InvalidInput(
                f"syncBatchNorm is {synchronised}, and layout is {layout}; expected one of the two Params, or the same "
                f"in both: layout=Replicated(sync_batch_norm={synchronised})."
            )
        return layout

    def single_layout(self) -> Layout:
        """The layout of rounds, and of members and trials in tasks, which warn that they ignore ``layout``.

        Raises:
            InvalidInput: ``layout`` needs several workers.
        """
        if (needed := self.getLayout().multiple(1)) > 1:
            raise InvalidInput(
                f"layout is {self.getLayout()}, which needs {needed} workers, and rounds, and members and trials in "
                "tasks, train each model on one. Leave layout out, or train on a gang: strategy=AllReduce(), and "
                "numWorkers set."
            )
        return Replicated(self.getSyncBatchNorm())

    def read_columns(self) -> Columns:
        """The DataFrame columns and the tensors that they become, from the Params."""

        def column(name: str | None, dtype: str) -> InputColumn | None:
            return None if name is None else InputColumn(name, dtype)

        floating = self._floating
        return Columns(
            inputs=self.described_inputs(),
            target=target_columns(self, self._kind, floating),
            weight=column(self.getWeightCol(), floating),
            validation=column(self.getValidationIndicatorCol(), "bool"),
            row_id=column(self.getIdCol(), "int64"),
            floating=floating,
        )

    def collation(self) -> Collate | None:
        """The function that makes a batch of the columns' tensors, from ``assembleInputs`` and ``collate``.

        Raises:
            InvalidInput: the inputs are assembled, and one of them is ragged.
        """
        ragged = [column.name for column in self.described_inputs() if column.ragged is not None]
        if self.getAssembleInputs() and ragged:
            raise InvalidInput(f"assembleInputs is True and {listed(ragged)} is ragged; expected rows of one length.")
        return AssembledInputs.around(self.getCollate(), assembled=self.getAssembleInputs(), floating=self._floating)

    def derived_columns(self) -> DerivedColumns:
        """The columns of ``read_columns``, and those that a fit derives from them.

        Raises:
            InvalidInput: Params contradict each other.
        """
        classes = None if self.getClassWeights() is None else self.classes()
        return DerivedColumns.of(self, self.read_columns(), classes)

    @property
    def _is_validated(self) -> bool:
        return self.getValidationIndicatorCol() is not None or self.getValidationFraction() is not None

    @property
    def _floating(self) -> str:
        return "float64" if self.getPrecision() == "fp64" else "float32"

    def classes(self) -> Classes | None:
        """The labels that are valid, from the Params; None if any number is.

        Raises:
            InvalidInput: Params contradict each other.
        """
        return valid_labels(self, self._kind)

    def descriptions(self) -> dict[str, Any]:
        """Descriptions of the Params that the checkpoints of a run depend on, by name."""
        free = self.names_outside(Scope.RUN)
        return dict(Describer(aliases(self), lambda _, name: name not in free).describe(self))


class TorchEstimator(DistributedEstimator):
    """Trains any model with any loss; its model writes the raw output to ``predictionCol``.

    If the output is one number per row, the column holds floats, else arrays of floats. With precision ``"fp64"`` they
    are doubles. Integer labels stay integers; floating-point labels take the run's precision.
    """


class TorchClassifier(DistributedEstimator):
    """Trains a classifier; labels are class indices from 0, the default loss is cross-entropy.

    The module returns one score per class, ``[B, classes]``, or with ``BCEWithLogitsLoss`` one score, ``[B]`` or
    ``[B, 1]``; with ``BCELoss`` this is the probability of class 1. Several label columns hold the probabilities of the
    classes. The fitted model writes ``rawPrediction`` and ``probability`` vectors, and ``prediction``, a double.

    Token classes: for labels ``[B, d1, ...]``, an array column, the module returns scores ``[B, classes, d1, ...]``, as
    ``nn.CrossEntropyLoss`` takes them. ``prediction`` is a nested array ``[d1, ...]`` of doubles, ``rawPrediction`` and
    ``probability`` are nested arrays ``[d1, ..., classes]``.

    Independent labels, ``multiLabel=True``: labels are numbers in [0, 1], in several columns or an array column. The
    module returns scores ``[B, labels]``, or with ``BCELoss`` probabilities; the default loss is ``BCEWithLogitsLoss``.
    ``rawPrediction`` and ``probability`` are vectors with a number for each label, and ``prediction`` is an array of
    doubles, 1 if the probability exceeds the label's threshold, by default 0.5, else 0.
    """

    loss = with_default(TrainingParams.loss, nn.CrossEntropyLoss())

    @property
    def _kind(self) -> OutputKind:
        return "multilabel" if self.getMultiLabel() else "classifier"

    def getLoss(self) -> LossFunction | nn.Module:
        """Value of ``loss``; if it is not set and ``multiLabel`` is True, ``nn.BCEWithLogitsLoss()``."""
        if self.getMultiLabel() and not self.isSet(self.loss):
            return nn.BCEWithLogitsLoss()
        return super().getLoss()


class TorchRegressor(DistributedEstimator):
    """Trains a regressor; labels are numbers, the default loss is the mean squared error.

    The module returns ``[B]`` or ``[B, 1]``. The fitted model writes ``prediction``, a double.
    """

    loss = with_default(TrainingParams.loss, nn.MSELoss())

    @property
    def _kind(self) -> OutputKind:
        return "regressor"
