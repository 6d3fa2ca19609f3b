"""The Params of training, beside those that estimators share with models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.ml.param import TypeConverters

from sparkdl.errors import InvalidInput
from sparkdl.ml.params import OutputParams, Self, at_least, callable_, one_of, optional, param
from sparkdl.ml.run_params import RunParams
from sparkdl.rounds import is_algorithm


def _above_zero(value: Any) -> float:
    number: float = TypeConverters.toFloat(value)
    if not number > 0:
        raise InvalidInput(f"clipNorm is {value!r}; expected a number above 0, or None.")
    return number


def _labels(value: Any) -> str | list[str]:
    if isinstance(value, str):
        return value
    names: list[str] = TypeConverters.toListString(value)
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"labelCol is {value!r}; expected the name of a column, or names that differ.")
    return names


def _metrics(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(f"metrics is {value!r}; expected a dict of names and torchmetrics metrics.")
    return dict(value)


def _strategy(value: Any) -> Any:
    if isinstance(value, type) or not (callable(getattr(value, "attach", None)) or is_algorithm(value)):
        raise InvalidInput(
            f"strategy is {value!r}; expected how replicas agree, such as AllReduce(), or an algorithm of rounds, such "
            "as ParallelSGD(): a dataclass with takes_steps, init, map, reduce, apply, done and row."
        )
    return value


def _hooks(value: Any) -> list[Any]:
    hooks: list[Any] = TypeConverters.toList(value)
    return list(hooks)  # what is a list already, toList gives back as it is


class TrainingParams(OutputParams, RunParams):
    """How an estimator trains."""

    model = param("model", "zero-argument model factory, or a module whose weights are the start")
    loss = param("loss", "nn loss module, or loss(output, target) with a loss per sample or a scalar batch mean")
    optimizer = param("optimizer", "called with the parameters; returns a torch optimizer", callable_("optimizer"))
    scheduler = param(
        "scheduler",
        "called with the optimizer; stepped after every optimizer step; None for none",
        optional(callable_("scheduler")),
    )
    metrics = param("metrics", "name -> torchmetrics metric; over validation rows where there are any", _metrics)
    strategy = param(
        "strategy", "how replicas agree, for example AllReduce(), or rounds, for example ParallelSGD()", _strategy
    )
    labelCol = param(
        "labelCol",
        "label column, or several, side by side; None where the target is the inputs",
        optional(_labels),
    )
    weightCol = param(
        "weightCol",
        "column of the rows' weights in the loss, at least 0; None for 1 each",
        optional(TypeConverters.toString),
    )
    validationCol = param(
        "validationCol",
        "boolean column; true keeps a row out of training; None for none",
        optional(TypeConverters.toString),
    )
    idCol = param(
        "idCol",
        "integer column that fixes the order of rows, unique; None numbers them",
        optional(TypeConverters.toString),
    )
    numWorkers = param(
        "numWorkers", "members of the gang, or parts of rounds", at_least(1, TypeConverters.toInt, "numWorkers")
    )
    batchSize = param("batchSize", "rows of the GLOBAL batch", at_least(1, TypeConverters.toInt, "batchSize"))
    epochs = param("epochs", "passes over the data", at_least(1, TypeConverters.toInt, "epochs"))
    seed = param("seed", "seed of weights, permutations and dropout", TypeConverters.toInt)
    device = param("device", "cpu or cuda", one_of(("cpu", "cuda"), "device"))
    precision = param("precision", "fp32, bf16 (autocast) or fp64", one_of(("fp32", "bf16", "fp64"), "precision"))
    clipNorm = param("clipNorm", "largest L2 norm of the global gradient; None for no clipping", optional(_above_zero))
    accumulate = param(
        "accumulate", "pieces a member cuts its rows of a step into", at_least(1, TypeConverters.toInt, "accumulate")
    )
    numClasses = param(
        "numClasses",
        "classes of a classifier, whose labels are checked against it; None takes what the model gives",
        optional(at_least(2, TypeConverters.toInt, "numClasses")),
    )
    patience = param(
        "patience",
        "epochs without a smaller valid_loss, or loss without validation rows, after which training ends with the "
        "best epoch's weights; None trains all epochs",
        optional(at_least(1, TypeConverters.toInt, "patience")),
    )
    augment = param(
        "augment",
        "augment(inputs, target, generator) -> (inputs, target), of training batches; None for none",
        optional(callable_("augment")),
    )
    hooks = param(
        "hooks",
        "objects with any of on_start, on_step, on_epoch, on_end(run), called on rank 0, with every_rank on all",
        _hooks,
    )
    runDir = param(
        "runDir", "the run's directory, a path or URI; None keeps nothing", optional(TypeConverters.toString)
    )
    slotWait = param("slotWait", "seconds to wait for task slots", at_least(0, TypeConverters.toFloat, "slotWait"))
    allowPlaintext = param(
        "allowPlaintext", "run although the gang's traffic is plain and Spark's is encrypted", TypeConverters.toBoolean
    )

    def setParams(self: Self, **given: Any) -> Self:
        """Set several Params, each as its own setter does; None turns off what can be turned off.

        Args:
            **given: the constructor's arguments.

        Raises:
            TypeError: there is no such Param, or it takes no such value.
            InvalidInput: a Param has a value that cannot be.
        """
        for name in given:
            if not self.hasParam(name):
                raise TypeError(f"{type(self).__name__}.setParams() got an unexpected keyword argument {name!r}")
        for name, value in given.items():
            getattr(self, f"set{name[0].upper()}{name[1:]}")(value)
        return self

    def getModel(self) -> Any:
        """The model factory or module."""
        return self.getOrDefault(self.model)

    def setModel(self: Self, value: Any) -> Self:
        """Set the model factory or module."""
        return self._set(model=value)

    def getLoss(self) -> Any:
        """The loss."""
        return self.getOrDefault(self.loss)

    def setLoss(self: Self, value: Any) -> Self:
        """Set the loss."""
        return self._set(loss=value)

    def getOptimizer(self) -> Any:
        """The optimizer factory."""
        return self.getOrDefault(self.optimizer)

    def setOptimizer(self: Self, value: Any) -> Self:
        """Set the optimizer factory."""
        return self._set(optimizer=value)

    def getScheduler(self) -> Any:
        """The scheduler factory."""
        return self.getOrDefault(self.scheduler)

    def setScheduler(self: Self, value: Any) -> Self:
        """Set the scheduler factory."""
        return self._set(scheduler=value)

    def getMetrics(self) -> dict[str, Any]:
        """The metrics by name."""
        return dict(self.getOrDefault(self.metrics))

    def setMetrics(self: Self, value: Any) -> Self:
        """Set the metrics by name."""
        return self._set(metrics=value)

    def getStrategy(self) -> Any:
        """The strategy."""
        return self.getOrDefault(self.strategy)

    def setStrategy(self: Self, value: Any) -> Self:
        """Set the strategy."""
        return self._set(strategy=value)

    def getLabelCol(self) -> str | list[str] | None:
        """The label column, or the list of them."""
        value: str | list[str] | None = self.getOrDefault(self.labelCol)
        return list(value) if isinstance(value, list) else value

    def setLabelCol(self: Self, value: str | list[str] | None) -> Self:
        """Set the label column, or several."""
        return self._set(labelCol=value)

    def getWeightCol(self) -> str | None:
        """The weight column."""
        value: str | None = self.getOrDefault(self.weightCol)
        return value

    def setWeightCol(self: Self, value: str | None) -> Self:
        """Set the weight column."""
        return self._set(weightCol=value)

    def getValidationCol(self) -> str | None:
        """The validation column."""
        value: str | None = self.getOrDefault(self.validationCol)
        return value

    def setValidationCol(self: Self, value: str | None) -> Self:
        """Set the validation column."""
        return self._set(validationCol=value)

    def getIdCol(self) -> str | None:
        """The row id column."""
        value: str | None = self.getOrDefault(self.idCol)
        return value

    def setIdCol(self: Self, value: str | None) -> Self:
        """Set the row id column."""
        return self._set(idCol=value)

    def getNumWorkers(self) -> int:
        """The number of members."""
        return int(self.getOrDefault(self.numWorkers))

    def setNumWorkers(self: Self, value: int) -> Self:
        """Set the number of members."""
        return self._set(numWorkers=value)

    def getBatchSize(self) -> int:
        """The rows of the global batch."""
        return int(self.getOrDefault(self.batchSize))

    def setBatchSize(self: Self, value: int) -> Self:
        """Set the rows of the global batch."""
        return self._set(batchSize=value)

    def getEpochs(self) -> int:
        """The number of epochs."""
        return int(self.getOrDefault(self.epochs))

    def setEpochs(self: Self, value: int) -> Self:
        """Set the number of epochs."""
        return self._set(epochs=value)

    def getSeed(self) -> int:
        """The seed."""
        return int(self.getOrDefault(self.seed))

    def setSeed(self: Self, value: int) -> Self:
        """Set the seed."""
        return self._set(seed=value)

    def getDevice(self) -> str:
        """The device."""
        return str(self.getOrDefault(self.device))

    def setDevice(self: Self, value: str) -> Self:
        """Set the device."""
        return self._set(device=value)

    def getPrecision(self) -> str:
        """The precision."""
        return str(self.getOrDefault(self.precision))

    def setPrecision(self: Self, value: str) -> Self:
        """Set the precision."""
        return self._set(precision=value)

    def getClipNorm(self) -> float | None:
        """The largest gradient norm."""
        value: float | None = self.getOrDefault(self.clipNorm)
        return value

    def setClipNorm(self: Self, value: float | None) -> Self:
        """Set the largest gradient norm."""
        return self._set(clipNorm=value)

    def getAccumulate(self) -> int:
        """The number of accumulated pieces."""
        return int(self.getOrDefault(self.accumulate))

    def setAccumulate(self: Self, value: int) -> Self:
        """Set the number of accumulated pieces."""
        return self._set(accumulate=value)

    def getRunDir(self) -> str | None:
        """The run's directory."""
        value: str | None = self.getOrDefault(self.runDir)
        return value

    def setRunDir(self: Self, value: str | None) -> Self:
        """Set the run's directory."""
        return self._set(runDir=value)

    def getSlotWait(self) -> float:
        """The seconds to wait for slots."""
        return float(self.getOrDefault(self.slotWait))

    def setSlotWait(self: Self, value: float) -> Self:
        """Set the seconds to wait for slots."""
        return self._set(slotWait=value)

    def getAllowPlaintext(self) -> bool:
        """The permission to send in plain text."""
        return bool(self.getOrDefault(self.allowPlaintext))

    def setAllowPlaintext(self: Self, value: bool) -> Self:
        """Set the permission to send in plain text."""
        return self._set(allowPlaintext=value)

    def getNumClasses(self) -> int | None:
        """The number of classes."""
        value: int | None = self.getOrDefault(self.numClasses)
        return value

    def setNumClasses(self: Self, value: int | None) -> Self:
        """Set the number of classes."""
        return self._set(numClasses=value)

    def getPatience(self) -> int | None:
        """The epochs without improvement after which training ends."""
        value: int | None = self.getOrDefault(self.patience)
        return value

    def setPatience(self: Self, value: int | None) -> Self:
        """Set the epochs without improvement after which training ends."""
        return self._set(patience=value)

    def getAugment(self) -> Any:
        """What training batches go through."""
        return self.getOrDefault(self.augment)

    def setAugment(self: Self, value: Any) -> Self:
        """Set what training batches go through."""
        return self._set(augment=value)

    def getHooks(self) -> list[Any]:
        """The hooks."""
        return list(self.getOrDefault(self.hooks))

    def setHooks(self: Self, value: list[Any]) -> Self:
        """Set the hooks."""
        return self._set(hooks=value)
