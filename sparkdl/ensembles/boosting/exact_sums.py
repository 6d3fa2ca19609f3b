"""Sums over rows that are the same whatever the partitions are, and in whatever order these arrive.

Spark adds doubles as they come, and so the last bits of a sum differ from one job to the next. Here each number is
first brought to a fixed point, and integers are added without any rounding:

    q_i = rint(x_i 2^(53 - e)),    2^e > max_i |x_i|            |q_i| <= 2^53
    sum = 2^(e - 53) sum_i q_i

which is off by at most 2^(e - 54) a row, and by nothing for numbers within a factor 2^52 of the largest whose last bits
are zero, such as whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

BITS = 53
_LEAST = -960  # the smallest exponent: 2^(53 - e) must not overflow


def fixed_sum(values: Column, exponent: int = 0) -> Column:
    """The sum of ``q_i``, an aggregate: a whole number as a decimal; null where there is no value.

    Args:
        values: doubles of at most ``2^exponent``, either sign; null ones do not count.
        exponent: ``e``.
    """
    # A cast from double straight to decimal goes by way of the shortest text of the double.
    whole = F.rint(values * F.lit(math.ldexp(1.0, BITS - exponent))).cast("bigint")
    return F.sum(whole.cast("decimal(20,0)"))


def as_float(total: object, exponent: int = 0) -> float:
    """A sum of ``q_i``, as Spark has collected it, as the number nearest to it."""
    whole = int(total or 0)  # type: ignore[call-overload]
    return float(Fraction(whole) * Fraction(2) ** (exponent - BITS))


def exact_sums(frame: DataFrame, values: Mapping[str, Column]) -> dict[str, float]:
    """The sums of several columns; the rows are computed twice.

    Args:
        frame: the rows.
        values: doubles by name; null ones do not count.

    Returns:
        The sums by name; of a column with a value that is not finite ``nan``, of one without any 0.
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
