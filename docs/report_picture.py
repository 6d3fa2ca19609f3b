"""The program that made docs/report.png: a training of minutes, its report page, and a screenshot of the whole page.

    python -m docs.report_picture build/connections

It reads the KDD Cup 1999 data from the folder SPARKDL_DATA, by default ``data``; examples/README.md has the address. It
writes the run and ``report.html`` into the given folder, and with Chromium (conf/chromium.sh) also ``report.png``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from benchmarks.events.browser import Browser
from sparkdl import TorchClassifier

EPOCHS, BATCH, CLASSES = 30, 1024, 23
COLUMNS, WORDS = [f"c{index}" for index in range(41)], ["c1", "c2", "c3"]  # protocol, service and flag are words
WINDOW = {"width": 1200, "height": 2400}  # pixels of the screenshot


class Net(nn.Sequential):
    """A perceptron with two hidden layers."""

    def __init__(self, width: int) -> None:
        hidden = nn.Linear(width, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.ReLU()
        super().__init__(*hidden, nn.Linear(128, CLASSES))


def connections(spark: SparkSession, path: Path) -> DataFrame:
    """The rows with standardized ``features``, the index ``label`` of the kind of connection, and an ``id``."""
    types = ", ".join(f"{name} {'string' if name in WORDS else 'double'}" for name in COLUMNS)
    rows = spark.read.schema(f"{types}, kind string").csv(str(path)).withColumn("id", F.monotonically_increasing_id())
    indices, codes = [f"{name} index" for name in WORDS], [f"{name} code" for name in WORDS]
    stages = [
        StringIndexer(inputCols=WORDS, outputCols=indices),
        OneHotEncoder(inputCols=indices, outputCols=codes),
        VectorAssembler(inputCols=[name for name in COLUMNS if name not in WORDS] + codes, outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features"),
        StringIndexer(inputCol="kind", outputCol="label"),
    ]
    return Pipeline(stages=stages).fit(rows).transform(rows).select("id", "features", "label")


def main() -> None:
    """Train, write the page, and take its picture."""
    parser = argparse.ArgumentParser(description="Train on network connections, and write the report page.")
    parser.add_argument("folder", type=Path, help="of the run and of report.html and report.png")
    folder = parser.parse_args().folder.resolve()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with builder.config("spark.ui.enabled", False).getOrCreate() as spark:
        file = Path(os.environ.get("SPARKDL_DATA", "data"), "kddcup.data_10_percent.gz")
        rows = connections(spark, file).repartition(2).cache()
        estimator = TorchClassifier(
            model=Net,
            modelArgs={"width": len(rows.first()["features"])},
            optimizer=torch.optim.Adam,
            learningRate=0.001,
            metrics={
                "accuracy": MulticlassAccuracy(CLASSES, average="micro"),
                "macro_f1": MulticlassF1Score(CLASSES, average="macro"),
            },
            validationFraction=0.2,
            idCol="id",
            numWorkers=2,
            batchSize=BATCH,
            epochs=EPOCHS,
            runDir=str(folder / "connections"),
        )
        model = estimator.fit(rows)
    page = Path(model.report.html(str(folder / "report.html")))
    browser = Browser.find()
    if browser is not None:
        browser.screenshot(page, folder / "report.png", **WINDOW)
    sys.stdout.write(f"{model.report['verdict']}\n{model.summary}\n")


if __name__ == "__main__":
    main()
