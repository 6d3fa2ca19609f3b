"""Exact sums of doubles of any size."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from pyspark.sql import functions as F

from sparkdl.spark.exact_sums import exact_sums, sums_by
from tests.sessions import frame


def test_sums_are_exact_in_any_partitions(spark):
    random = np.random.default_rng(1)
    powers = np.array([math.ldexp(2 - 2.0**-52, exponent) for exponent in range(-1074, 1023, 7)])
    values = np.r_[powers, -powers[::3], random.normal(size=300) * 10.0 ** random.integers(-320, 300, 300), -0.0]
    total = sum(map(Fraction, values.tolist()))
    missing = {"nan": math.nan, "inf": -math.inf, "none": None}
    columns = {"v": F.col("v")} | {name: F.lit(value).cast("double") for name, value in missing.items()}
    for shards in (1, 5):
        rows = frame({"v": values}).repartition(shards)
        assert sums_by(rows, F.col("v")) == {(): (total, 0)}
        expected = {"v": float(total), "nan": math.nan, "inf": math.nan, "none": 0}
        assert exact_sums(rows, columns) == pytest.approx(expected, rel=0, nan_ok=True)
