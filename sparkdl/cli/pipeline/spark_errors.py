"""Distinguishes Spark's errors about bad rows from its other errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import IllegalArgumentException

from sparkdl.cli.exit_codes import BadInput
from sparkdl.spark.session.errors import SPARK_ERRORS, causes

# Classes of SQLSTATE: 22 a value cannot be cast, 39 a stage's function rejects a value (38 is an error of a Python
# function), 42 a column or file is missing, KD a file does not have its format.
_BAD_ROWS = ("22", "39", "42", "KD")


@contextmanager
def reading_rows() -> Iterator[None]:
    """Convert Spark's errors about the rows that a block reads to BadInput.

    Raises:
        BadInput: rows are missing, lack a column, cannot be read, or have types or values that an expression or a stage
            rejects.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        # Stages of pyspark.ml raise it for a column's type, without an SQLSTATE.
        plain = isinstance(error, IllegalArgumentException)
        reasons = [reason for state, reason in causes(error) if plain or state.startswith(_BAD_ROWS)]
        if not reasons:
            raise
        raise BadInput(f"the rows cannot be used: {' '.join(reasons)}") from error
