"""The Params of estimators and models, as pyspark.ml declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl.errors import InvalidInput

Self = TypeVar("Self", bound=Params)


def _param(name: str, doc: str, converter: Callable[[Any], Any] | None = None) -> Param[Any]:
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def at_least(least: float, convert: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """A converter that refuses numbers below ``least``."""

    def checked(value: Any) -> Any:
        number = convert(value)
        if number < least:
            raise InvalidInput(f"{name} is {value!r}; expected at least {least:g}.")
        return number

    return checked


def one_of(choices: tuple[str, ...], name: str) -> Callable[[Any], Any]:
    """A converter that refuses everything but ``choices``."""

    def checked(value: Any) -> Any:
        if value not in choices:
            raise InvalidInput(f"{name} is {value!r}; expected one of {', '.join(choices)}.")
        return value

    return checked


class OutputParams(Params):
    """What a model reads and writes; shared by estimators and models."""

    inputCols = _param(
        "inputCols", "input columns; each is one argument of forward(), in order", TypeConverters.toListString
    )
    predictionCol = _param(
        "predictionCol", "column of the predicted class or value, or of the raw output", TypeConverters.toString
    )
    rawPredictionCol = _param(
        "rawPredictionCol", "column of a classifier's scores, a vector; '' for none", TypeConverters.toString
    )
    probabilityCol = _param(
        "probabilityCol", "column of a classifier's probabilities, a vector; '' for none", TypeConverters.toString
    )

    def getInputCols(self) -> list[str]:
        """Input columns, in the order of forward()'s arguments."""
        return list(self.getOrDefault(self.inputCols))

    def setInputCols(self: Self, value: list[str]) -> Self:
        """Set the input columns."""
        return self._set(inputCols=value)

    def getPredictionCol(self) -> str:
        """Column of the prediction."""
        return str(self.getOrDefault(self.predictionCol))

    def setPredictionCol(self: Self, value: str) -> Self:
        """Set the column of the prediction."""
        return self._set(predictionCol=value)

    def getRawPredictionCol(self) -> str:
        """Column of a classifier's scores."""
        return str(self.getOrDefault(self.rawPredictionCol))

    def setRawPredictionCol(self: Self, value: str) -> Self:
        """Set the column of a classifier's scores."""
        return self._set(rawPredictionCol=value)

    def getProbabilityCol(self) -> str:
        """Column of a classifier's probabilities."""
        return str(self.getOrDefault(self.probabilityCol))

    def setProbabilityCol(self: Self, value: str) -> Self:
        """Set the column of a classifier's probabilities."""
        return self._set(probabilityCol=value)


class TrainingParams(OutputParams):
    """How an estimator trains."""

    model = _param("model", "zero-argument model factory, or a module whose weights are the start")
    loss = _param("loss", "nn loss module, or loss(output, target) with a loss per sample or a scalar batch mean")
    optimizer = _param("optimizer", "called with the parameters; returns a torch optimizer")
    scheduler = _param("scheduler", "called with the optimizer; stepped after every optimizer step; None for none")
    metrics = _param("metrics", "name -> torchmetrics metric; over validation rows where there are any")
    strategy = _param("strategy", "how replicas agree, for example AllReduce()")
    labelCol = _param("labelCol", "label column; None where the target is the inputs")
    weightCol = _param("weightCol", "column of the rows' weights in the loss, at least 0; None for 1 each")
    validationCol = _param("validationCol", "boolean column; true keeps a row out of training; None for none")
    idCol = _param("idCol", "integer column that fixes the order of rows, unique; None numbers them")
    numWorkers = _param("numWorkers", "members of the gang", at_least(1, TypeConverters.toInt, "numWorkers"))
    batchSize = _param("batchSize", "rows of the GLOBAL batch", at_least(1, TypeConverters.toInt, "batchSize"))
    epochs = _param("epochs", "passes over the data", at_least(1, TypeConverters.toInt, "epochs"))
    seed = _param("seed", "seed of weights, permutations and dropout", TypeConverters.toInt)
    device = _param("device", "cpu or cuda", one_of(("cpu", "cuda"), "device"))
    precision = _param("precision", "fp32, bf16 (autocast) or fp64", one_of(("fp32", "bf16", "fp64"), "precision"))
    clipNorm = _param("clipNorm", "largest L2 norm of the global gradient; None for no clipping")
    accumulate = _param(
        "accumulate", "pieces a member cuts its rows of a step into", at_least(1, TypeConverters.toInt, "accumulate")
    )
    runDir = _param("runDir", "the run's directory, a path or URI; None keeps nothing")
    slotWait = _param("slotWait", "seconds to wait for task slots", at_least(0, TypeConverters.toFloat, "slotWait"))
    allowPlaintext = _param(
        "allowPlaintext", "run although the gang's traffic is plain and Spark's is encrypted", TypeConverters.toBoolean
    )

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

    def getMetrics(self) -> Any:
        """The metrics by name."""
        return self.getOrDefault(self.metrics)

    def setMetrics(self: Self, value: Any) -> Self:
        """Set the metrics by name."""
        return self._set(metrics=value)

    def getStrategy(self) -> Any:
        """The strategy."""
        return self.getOrDefault(self.strategy)

    def setStrategy(self: Self, value: Any) -> Self:
        """Set the strategy."""
        return self._set(strategy=value)

    def getLabelCol(self) -> str | None:
        """The label column."""
        value: str | None = self.getOrDefault(self.labelCol)
        return value

    def setLabelCol(self: Self, value: str | None) -> Self:
        """Set the label column."""
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
