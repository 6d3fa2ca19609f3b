"""Whose fault an error of Spark is: whether rows are not what the job needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ending import BadInput
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import IllegalArgumentException, PySparkException

# Classes of SQLSTATE: values that cannot be what they should; values that a stage's function refuses, where what one of
# Python raises is 38; columns and files that are not there; files that are not of their format.
_INPUT = ("22", "39", "42", "KD")


@contextmanager
def reading_rows() -> Iterator[None]:
    """A block that reads rows.

    Raises:
        BadInput: rows are not there, lack a column, cannot be read, or have types or values that an expression or a
            stage does not take.
    """
    try:
        yield
    except PySparkException as error:
        # Stages of pyspark.ml refuse a column's type by an IllegalArgumentException without a state.
        if isinstance(error, IllegalArgumentException) or (error.getSqlState() or "").startswith(_INPUT):
            raise BadInput(f"the rows cannot be used: {_first_line(str(error))}") from error
        raise
    except Py4JJavaError as error:  # Spark's general exception, which pyspark does not translate
        told = _blamed(error.java_exception)
        if told is not None:
            raise BadInput(f"the rows cannot be used: {told}") from error
        raise


def _blamed(error: object) -> str | None:
    """What an exception of Java or its causes say of the input; None if they say nothing."""
    told = None
    while error is not None:
        try:
            state = error.getSqlState()  # type: ignore[attr-defined]
        except Py4JError:  # none of Spark's
            state = None
        if (state or "").startswith(_INPUT):
            said = _first_line(str(error.getMessage()))  # type: ignore[attr-defined]
            told = said if told is None else f"{told} {said}"
        error = error.getCause()  # type: ignore[attr-defined]
    return told


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
