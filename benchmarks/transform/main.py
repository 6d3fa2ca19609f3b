"""Scoring a DataFrame with TorchModel.transform against pyspark.ml.functions.predict_batch_udf.

Both score the same persisted rows with the same network on the same cores, keep one more column and write to Spark's
noop sink. With --vector, the comparison is transform of an ML vector against transform of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from pyspark.ml.functions import array_to_vector, predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from benchmarks.fresh import seconds_fresh
from benchmarks.mlp import small
from benchmarks.pairs import Side, environment, interleave, options, seconds, verdict
from benchmarks.session import FEATURES, materialised, samples, session, written
from sparkdl import TorchModel
from sparkdl.io.weights import pack, unpack

BAR = "at least 1.6"
BAR_VECTOR = "at least 0.8"
BAR_FIRST = "at least 1"
WORKERS = 2
_ROWS = 1_000_000
_BATCH = 10_000  # rows of the other side's batch


def make_predict(weights: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """The function of a predict_batch_udf user."""
    torch.set_num_threads(1)  # as many as the executor has cores
    module = small()
    unpack(weights, module)
    module.eval()

    def predict(inputs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(inputs)).squeeze(1).double().numpy()

    return predict


def with_udf(frame: DataFrame, weights: bytes, batch_size: int) -> DataFrame:
    """The frame with a prediction by predict_batch_udf."""
    score = predict_batch_udf(
        lambda: make_predict(weights),
        return_type=DoubleType(),
        batch_size=batch_size,
        input_tensor_shapes=[[FEATURES]],
    )
    return frame.withColumn("prediction", score("features"))


def with_zeros(frame: DataFrame) -> DataFrame:
    """The frame with a prediction of 0 by an Arrow UDF that ignores its input: Spark's own cost."""

    def zeros(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pa.array(np.zeros(len(batch)))

    # Spark reads the function's hints, which are strings here.
    zeros.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return frame.withColumn("prediction", F.arrow_udf(zeros, DoubleType())("features"))


def first_transform(spark: SparkSession) -> dict[str, float]:
    """The first ``transform`` of an application."""
    model = TorchModel(factory=small, weights=pack(small()), kind="regressor")
    return _first(spark, model.transform)


def first_predict_batch_udf(spark: SparkSession) -> dict[str, float]:
    """The first ``predict_batch_udf`` of an application."""
    weights = pack(small())
    return _first(spark, lambda frame: with_udf(frame, weights, _BATCH))


def _first(spark: SparkSession, score: Callable[[DataFrame], DataFrame]) -> dict[str, float]:
    frame = materialised(samples(spark, _ROWS, partitions=WORKERS).select("features", "label"))
    return {"seconds": seconds(lambda: written(score(frame).select("label", "prediction")))}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=15, rows=_ROWS)
    parser.add_argument("--vector", action="store_true", help="an ML vector against an array, both with transform")
    parser.add_argument("--zeros", action="store_true", help="a UDF that returns zeros, in place of transform")
    parser.add_argument("--batch-size", type=int, default=_BATCH, help="rows of the other side (default %(default)s)")
    parser.add_argument("--first", action="store_true", help="the first call of fresh applications")
    args = parser.parse_args(arguments)
    print(environment())
    if args.first:
        names = ("predict_batch_udf", "transform")
        functions = [f"benchmarks.transform.main:first_{name}" for name in names]
        sides = [Side(name, partial(seconds_fresh, each)) for name, each in zip(names, functions, strict=True)]
        pairs = interleave(*sides, rounds=args.rounds, warmups=0)
        print(pairs.table("seconds"))
        print(verdict(pairs.ratio, BAR_FIRST))
        return
    weights = pack(small())
    model = TorchModel(factory=small, weights=weights, kind="regressor")
    with session("transform") as spark:
        frame = samples(spark, args.rows, partitions=WORKERS)
        array = materialised(frame.select("features", "label"))
        scored = model.transform(array).select("label", "prediction")
        if args.vector:
            vectors = materialised(array.select(array_to_vector("features").alias("features"), "label"))
            pair = [("vector", model.transform(vectors).select("label", "prediction")), ("array", scored)]
        else:
            theirs = with_udf(array, weights, args.batch_size).select("label", "prediction")
            ours = ("zeros", with_zeros(array).select("label", "prediction")) if args.zeros else ("transform", scored)
            pair = [ours, ("predict_batch_udf", theirs)]
        over, under = (Side(name, lambda found=found: args.rows / written(found)) for name, found in pair)
        pairs = interleave(over, under, rounds=args.rounds, warmups=6)
    print(pairs.table("rows/s"))
    print(verdict(pairs.ratio, BAR_VECTOR if args.vector else BAR))


if __name__ == "__main__":
    main()
