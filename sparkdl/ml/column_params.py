"""Params that name input and output columns."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params
from pyspark.sql import DataFrame
from torch import nn

from sparkdl.data.columns import InputColumn, described, listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.param_declaration import ValidatedParams
from sparkdl.spark.columns import same_names

Self = TypeVar("Self", bound="InputColumnParams")
Copied = TypeVar("Copied", bound=Params)


def check_arguments(model: Any, columns: Sequence[InputColumn], *, assembled: bool = False) -> None:
    """Check that ``forward`` takes one argument for each input column, or one for all if they are ``assembled``.

    A ragged column is two arguments.

    The signature is known of a module and of a class, also in a ``partial`` or a ``WarmStart``; other factories are not
    called.

    It warns if a column gets the name of another argument.

    Raises:
        InvalidInput: ``forward`` takes fewer arguments, or needs more.
    """
    while isinstance(model, partial):
        model = model.func
    while not isinstance(model, nn.Module | type) and hasattr(model, "factory"):
        model = model.factory
    if isinstance(model, type) and issubclass(model, nn.Module):
        bound, name = [model], model.__name__
    elif isinstance(model, nn.Module):
        bound, name = [], type(model).__name__
    else:
        return
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # of compiled code
        return
    names = [column.name for column in columns]
    values = [part for column in columns for part in [column.name, ""][: 1 + (column.ragged is not None)]]
    values = values[:1] if assembled else values
    if not _takes(signature, [*bound, *values]):
        one = not assembled and _takes(signature, [*bound, "all columns"])
        inputs = "all columns as one input" if assembled else f"the inputs {listed(names)}"
        raise InvalidInput(
            f"{name}.forward{signature} gets {inputs}; expected one input column for each argument, in order"
            f"{', or assembleInputs=True for all columns as one argument' * one}."
        )
    order = [*map(str.lower, signature.parameters)][len(bound) :]
    if not assembled and any(one.lower() in order[:place] + order[place + 1 :] for place, one in enumerate(values)):
        advice = "by place, not by name; set inputCols in the order of the arguments."
        warnings.warn(f"{name}.forward{signature} gets {listed(names)} {advice}", stacklevel=5)


def _takes(signature: inspect.Signature, arguments: list[Any]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


class OutputColumnParams(ValidatedParams):
    """Params that name output columns."""

    def check_free(self, dataset: DataFrame, params: Sequence[Param[Any]]) -> None:
        """Check that the output columns that ``params`` name are distinct and no columns of the data."""
        taken = [*dataset.columns]
        for param in params:
            name = self.getOrDefault(param)
            if name and (existing := same_names(dataset, name, taken)):
                raise InvalidInput(
                    f"there is a column {existing[0]!r} already; drop it, or set {param.name} to another name."
                )
            taken.append(name)


class InputColumnParams(ValidatedParams):
    """The two Params for input columns; the one that was set last is used."""

    inputCols: Param[list[str]]
    featuresCol: Param[str]
    labelCol: Param[str | list[str] | None]
    columnSpecs: Param[list[InputColumn]]

    def described_inputs(self) -> tuple[InputColumn, ...]:
        """The input columns, with their descriptions in ``columnSpecs``.

        Raises:
            InvalidInput: ``columnSpecs`` describes a column twice, or one that is no input and not the label.
        """
        label = self.getOrDefault(self.labelCol)
        return described(self.getInputCols(), self.getOrDefault(self.columnSpecs), label)

    def described_label(self, name: str, dtype: str | None) -> InputColumn:
        """The label column, of this dtype, with the shape or the decode function of its description.

        Raises:
            InvalidInput: the description has another dtype, or is ragged.
        """
        specs = [] if name in self.getInputCols() else self.getOrDefault(self.columnSpecs)
        spec = next((column for column in specs if column.name == name), InputColumn(name))
        if spec.ragged is not None:
            raise InvalidInput(
                f"label column {name!r} is ragged; expected one length, since only inputs can be ragged."
            )
        if None not in (dtype, spec.dtype) and spec.dtype != dtype:
            raise InvalidInput(
                f"columnSpecs describes label column {name!r} with dtype={spec.dtype!r}; expected none, or {dtype!r}."
            )
        return replace(spec, dtype=dtype or spec.dtype)

    def _copyValues(self, to: Copied, extra: dict[Param[Any], Any] | None = None) -> Copied:
        copied = super()._copyValues(to, extra)
        if extra and isinstance(copied, InputColumnParams):  # only one of the two may be set, and the map is newer
            for newer, older in ((self.inputCols, copied.featuresCol), (self.featuresCol, copied.inputCols)):
                if newer in extra and self.getParam(older.name) not in extra:
                    copied.clear(older)
        return copied

    def getInputCols(self) -> list[str]:
        """The input columns, in the order of the arguments of ``forward()``.

        Raises:
            InvalidInput: inputCols and featuresCol are both set, and name different columns.
        """
        names, name = self.getOrDefault(self.inputCols), self.getOrDefault(self.featuresCol)
        if not self.isSet(self.featuresCol):
            return [*names]
        if self.isSet(self.inputCols) and names != [name]:
            raise InvalidInput(f"featuresCol is {name!r} and inputCols is {names}; expected only one of them.")
        return [name]

    def setInputCols(self: Self, value: list[str]) -> Self:
        """Set the input columns, in the order of the arguments of ``forward()``."""
        self.clear(self.featuresCol)
        return self._set(inputCols=value)

    def setFeaturesCol(self: Self, value: str) -> Self:
        """Set the only input column."""
        self.clear(self.inputCols)
        return self._set(featuresCol=value)
