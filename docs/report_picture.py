"""The program that made docs/report.png: a training of minutes, its report page, and a screenshot of the page.

    python -m docs.report_picture build/mnist

It reads MNIST's files from the folder SPARKDL_DATA, by default ``data``; examples/README.md has their addresses. It
writes the run and ``report.html`` into the given folder, and with Chromium (conf/chromium.sh) also ``report.png``.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.events.browser import Browser
from sparkdl import InputColumn, TorchClassifier

EPOCHS, BATCH = 20, 128
WINDOW = {"width": 1200, "height": 1290}  # pixels of the screenshot


def net() -> nn.Module:
    """Three convolutions and a linear layer."""
    first = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5)
    return nn.Sequential(*first, *second, nn.Linear(64 * 7 * 7, 10))


def to_unit(inputs: tuple[Tensor, ...], target: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Images ``[B, 28, 28]`` of bytes as ``[B, 1, 28, 28]`` from 0 to 1."""
    (images,) = inputs
    return (images[:, None].float() / 255,), target


def mnist(folder: Path) -> pa.Table:
    """MNIST's 10 000 test images as rows of bytes, with their labels."""
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / f"t10k-{name}-ubyte.gz").read_bytes()), np.uint8, offset=header)
        for name, header in (("images-idx3", 16), ("labels-idx1", 8))
    )
    images = [image.tobytes() for image in pixels.reshape(-1, 28 * 28)]
    return pa.table({"id": range(len(labels)), "image": images, "label": labels.astype("int32")})


def main() -> None:
    """Train, write the page, and take its picture."""
    parser = argparse.ArgumentParser(description="Train on MNIST, and write the report page with a screenshot.")
    parser.add_argument("folder", type=Path, help="of the run and of report.html and report.png")
    folder = parser.parse_args().folder.resolve()
    estimator = TorchClassifier(
        model=net,
        inputCols=["image"],
        columnSpecs=[InputColumn("image", "uint8", shape=(28, 28))],
        collate=to_unit,
        optimizer=torch.optim.Adam,
        learningRate=0.001,
        metrics={"accuracy": MulticlassAccuracy(10, average="micro")},
        validationIndicatorCol="held_out",
        idCol="id",
        numWorkers=2,
        batchSize=BATCH,
        epochs=EPOCHS,
        runDir=str(folder / "mnist"),
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with builder.config("spark.ui.enabled", False).getOrCreate() as spark:
        rows = spark.createDataFrame(mnist(Path(os.environ.get("SPARKDL_DATA", "data"))))
        model = estimator.fit(rows.withColumn("held_out", F.expr("id % 5 = 0")))
    page = Path(model.report.html(str(folder / "report.html")))
    browser = Browser.find()
    if browser is not None:
        browser.screenshot(page, folder / "report.png", **WINDOW)
    sys.stdout.write(f"{model.report['verdict']}\n")


if __name__ == "__main__":
    main()
