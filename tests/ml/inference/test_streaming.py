"""Structured Streaming: a model scores micro-batches as it does tables."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(40, 3))


def made(factory, kind):
    return TorchModel(factory=factory, weights=pack(factory()), kind=kind).setInputCols(["x"])


def finished(writer, checkpoint) -> None:
    """Run a stream over what there is."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120), query.status
    assert query.exception() is None


@pytest.fixture
def files(spark, tmp_path):
    folder = str(tmp_path / "in")
    for part in range(2):
        rows = slice(20 * part, 20 * part + 20)
        frame({"row": np.arange(40)[rows], "x": X[rows]}).write.mode("append").parquet(folder)
    return folder


def test_files_in_files_out(spark, files, tmp_path):
    model = made(nets.scores, "classifier")
    stream = spark.readStream.schema("row long, x array<double>").option("maxFilesPerTrigger", 1).parquet(files)
    scored = model.transform(stream)
    assert scored.isStreaming
    out = str(tmp_path / "out")
    finished(scored.select("row", "prediction").writeStream.format("parquet").option("path", out), tmp_path / "c")
    found = spark.read.parquet(out).orderBy("row").collect()
    whole = model.transform(spark.read.parquet(files)).select("row", "prediction").orderBy("row").collect()
    assert found == whole
    assert len(found) == 40


@pytest.mark.slow
def test_aggregates_of_predictions_in_memory(spark, files, tmp_path):
    stream = spark.readStream.schema("row long, x array<double>").parquet(files)
    counts = made(nets.scores, "classifier").transform(stream).where("prediction >= 0").groupBy("prediction").count()
    finished(counts.writeStream.format("memory").queryName("counted").outputMode("complete"), tmp_path / "c")
    assert spark.table("counted").groupBy().sum("count").first()[0] == 40
