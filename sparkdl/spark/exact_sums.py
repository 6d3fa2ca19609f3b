"""Exact sums of doubles: bit-identical for any partitioning and order of arrival.

Spark adds doubles in order of arrival, so the last bits of a sum differ between jobs. Here, numbers of similar size are
a group. In the unit of its group, each number is an integer, and integers add without rounding:

    e_i = 8 floor(log2 |x_i| / 8)                  the group of x_i
    q_i = x_i 2^(54 - e_i),   |q_i| < 2^63         an integer, since a double has 53 bits
    sum = sum_e 2^(e - 54) sum_(i: e_i = e) q_i
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_BITS, _WIDTH = 54, 8


def whole_sum(values: Column) -> Column:
    """Aggregate the sum of doubles below 2^63, rounded to integers: a decimal; null without values."""
    # A direct cast from double to decimal would convert through the shortest text of the double.
    return F.sum(F.rint(values).cast("bigint").cast("decimal(20,0)"))


def sums_by(
    frame: DataFrame, value: Column, most: int | None = None, **keys: Column
) -> dict[tuple[Any, ...], tuple[Fraction, int]]:
    """The sums of the finite doubles of a column, and the numbers of others, by ``keys``, from one pass over the rows.

    ``most`` limits the number of sums; default: no limit.
    """
    finite = F.abs(value) < math.inf  # Spark orders NaN above infinity
    exponent = F.when(finite, F.floor(F.log2(F.abs(value)) / _WIDTH) * _WIDTH)  # null for 0
    # Twice the root, since the factor of the smallest doubles is no double.
    root = F.pow(F.lit(2.0), (_BITS - exponent) / 2)
    columns = [column.alias(name) for name, column in keys.items()]
    groups = frame.groupBy(*columns, exponent.alias("exponent")).agg(
        whole_sum(value * root * root).alias("units"), F.count_if(~finite).alias("others")
    )
    group = F.collect_list(F.struct(F.coalesce("exponent", F.lit(0)), F.coalesce("units", F.lit(0))))
    rows = groups.groupBy(*keys).agg(group, F.sum("others"))
    sums = dict[tuple[Any, ...], tuple[Fraction, int]]()
    for *key, parts, others in (rows if most is None else rows.limit(most)).collect():
        total = sum((int(units) * Fraction(2) ** (exponent - _BITS) for exponent, units in parts), Fraction())
        sums[tuple(key)] = total, others
    return sums


def exact_sums(frame: DataFrame, values: Mapping[str, Column]) -> dict[str, float]:
    """The doubles nearest to the sums of several columns of doubles, by name; Spark computes the rows once.

    A sum ignores nulls. It is ``nan`` if a value is not finite, 0 without values.
    """
    pairs = [F.struct(F.lit(name).alias("name"), value.alias("value")) for name, value in values.items()]
    sums = sums_by(frame.select(F.inline(F.array(*pairs))), F.col("value"), name=F.col("name"))
    return dict.fromkeys(values, 0.0) | {
        name: math.nan if others else float(total) for (name,), (total, others) in sums.items()
    }
