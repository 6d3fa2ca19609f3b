"""Structured Streaming: a model scores micro-batches like tables."""

from __future__ import annotations

import numpy as np

from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(40, 3))


def test_stream_of_files(spark, tmp_path):
    folder, out = str(tmp_path / "in"), str(tmp_path / "out")
    for rows in (slice(20), slice(20, 40)):
        frame({"row": np.arange(40)[rows], "x": X[rows]}).write.mode("append").parquet(folder)
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()), kind="classifier").setInputCols(["x"])
    stream = spark.readStream.schema("row long, x array<double>").option("maxFilesPerTrigger", 1).parquet(folder)
    scored = model.transform(stream)
    assert scored.isStreaming
    writer = scored.select("row", "prediction").writeStream.format("parquet").option("path", out)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120), query.status
    assert query.exception() is None
    found = spark.read.parquet(out).orderBy("row").collect()
    assert found == model.transform(spark.read.parquet(folder)).select("row", "prediction").orderBy("row").collect()
    assert len(found) == 40
