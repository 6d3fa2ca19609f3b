"""Sparse gradients of embeddings of categories, by an estimator on Spark."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import TorchClassifier
from tests.rounds.data import real

ROWS, BUCKETS = 6000, 500
CATEGORIES = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country"]


class Categories(nn.Module):
    """The mean of the vectors of a row's categories, and a linear layer."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = nn.EmbeddingBag(BUCKETS, 4, sparse=sparse)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.bag(ids))
        return output


def test_sparse_embeddings_of_adult_train_as_dense_ones(spark: Any) -> None:
    rows = spark.read.options(header=True, ignoreLeadingWhiteSpace=True).csv(str(real("adult.data"))).limit(ROWS)
    ids = F.array(*(F.pmod(F.hash(F.lit(name), F.col(name)), F.lit(BUCKETS)) for name in CATEGORIES))
    label = F.col("Y").startswith(">50K").cast("int")
    data = rows.select(ids.alias("ids"), label.alias("label"), F.monotonically_increasing_id().alias("row")).cache()
    classifier = TorchClassifier(
        inputCols=["ids"], idCol="row", optimizer=partial(torch.optim.Adagrad, lr=0.5), precision="fp64", numWorkers=2
    ).setParams(batchSize=512, epochs=2, maxGradNorm=0.05, microBatches=2)
    sparse, dense = (classifier.copy({classifier.model: partial(Categories, kind)}).fit(data) for kind in (True, False))
    for name, weight in dense.module().state_dict().items():
        torch.testing.assert_close(sparse.module().state_dict()[name], weight, rtol=0, atol=1e-12)
    assert sparse.history[-1]["loss"] < sparse.history[0]["loss"]
    assert sparse.evaluate(data).auc >= 0.8
