"""docs/tuning.md: rows, and an estimator."""

from __future__ import annotations

from sparkdl import TorchClassifier
from tests.docs.digits import Net, frames


def page(execute, folder, spark):
    clf = TorchClassifier(model=Net, numWorkers=2, epochs=1)
    found = execute({"clf": clf, **frames(spark)})
    assert set(found["report"]) >= {"verdict", "phases", "skew_by_rank", "slowest_rank", "train_seconds"}
    assert spark.read.parquet(f"{folder}/scored").columns == ["features", "label", "held_out", "prediction"]
