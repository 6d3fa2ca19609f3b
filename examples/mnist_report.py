"""A convolutional network on MNIST for some minutes, with validation accuracy, and its report as a page.

    python examples/mnist_report.py ../shared/data build/mnist/report.html

The first folder holds ``t10k-images-idx3-ubyte.gz`` and ``t10k-labels-idx1-ubyte.gz`` of MNIST. The page needs the
extra ``report``. Two executors with a core each train for about three minutes.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import InputColumn, TorchClassifier


class Net(nn.Module):
    """Two convolutions and two linear layers; takes pixels uint8 ``[B, 28, 28]``, gives scores ``[B, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
        )

    def forward(self, images: Tensor) -> Any:
        """The scores of each class."""
        return self.layers(images[:, None].float() / 255)


def shifted(inputs: Any, target: Tensor, generator: torch.Generator) -> Any:
    """Shift a batch of images by up to two pixels."""
    (images,) = inputs
    down, right = torch.randint(-2, 3, (2,), generator=generator).tolist()
    return (images.roll((down, right), dims=(1, 2)),), target


def rows(folder: Path) -> pa.Table:
    """MNIST's 10 000 test images as bytes, with labels and ids."""
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28 * 28)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    images = [row.tobytes() for row in pixels]
    return pa.table({"id": pa.array(range(len(images))), "image": images, "label": labels.astype("int64")})


def main() -> None:
    """Train, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="the folder with MNIST's files")
    parser.add_argument("page", type=Path, help="where to write the report")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    builder = SparkSession.builder.master("local-cluster[2,1,2048]").appName("mnist")
    with (
        builder.config("spark.ui.showConsoleProgress", "false").getOrCreate() as spark,
        tempfile.TemporaryDirectory() as folder,
    ):
        images = spark.createDataFrame(rows(options.data)).withColumn("held_out", F.expr("id % 5 = 0"))
        classifier = TorchClassifier(
            model=Net,
            inputCols=["image"],
            columnSpecs=[InputColumn("image", "uint8", shape=(28, 28))],
            augment=shifted,
            learningRate=1e-3,
            metrics={"accuracy": MulticlassAccuracy(10, average="micro")},
            validationIndicatorCol="held_out",
            idCol="id",
            numWorkers=2,
            batchSize=128,
            epochs=options.epochs,
            runDir=f"{folder}/mnist",
        )
        model = classifier.fit(images)
        options.page.parent.mkdir(parents=True, exist_ok=True)
        model.report.html(str(options.page))
        print(model.report["verdict"])
        print(f"validation accuracy {model.history[-1]['valid_accuracy']:.4f}")


if __name__ == "__main__":
    main()
