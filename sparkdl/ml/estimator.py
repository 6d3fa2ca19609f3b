"""The front door: pyspark.ml estimators that train on a gang."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pyspark import keyword_only
from pyspark.sql import DataFrame
from torch import nn

from sparkdl.data.columns import Column, Columns
from sparkdl.errors import InvalidInput
from sparkdl.ml.defaults import DEFAULTS
from sparkdl.ml.fit_monitor import Watch, watching
from sparkdl.ml.gang_fit import Fit, Fitted, fit_gang
from sparkdl.ml.inference.outputs import Kind
from sparkdl.ml.model import TorchModel
from sparkdl.ml.param_maps import MappedEstimator
from sparkdl.ml.params import described
from sparkdl.ml.persistence.formatting import plain
from sparkdl.ml.persistence.reader_writer import Saveable
from sparkdl.ml.rounds_fit import fit_rounds
from sparkdl.ml.run import Run
from sparkdl.ml.tracking.tracker import apart
from sparkdl.ml.warm_start import WarmStart
from sparkdl.rounds import Algorithm, is_algorithm
from sparkdl.training.labels import Classes
from sparkdl.training.loop import Training
from sparkdl.training.objective import LossFunction, ModelFactory, Objective, OptimizerFactory, SchedulerFactory
from sparkdl.training.strategies import Strategy

_BINARY_LOSSES = (nn.BCELoss, nn.BCEWithLogitsLoss)


class GangEstimator(MappedEstimator, Saveable):
    """What all three estimators do; they differ in what a label and an output mean.

    Args:
        model: zero-argument factory, such as a ``sparkdl.WarmStart``; or an ``nn.Module`` whose weights are the start.
        loss: an ``nn`` loss module, whose class weights and ``ignore_index`` count as in torch alone on the whole
            batch; or ``loss(output, target)`` that returns losses ``[B, ...]`` or a scalar, taken for a mean of rows.
        optimizer: called with the parameters; default Adam with a rate of 1e-3.
        scheduler: called with the optimizer; stepped after every optimizer step, in rounds once a round.
        metrics: name -> torchmetrics metric.
        inputCols: input columns, each one argument of ``forward()``; default ``["features"]``.
        featuresCol: short for ``inputCols=[featuresCol]``.
        columns: what the schema does not tell of an input column, each a ``sparkdl.data.Column``; default none.
        labelCol: the label; several columns, side by side ``[B, labels]``; or None, where the target is the first
            input. Default ``"label"``.
        weightCol: the rows' weights in the loss; default none.
        validationCol: boolean; true keeps a row out of training and in validation; default none.
        idCol: unique integers that fix the order of rows; default: numbered as they come.
        predictionCol: default ``"prediction"``.
        rawPredictionCol: default ``"rawPrediction"``; classifiers only.
        probabilityCol: default ``"probability"``; classifiers only.
        thresholds: classifiers only; the prediction is the class with the largest probability / threshold; default 1
            each.
        numClasses: classifiers only; labels are checked against it; default: as many as the model has scores.
        numWorkers: members of the gang, one barrier task each; or parts that rounds have, a task each; default 1.
        batchSize: rows of the GLOBAL batch; default 256.
        epochs: default 1.
        seed: default 0.
        strategy: how replicas agree, on a gang by default, ``AllReduce()``; or an algorithm of rounds, such as
            ``ParallelSGD()``, which has fields of its own for batches, epochs and penalties.
        device: ``"cpu"`` (default) or ``"cuda"``.
        precision: ``"fp32"`` (default), ``"bf16"`` or ``"fp64"``.
        clipNorm: largest L2 norm of the global gradient; default none.
        accumulate: into how many pieces a member cuts its rows of a step; default 1.
        patience: epochs without a smaller ``valid_loss`` (``loss`` without validation rows) after which training ends,
            with the weights of the best epoch; default none: all epochs, and the last weights.
        collate: ``collate(inputs, target) -> (inputs, target)`` of every batch's tensors; default none.
        augment: ``augment(inputs, target, generator) -> (inputs, target)`` of training batches; default none.
        hooks: objects with any of ``on_start, on_step, on_epoch, on_end(run)``, called on rank 0, with an attribute
            ``every_rank`` that is true on every member, with ``on_driver`` on the driver, as trackers; default none.
        runDir: the run's directory, a path or URI; a fit with a param map takes one in it. Default none.
        slotWait: seconds to wait for task slots; default 120.
        allowPlaintext: run although Spark's traffic is encrypted and the gang's is not; default False.
        checkpointEvery: a number of steps, ``"2 epochs"``, ``"30 seconds"``, ``"auto"`` (default), which weighs their
            cost against failures, or ``"never"``. The next attempt goes on from the newest, and so does the same fit
            again in the same ``runDir``; without one they are in a temporary directory of the driver's host. Rounds
            are saved one by one where there is a ``runDir``, or never.
        maxRestarts: times that a gang which failed starts again, unless it would fail again; default 3, as of a task.
        minWorkers: members with which it starts while slots are missing; default ``numWorkers``.
        elasticWait: seconds to wait for all slots before fewer members start; default 300.
        maxRounds: largest number of rounds of a strategy that trains in rounds; default none. A Param that a fit
            makes no use of, as one with ``AllReduce`` of this and the next, is ignored with a warning.
        timeBudget: seconds after which such a strategy begins no other round; default none.
        events: whether members tell how far they are and what their time goes into: the progress bar, ``runDir/events``
            and the timeline are made of that; default True.
        logLevel: ``"debug"``, ``"info"``, ``"warning"`` (default), ``"error"`` or ``"off"``: members' log lines from
            this level on are shown on the driver, with ``"info"`` what they print as well.

    Raises:
        InvalidInput: a Param has a value that cannot be.
    """

    _kind: ClassVar[Kind] = "estimator"
    _input_kwargs: dict[str, Any]  # what the caller of the constructor gave, as keyword_only leaves it

    @keyword_only
    def __init__(
        self,
        *,
        model: ModelFactory | nn.Module | None = None,
        loss: LossFunction | nn.Module | None = None,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        metrics: Mapping[str, Any] | None = None,
        inputCols: list[str] | None = None,
        featuresCol: str | None = None,
        columns: list[Column] | None = None,
        labelCol: str | list[str] | None = "label",
        weightCol: str | None = None,
        validationCol: str | None = None,
        idCol: str | None = None,
        predictionCol: str | None = None,
        rawPredictionCol: str | None = None,
        probabilityCol: str | None = None,
        thresholds: list[float] | None = None,
        numClasses: int | None = None,
        numWorkers: int | None = None,
        batchSize: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        strategy: Strategy | Algorithm | None = None,
        device: str | None = None,
        precision: str | None = None,
        clipNorm: float | None = None,
        accumulate: int | None = None,
        patience: int | None = None,
        collate: Callable[..., Any] | None = None,
        augment: Callable[..., Any] | None = None,
        hooks: list[Any] | None = None,
        runDir: str | None = None,
        slotWait: float | None = None,
        allowPlaintext: bool | None = None,
        checkpointEvery: int | str | None = None,
        maxRestarts: int | None = None,
        minWorkers: int | None = None,
        elasticWait: float | None = None,
        maxRounds: int | None = None,
        timeBudget: float | None = None,
        events: bool | None = None,
        logLevel: str | None = None,
    ) -> None:
        super().__init__()
        self._setDefault(**DEFAULTS, **self._defaults())
        given = self._input_kwargs.items()
        # None is "not given" and leaves a Param at its default; only the label can be turned off by it.
        self._set(**{name: value for name, value in given if value is not None or name == "labelCol"})
        self.getInputCols()  # which refuses two that disagree

    def _defaults(self) -> dict[str, Any]:
        return {}

    def _fit(self, dataset: DataFrame) -> TorchModel:
        start = time.monotonic()
        columns = self.read_columns()
        run = Run(self.run_directory(dataset, columns))
        fit = Fit(dataset, columns, self.objective(), run, self._configuration())
        hooks, measured = apart(self.getHooks())[1], self.getEvents()
        unit = "Part" if is_algorithm(self.getStrategy()) else "Rank"
        watch = Watch(run, type(self).__name__, fit.configuration, hooks=hooks, events=measured, unit=unit)
        with watching(watch):
            fitted = (fit_rounds if is_algorithm(self.getStrategy()) else fit_gang)(self, fit, watch)
        report = watch.report(fitted.history, fitted.report | {"seconds": time.monotonic() - start})
        model = self.make_model(replace(fitted, report=report), fit.objective.model)
        watch.finish(model)
        return model

    def make_model(self, fitted: Fitted, factory: ModelFactory | nn.Module) -> TorchModel:
        """The model that a fit has brought back, with what it has of this estimator's Params.

        Args:
            fitted: what the fit has brought back.
            factory: what makes the module that was trained.
        """
        model = TorchModel(
            factory=factory.factory if isinstance(factory, WarmStart) else factory,
            weights=fitted.weights,
            kind=self._kind,
            precision=self.getPrecision(),
            history=fitted.history,
            report=fitted.report,
            scalar=fitted.scalar,
            signature=fitted.signature,
        )
        # As with Spark's own: a Param of the estimator, in a map for transform(), is the model's as well.
        return self._copyValues(model._resetUid(self.uid))

    def objective(self) -> Objective:
        """What is minimised, from the Params.

        Raises:
            InvalidInput: a Param is missing or has a value that cannot be.
        """
        for name in ("model", "loss"):
            if not self.isDefined(self.getParam(name)) or self.getOrDefault(name) is None:
                raise InvalidInput(f"{name} is not set; expected it as {type(self).__name__}({name}=...).")
        return Objective(
            self.getModel(),
            self.getLoss(),
            self.getOptimizer(),
            self.getScheduler(),
            self.getMetrics(),
            self.getPrecision(),
            self.getClipNorm(),
        )

    def training(self) -> Training:
        """What a member is to do, from the Params.

        Raises:
            InvalidInput: a Param is missing or has a value that cannot be.
        """
        return Training(
            self.objective(),
            self.getBatchSize(),
            self.getEpochs(),
            self.getSeed(),
            self.getStrategy(),
            accumulate=self.getAccumulate(),
            measured=self.getEvents(),
            patience=self.getPatience(),
            hooks=tuple(apart(self.getHooks())[0]),
            classes=self.classes(),
            collate=self.getCollate(),
            augment=self.getAugment(),
        )

    def read_columns(self) -> Columns:
        """Which DataFrame columns become which tensors, from the Params."""
        weight, validation, identity = self.getWeightCol(), self.getValidationCol(), self.getIdCol()
        floating = "float64" if self.getPrecision() == "fp64" else "float32"
        return Columns(
            inputs=described(self.getInputCols(), self.getColumns()),
            target=self._target(floating),
            weight=None if weight is None else Column(weight, floating),
            validation=None if validation is None else Column(validation, "bool"),
            row_id=None if identity is None else Column(identity, "int64"),
            floating=floating,
        )

    def _target(self, floating: str) -> Column | tuple[Column, ...] | None:
        label = self.getLabelCol()
        if isinstance(label, list):
            return tuple(Column(name, floating) for name in label)
        return None if label is None else Column(label, self._label_dtype(floating))

    def _label_dtype(self, floating: str) -> str | None:
        return None

    def classes(self) -> Classes | None:
        """What the labels are checked for, from the Params; None where they are no class indices."""
        if self.getNumClasses() is not None:
            warnings.warn(
                f"numClasses is for a classifier with one label column; this {type(self).__name__} ignores it.",
                stacklevel=4,
            )
        return None

    def _configuration(self) -> dict[str, Any]:
        return {"class": type(self).__name__} | {
            param.name: plain(self.getOrDefault(param)) for param in self.params if self.isDefined(param)
        }


class TorchEstimator(GangEstimator):
    """Trains any model with any loss; ``predictionCol`` of its model holds the raw output.

    That is a float where the model's output is one number a row, else an array of floats; with a precision of
    ``"fp64"`` doubles. Labels keep their type: integers stay integers, floating-point numbers take the run's precision.
    """


class TorchClassifier(GangEstimator):
    """Trains a classifier: labels are class indices from 0, the default loss is cross-entropy.

    The model's output is one score per class, ``[B, classes]``, or with ``BCEWithLogitsLoss`` one score, ``[B]``
    or ``[B, 1]``. Several label columns are the classes' probabilities. Its model writes ``rawPrediction`` and
    ``probability`` vectors and the ``prediction``, a double.
    """

    _kind: ClassVar[Kind] = "classifier"

    def _defaults(self) -> dict[str, Any]:
        return {"loss": nn.CrossEntropyLoss()}

    def _label_dtype(self, floating: str) -> str | None:
        return floating if isinstance(self.getLoss(), _BINARY_LOSSES) else "int64"

    def classes(self) -> Classes | None:
        """See ``GangEstimator``."""
        if not isinstance(self.getLabelCol(), str):
            return super().classes()
        count = self.getNumClasses()
        if isinstance(self.getLoss(), _BINARY_LOSSES):
            if count not in (None, 2):
                raise InvalidInput(f"numClasses is {count}; expected 2: {self.getLoss()} tells two classes apart.")
            count = 2
        return Classes(count, getattr(self.getLoss(), "ignore_index", None))

    def _target(self, floating: str) -> Column | tuple[Column, ...] | None:
        if isinstance(self.getLoss(), _BINARY_LOSSES):
            _refuse_several(self.getLabelCol(), "classifier with one score")
        return super()._target(floating)


class TorchRegressor(GangEstimator):
    """Trains a regressor: labels are numbers, the default loss is the mean squared error.

    The model's output is ``[B]`` or ``[B, 1]``. Its model writes the ``prediction``, a double.
    """

    _kind: ClassVar[Kind] = "regressor"

    def _defaults(self) -> dict[str, Any]:
        return {"loss": nn.MSELoss()}

    def _label_dtype(self, floating: str) -> str | None:
        return floating

    def _target(self, floating: str) -> Column | tuple[Column, ...] | None:
        _refuse_several(self.getLabelCol(), "regressor")
        return super()._target(floating)


def _refuse_several(label: str | list[str] | None, kind: str) -> None:
    if isinstance(label, list) and len(label) > 1:
        raise InvalidInput(
            f"labelCol is {label}; expected one column: a {kind} predicts one number a row. TorchEstimator takes "
            "several labels and predicts arrays."
        )


__all__ = ["TorchClassifier", "TorchEstimator", "TorchRegressor"]
