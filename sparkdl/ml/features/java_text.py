"""Numbers as Java's ``toString`` writes them, which Spark hashes and compares as labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.ml.features.column import Array


def texts(values: Array) -> list[str]:
    """The text of each value: booleans, integers, float32 and float64 as in Java, strings as they are.

    Java before 19 writes a few numbers with one digit more than needed; this is the form of Java 19 and later.
    """
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if values.dtype.kind == "f":
        return [_floating(value) for value in values]
    return [str(value) for value in values.tolist()]


def _floating(value: Any) -> str:
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, unique=True, trim="0")
    mantissa, _, exponent = np.format_float_scientific(value, unique=True, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"
