"""Anonymous memory of a Python worker that scores with weights of 400 MB, above that of one that scores with 1 MB.

The weights are mapped from a file, or for comparison sent as bytes. The result is a share of the larger weights.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.memory.main import anonymous
from benchmarks.mlp import mlp
from benchmarks.pairs import environment, options, verdict
from benchmarks.session import FEATURES, samples, session, written
from sparkdl import TorchModel
from sparkdl.io.weights import pack
from sparkdl.io.weights_file import Weights, WeightsFile

BAR = "at most 0.15"
LARGE, SMALL = 9_986, 476  # widths of two hidden layers: 400 MB and 1 MB


def used(weights: Weights, width: int, rows: int) -> int:
    """Anonymous bytes of the only Python worker of an application, after it has scored these rows."""
    model = TorchModel(factory=partial(mlp, FEATURES, width, width, 1), weights=weights, kind="regressor")
    with session("scoring_memory", executors=1, mebibytes=4096) as spark:
        written(model.transform(samples(spark, rows, partitions=1)).select("prediction"))
        return _memory(spark)


def _memory(spark: SparkSession) -> int:
    return int(spark.range(0, 1, 1, 1).mapInArrow(_own_memory, "bytes long").collect()[0].bytes)


def _own_memory(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array([anonymous(os.getpid())], pa.int64())], names=["bytes"])


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(__doc__, rounds=1, rows=2_000).parse_args(arguments)
    print(environment())
    shares = []
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        packed = {width: pack(mlp(FEATURES, width, width, 1)) for width in (LARGE, SMALL)}
        files = {width: WeightsFile.write(str(Path(folder, f"{width}")), [data]) for width, data in packed.items()}
        for _ in range(args.rounds):
            for name, weights in (("mapped", files), ("bytes", packed)):
                large, small = (used(weights[width], width, args.rows) for width in (LARGE, SMALL))
                share = (large - small) / len(packed[LARGE])
                shares += [share] if name == "mapped" else []
                print(f"{name}: {large / 1e6:.0f} MB with {len(packed[LARGE]) / 1e6:.0f} MB of weights, ", end="")
                print(
                    f"{small / 1e6:.0f} MB with {len(packed[SMALL]) / 1e6:.1f} MB: a share of {share:.3f}", flush=True
                )
    print(verdict(max(shares), BAR))


if __name__ == "__main__":
    main()
