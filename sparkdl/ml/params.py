"""The Params that estimators and models share, as pyspark.ml declares them, and what checks their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl.data.columns import Column, listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.formatting import shown

Self = TypeVar("Self", bound=Params)
Output = TypeVar("Output", bound="OutputParams")


def param(name: str, doc: str, converter: Callable[[Any], Any] | None = None) -> Param[Any]:
    """A Param; ``converter`` turns what is given into the value, or refuses it."""
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


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A converter that also takes None, for a Param that can be turned off."""
    return lambda value: None if value is None else convert(value)


def callable_(name: str) -> Callable[[Any], Any]:
    """A converter that refuses what cannot be called."""

    def checked(value: Any) -> Any:
        if not callable(value):
            raise InvalidInput(f"{name} is {value!r}; expected a function, or another object that can be called.")
        return value

    return checked


def _thresholds(value: Any) -> list[float]:
    numbers: list[float] = TypeConverters.toListFloat(value)
    if len(numbers) < 2 or min(numbers) < 0 or numbers.count(0.0) > 1:
        raise InvalidInput(
            f"thresholds is {value!r}; expected a number of at least 0 for each class, and at most one of them 0."
        )
    return numbers


def _columns(value: Any) -> list[Column]:
    if isinstance(value, Column) or not all(isinstance(column, Column) for column in value):
        raise InvalidInput(f"columns is {value!r}; expected a list of sparkdl.data.Column.")
    return list(value)


def described(names: list[str], columns: list[Column]) -> tuple[Column, ...]:
    """The input columns of these names, with what ``columns`` says of them.

    Raises:
        InvalidInput: ``columns`` speaks of a column twice, or of one that is no input.
    """
    said = {column.name: column for column in columns}
    unknown = [name for name in said if name not in names]
    if unknown or len(said) < len(columns):
        raise InvalidInput(
            f"columns describes {listed([column.name for column in columns])}; expected each column once, and only "
            f"input columns, which are {listed(names)}."
        )
    return tuple(said.get(name, Column(name)) for name in names)


class CheckedParams(Params):
    """Params that explain themselves on one line each, whose copies share no lists, and that check None as well."""

    def explainParam(self, param: str | Param[Any]) -> str:
        """Name, doc, default and current value of a Param, on one line."""
        found = self._resolveParam(param)
        maps = {"default": self._defaultParamMap, "current": self._paramMap}
        values = [f"{which}: {shown(values[found])}" for which, values in maps.items() if found in values]
        return f"{found.name}: {found.doc} ({', '.join(values) or 'undefined'})"

    def _set(self: Self, **kwargs: Any) -> Self:
        for name, value in kwargs.items():
            if value is None:  # pyspark asks converters about all other values
                try:
                    self.getParam(name).typeConverter(None)
                except TypeError as error:
                    raise TypeError(f'Invalid param value given for param "{name}". {error}') from None
        return super()._set(**kwargs)

    def _copyValues(self, to: Self, extra: dict[Param[Any], Any] | None = None) -> Self:
        copied = super()._copyValues(to, extra)
        # pyspark copies the values that are set by way of their converters, but hands on the very defaults.
        return copied._setDefault(**{param.name: value for param, value in copied._defaultParamMap.items()})


class PredictionParams(CheckedParams):
    """What a model writes."""

    thresholds = param(
        "thresholds",
        "for each class; the prediction is the class with the largest probability / threshold; None for 1 each",
        optional(_thresholds),
    )
    predictionCol = param(
        "predictionCol", "column of the predicted class or value, or of the raw output", TypeConverters.toString
    )
    rawPredictionCol = param(
        "rawPredictionCol", "column of a classifier's scores, a vector; '' for none", TypeConverters.toString
    )
    probabilityCol = param(
        "probabilityCol", "column of a classifier's probabilities, a vector; '' for none", TypeConverters.toString
    )

    def getThresholds(self) -> list[float] | None:
        """The thresholds of the classes."""
        value: list[float] | None = self.getOrDefault(self.thresholds)
        return None if value is None else list(value)

    def setThresholds(self: Self, value: list[float] | None) -> Self:
        """Set the thresholds of the classes."""
        return self._set(thresholds=value)

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

    def refuse_taken(self, names: Sequence[str], params: Sequence[Param[Any]]) -> None:
        """Refuse output columns that are there already, or twice among them.

        Args:
            names: the columns of the data.
            params: those whose values name output columns.

        Raises:
            InvalidInput: a column is there already.
        """
        taken = list(names)
        for param in params:
            name = self.getOrDefault(param)
            if name and name in taken:
                raise InvalidInput(f"there is a column {name!r} already; drop it, or set {param.name} to another name.")
            taken.append(name)


class OutputParams(PredictionParams):
    """What a model reads and writes; shared by estimators and models."""

    inputCols = param(
        "inputCols", "input columns; each is one argument of forward(), in order", TypeConverters.toListString
    )
    featuresCol = param(
        "featuresCol", "the only input column: short for inputCols=[featuresCol]", TypeConverters.toString
    )
    columns = param(
        "columns", "what the schema does not tell of an input column: a list of sparkdl.data.Column", _columns
    )
    collate = param(
        "collate",
        "collate(inputs, target) -> (inputs, target), of every batch's tensors; None for none",
        optional(callable_("collate")),
    )

    def _copyValues(self, to: Self, extra: dict[Param[Any], Any] | None = None) -> Self:
        copied = super()._copyValues(to, extra)
        if extra and isinstance(copied, OutputParams):  # one of the two stands for both, and the map's is the newer
            given = [param for param in (self.inputCols, self.featuresCol) if param in extra]
            if given == [self.inputCols]:
                copied.clear(copied.featuresCol)
            elif given == [self.featuresCol]:
                copied.clear(copied.inputCols)
        return copied

    def getInputCols(self) -> list[str]:
        """Input columns, in the order of forward()'s arguments.

        Raises:
            InvalidInput: inputCols and featuresCol are both set, and name different columns.
        """
        names, only = list(self.getOrDefault(self.inputCols)), self.getFeaturesCol()
        if not self.isSet(self.featuresCol):
            return names
        if self.isSet(self.inputCols) and names != [only]:
            raise InvalidInput(f"featuresCol is {only!r} and inputCols is {names}; expected only one of them.")
        return [only]

    def setInputCols(self: Output, value: list[str]) -> Output:
        """Set the input columns."""
        self.clear(self.featuresCol)
        return self._set(inputCols=value)

    def getFeaturesCol(self) -> str:
        """The only input column."""
        return str(self.getOrDefault(self.featuresCol))

    def setFeaturesCol(self: Output, value: str) -> Output:
        """Set the only input column."""
        self.clear(self.inputCols)
        return self._set(featuresCol=value)

    def getColumns(self) -> list[Column]:
        """What is said of input columns beside the schema."""
        return list(self.getOrDefault(self.columns))

    def setColumns(self: Self, value: list[Column]) -> Self:
        """Say of input columns what the schema does not tell."""
        return self._set(columns=value)

    def getCollate(self) -> Any:
        """What every batch goes through."""
        return self.getOrDefault(self.collate)

    def setCollate(self: Self, value: Any) -> Self:
        """Set what every batch goes through."""
        return self._set(collate=value)
