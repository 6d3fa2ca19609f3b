"""Fingerprints of rows."""

from __future__ import annotations

import numpy as np
from pyspark.sql import functions as F

from sparkdl.spark.fingerprint import fingerprint
from tests.sessions import frame


def test_columns_that_were_renamed_are_others(spark):
    given = frame({"id": np.arange(20), "one": np.linspace(0, 1, 20), "other": np.linspace(1, 2, 20)})
    found = [fingerprint(given.withColumnRenamed(name, "label")) for name in ("one", "other")]
    assert found[0] != found[1]
    assert fingerprint(given.select("other", "id", "one")) == fingerprint(given)
    null = [given.withColumn(name, F.lit(None).cast("double")) for name in ("one", "other")]
    assert fingerprint(null[0].withColumn("other", F.lit(1.0))) != fingerprint(null[1].withColumn("one", F.lit(1.0)))


def test_fingerprint_is_of_the_rows_in_any_order(spark):
    given = frame({"a": np.arange(20), "b": np.linspace(0, 1, 20)})
    found = fingerprint(given)
    assert found.startswith("20 rows, ")
    assert fingerprint(given.repartition(3).orderBy(F.desc("a"))) == found
    assert fingerprint(given.where("a > 0")) != found
    assert fingerprint(given.withColumn("b", F.col("b") + 1)) != found
    with_maps = given.withColumn("m", F.array(F.create_map("a", "b")))
    assert fingerprint(with_maps) == found
