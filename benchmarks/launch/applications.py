"""What benchmarks/launch measures in fresh applications; seconds begin when the executors have registered."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.launch.fits import WORKERS, Fits
from benchmarks.pairs import seconds
from benchmarks.session import samples, written
from sparkdl.spark.warm_up import warm_up

_ETL_ROWS = 850_000
_HASHES = 8  # of each row


def first_fit(spark: SparkSession) -> dict[str, Any]:
    """From the call of the first fit to its first step."""
    return {"seconds": Fits(samples(spark, 2_000, partitions=WORKERS)).first_step()}


def distributor(spark: SparkSession) -> dict[str, Any]:
    """``TorchDistributor.run`` of a function that imports torch."""
    other = TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)
    return {"seconds": seconds(lambda: other.run(_import_torch))}


def etl_and_first_fit(spark: SparkSession) -> dict[str, Any]:
    """ETL with a warm-up beside it, and the first fit."""
    frames: list[DataFrame] = []

    def prepare() -> None:
        warm_up(spark, WORKERS)
        frames.append(_etl(spark))

    etl = seconds(prepare)
    return {"seconds": etl + seconds(Fits(*frames).first_step), "etl": etl}


def etl_and_warm_fit(spark: SparkSession) -> dict[str, Any]:
    """The same ETL, and a second fit; the time of the first one does not count."""
    frames: list[DataFrame] = []
    etl = seconds(lambda: frames.append(_etl(spark)))
    fits = Fits(*frames)
    fits.first_step()
    return {"seconds": etl + seconds(fits.first_step), "etl": etl}


def first_udf(spark: SparkSession) -> dict[str, Any]:
    """The first Python UDF, and the MB of the daemons."""
    spent = seconds(spark.range(0, WORKERS, 1, WORKERS).mapInArrow(_same, "id long").collect)
    return {"seconds": spent, "daemons": _daemons(os.getpid())}


def first_udf_beside_warm_up(spark: SparkSession) -> dict[str, Any]:
    """The first Python UDF of an application that has just begun to warm up."""
    warm_up(spark, WORKERS)
    return first_udf(spark)


def _import_torch() -> None:
    import torch  # noqa: F401


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _etl(spark: SparkSession) -> DataFrame:
    """About ten seconds of work for all slots, then the rows of a fit."""
    text = F.col("id").cast("string")
    for _ in range(_HASHES):
        text = F.sha2(text, 512)
    written(spark.range(0, _ETL_ROWS, 1, 16 * WORKERS).select(text))
    return samples(spark, 2_000, partitions=WORKERS)


def _daemons(application: int) -> list[float]:
    """Resident MB of the daemons that the executors of an application have started."""
    parents, sizes = dict[int, int](), dict[int, float]()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text, command = status.read_text(), status.with_name("cmdline").read_text()
        except OSError:  # it has ended
            continue
        pid, found = int(status.parent.name), dict(re.findall(r"^(PPid|VmRSS):\s+(\d+)", text, re.MULTILINE))
        parents[pid] = int(found["PPid"])
        if "daemon" in command and "java" not in command:
            sizes[pid] = int(found.get("VmRSS", 0)) / 1024
    # A worker is a daemon's child with the same command.
    return [
        round(size) for pid, size in sizes.items() if parents[pid] not in sizes and application in _above(pid, parents)
    ]


def _above(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid
