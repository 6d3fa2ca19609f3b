"""Row sums in fixed-point arithmetic: bit-identical for any partitioning and order of arrival.

Spark adds doubles in order of arrival, so the last bits of a sum differ between jobs. Here, each number becomes a
fixed-point integer, and integers add without rounding:

    q_i = rint(x_i 2^(53 - e)),    2^e > max_i |x_i|            |q_i| <= 2^53
    sum = 2^(e - 53) sum_i q_i

The error is at most 2^(e - 54) per row. It is 0 for numbers within a factor 2^52 of the largest whose last bits are
zero, such as whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

BITS = 53
_LEAST = -960  # smallest exponent: 2^(53 - e) must not overflow


def fixed_sum(values: Column, exponent: int = 0) -> Column:
    """Aggregate ``sum_i q_i``: an integer as a decimal; null without values.

    Args:
        values: doubles up to ``2^exponent`` in magnitude; nulls are ignored.
        exponent: ``e``.
    """
    # A direct cast from double to decimal would convert through the shortest text of the double.
    whole = F.rint(values * F.lit(math.ldexp(1.0, BITS - exponent))).cast("bigint")
    return F.sum(whole.cast("decimal(20,0)"))


def as_float(total: object, exponent: int = 0) -> float:
    """The double nearest to a collected sum of ``q_i``."""
    whole = int(total or 0)  # type: ignore[call-overload]
    return float(Fraction(whole) * Fraction(2) ** (exponent - BITS))


def exact_sums(frame: DataFrame, values: Mapping[str, Column]) -> dict[str, float]:
    """Sum several columns; Spark computes the rows twice.

    Args:
        frame: the rows.
        values: doubles by name; nulls are ignored.

    Returns:
        The sums by name; ``nan`` if a column has a value that is not finite, 0 if it has no values.
    """
    peaks = frame.agg(*(F.max(F.abs(value)).alias(name) for name, value in values.items())).collect()[0].asDict()
    exponents = {
        name: max(math.frexp(peak or 0.0)[1], _LEAST) for name, peak in peaks.items() if math.isfinite(peak or 0.0)
    }
    found = dict.fromkeys(values, math.nan)
    if exponents:
        sums = [fixed_sum(values[name], exponent).alias(name) for name, exponent in exponents.items()]
        totals = frame.agg(*sums).collect()[0].asDict()
        found |= {name: as_float(totals[name], exponent) for name, exponent in exponents.items()}
    return found
