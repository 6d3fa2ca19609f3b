"""Fingerprints of rows."""

from __future__ import annotations

import numpy as np
from pyspark.sql import functions as F

from sparkdl.spark.fingerprint import fingerprint
from tests.sessions import frame


def test_fingerprint_is_of_values_and_names(spark):
    data = frame({"id": np.arange(20), "one": np.linspace(0, 1, 20), "other": np.linspace(1, 2, 20)})
    result = fingerprint(data)
    assert result.startswith("20 rows, ")
    assert fingerprint(data.select("other", "id", "one").repartition(3).orderBy(F.desc("id"))) == result
    assert fingerprint(data.withColumn("m", F.array(F.create_map("id", "one")))) == result
    null, one = F.lit(None).cast("double"), F.lit(1.0)
    changed = [
        data.where("id > 0"),
        data.withColumn("one", F.col("one") + 1),
        *(data.withColumnRenamed(name, "label") for name in ("one", "other")),
        data.withColumn("one", null).withColumn("other", one),
        data.withColumn("one", one).withColumn("other", null),
    ]
    assert len({result, *map(fingerprint, changed)}) == len(changed) + 1
