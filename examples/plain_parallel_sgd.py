"""Parallel SGD twice: by hand, in for-loops over arrays on one machine, and by sparkdl over the rows of a DataFrame.

    python examples/plain_parallel_sgd.py
    spark-submit --master 'local-cluster[2,1,1024]' examples/plain_parallel_sgd.py

Every shard trains alone from the same weights, and the weights are averaged (Zinkevich et al., Parallelized stochastic
gradient descent, NIPS 2010; here in several rounds). The rows are scikit-learn's digits, the model is softmax
regression. The two deal rows out and shuffle them by other random numbers, so that they agree in accuracy, not in bits.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from sparkdl import ParallelSGD, TorchClassifier

PARTS, ROUNDS, EPOCHS, BATCH, RATE = 4, 5, 2, 16, 0.2


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def by_hand(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The weights ``[features, classes]``."""
    draw = np.random.default_rng(0)
    shards = np.array_split(draw.permutation(len(x)), PARTS)  # every shard represents the whole
    w = np.zeros((x.shape[1], 10))
    for _ in range(ROUNDS):
        trained = []
        for shard in shards:  # on a cluster, a task each
            w_k = w.copy()
            for _ in range(EPOCHS):
                rows = draw.permutation(shard)
                for first in range(0, len(rows), BATCH):
                    batch = rows[first : first + BATCH]
                    errors = softmax(x[batch] @ w_k)
                    errors[np.arange(len(batch)), y[batch]] -= 1
                    w_k -= RATE * x[batch].T @ errors / len(batch)
            trained.append(w_k)
        shares = np.array([len(shard) for shard in shards]) / len(x)
        w = np.tensordot(shares, trained, axes=1)
    return w


def by_sparkdl(spark: SparkSession, x: np.ndarray, y: np.ndarray) -> TorchClassifier:
    rows = spark.createDataFrame(pa.table({"features": pa.array(list(x.astype(np.float32))), "label": pa.array(y)}))
    classifier = TorchClassifier(
        model=partial(nn.Linear, x.shape[1], 10, bias=False),
        optimizer=partial(torch.optim.SGD, lr=RATE),
        strategy=ParallelSGD(rounds=ROUNDS, epochs=EPOCHS, shard_batch_size=BATCH),
        numWorkers=PARTS,
    )
    return classifier.fit(rows)


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(images / 16, labels, test_size=0.2, random_state=0)
    w = by_hand(x_train, y_train)
    print(f"by hand: accuracy {np.mean((x_test @ w).argmax(axis=1) == y_test):.4f}")

    with SparkSession.builder.appName("Parallel SGD").getOrCreate() as spark:
        model = by_sparkdl(spark, x_train, y_train)
        test = pa.table({"features": pa.array(list(x_test.astype(np.float32))), "label": pa.array(y_test)})
        predictions = model.transform(spark.createDataFrame(test))
        accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions)
        print(f"sparkdl: accuracy {accuracy:.4f}")
        for row in model.history:
            print(f"round {row['round']}: loss {row['loss']:.4f}, {row['seconds']:.2f} s")


if __name__ == "__main__":
    main()
