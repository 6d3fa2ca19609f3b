"""The scaled a9a data set of both sides, and the model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.ml.linalg import SparseVector, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DoubleType, LongType, StructField, StructType
from torch import nn

from benchmarks.session import ROOT, materialised
from sparkdl.data.columns import Columns, InputColumn

FEATURES = 123
COLUMNS = Columns(
    (InputColumn("features"),), InputColumn("label", "float64"), row_id=InputColumn("id", "int64"), floating="float64"
)


def a9a(*, scaled: bool = True) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Features ``[rows, 123]``, and labels 0 and 1; features are binary, or of standard deviation 1, not centred."""
    folder = Path(os.environ.get("SPARKDL_DATA", ROOT / "../shared/data"))
    lines = (folder / "a9a").read_text(encoding="utf-8").splitlines()
    features, labels = np.zeros((len(lines), FEATURES)), np.zeros(len(lines))
    for row, line in enumerate(lines):
        label, *entries = line.split()
        labels[row] = float(label) > 0
        for entry in entries:
            place, _, value = entry.partition(":")
            features[row, int(place) - 1] = float(value)
    if not scaled:
        return features, labels
    spread = features.std(0, ddof=1)
    return features / np.where(spread > 0, spread, 1.0), labels


def frames(spark: SparkSession, *, partitions: int) -> tuple[DataFrame, DataFrame]:
    """The same rows twice, persisted: as sparse vectors for MLlib, and as arrays of doubles."""
    features, labels = a9a()
    sparse, dense = [], []
    for row, (values, label) in enumerate(zip(features, labels, strict=True)):
        places = np.flatnonzero(values)
        sparse.append((SparseVector(FEATURES, places, values[places]), float(label)))
        dense.append((row, values.tolist(), float(label)))
    label = StructField("label", DoubleType())
    vectors = StructType([StructField("features", VectorUDT()), label])
    arrays = StructType([StructField("id", LongType()), StructField("features", ArrayType(DoubleType())), label])
    made = [spark.createDataFrame(rows, kind) for rows, kind in ((sparse, vectors), (dense, arrays))]
    one, other = (materialised(frame.repartition(partitions)) for frame in made)
    return one, other


def logistic() -> nn.Module:
    """Logistic regression with zero weights, as MLlib's start except for its intercept."""
    model = nn.Linear(FEATURES, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model
