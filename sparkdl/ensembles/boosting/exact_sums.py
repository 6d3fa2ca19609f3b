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
    """Aggregate ``sum_i q_i`` of doubles up to ``2^exponent``: an integer as a decimal; null without values."""
    # A direct cast from double to decimal would convert through the shortest text of the double.
    integers = F.rint(values * F.lit(math.ldexp(1.0, BITS - exponent))).cast("bigint")
    return F.sum(integers.cast("decimal(20,0)"))


def as_float(total: object, exponent: int = 0) -> float:
    """The double nearest to a collected sum of ``q_i``."""
    integer = int(total or 0)  # type: ignore[call-overload]
    return float(Fraction(integer) * Fraction(2) ** (exponent - BITS))


def exact_sums(frame: DataFrame, values: Mapping[str, Column]) -> dict[str, float]:
    """Sums of several columns of doubles, by name; Spark computes the rows twice.

    A sum ignores nulls. It is ``nan`` if a value is not finite, 0 without values.
    """
    peaks = frame.agg(*(F.max(F.abs(value)).alias(name) for name, value in values.items())).collect()[0].asDict()
    exponents = {
        name: max(math.frexp(peak or 0.0)[1], _LEAST) for name, peak in peaks.items() if math.isfinite(peak or 0.0)
    }
    sums = dict.fromkeys(values, math.nan)
    if exponents:
        totals = frame.agg(*(fixed_sum(values[name], exponents[name]).alias(name) for name in exponents)).collect()[0]
        sums |= {name: as_float(totals[name], exponent) for name, exponent in exponents.items()}
    return sums
