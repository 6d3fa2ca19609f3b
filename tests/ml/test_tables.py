"""A table of categories, by an estimator on Spark: trained, saved, loaded and scored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import InvalidInput, ParallelSGD, Pipelined, Table, TorchClassifier, TorchModel, WarmStart, load_predictor
from tests.rounds.data import real

ROWS, SIZE = 6000, 500
CATEGORIES = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country"]


class Categories(nn.Module):
    """The sum of the vectors of a row's categories, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = Table(SIZE, 4, mode="sum")
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.ids(ids))
        return output


@pytest.fixture(scope="module")
def data(spark: Any) -> Any:
    rows = spark.read.options(header=True, ignoreLeadingWhiteSpace=True).csv(str(real("adult.data"))).limit(ROWS)
    ids = F.array(*(F.pmod(F.hash(F.lit(name), F.col(name)), F.lit(SIZE)) for name in CATEGORIES))
    label = F.col("Y").startswith(">50K").cast("int")
    return rows.select(ids.alias("ids"), label.alias("label"), F.monotonically_increasing_id().alias("row")).cache()


def classifier(**settings: Any) -> TorchClassifier:
    settings = {"numWorkers": 2, "batchSize": 256, "epochs": 3} | settings
    return TorchClassifier(model=Categories, inputCols=["ids"], idCol="row", learningRate=0.01).setParams(**settings)


def test_a_table_trains_is_saved_and_scores(data, tmp_path):
    model = classifier(runDir=f"{tmp_path}/run", precision="fp64").fit(data)
    assert model.history[-1]["loss"] < model.history[0]["loss"]
    assert model.evaluate(data).auc >= 0.85
    assert model.module().ids.weight.shape == (SIZE, 4)
    alone = classifier(numWorkers=1, precision="fp64").fit(data)
    initial = (one.module().ids.weight for one in (model, alone))
    torch.testing.assert_close(*initial, rtol=0, atol=0.2)  # the order of rows differs, and initial rows do not
    model.save(f"{tmp_path}/model")
    loaded, rows = TorchModel.load(f"{tmp_path}/model"), data.limit(50)
    scored = [row["probability"].toArray() for row in loaded.transform(rows).collect()]
    assert np.array_equal(scored, [row["probability"].toArray() for row in model.transform(rows).collect()])
    predicted = load_predictor(f"{tmp_path}/model").predict(rows.select("ids").toArrow())
    np.testing.assert_allclose(np.stack(predicted["probability"].to_pylist()), scored, rtol=0, atol=1e-6)


def test_a_fit_from_saved_rows_goes_on(data):
    first = classifier().fit(data)
    again = classifier(epochs=1).setModel(WarmStart.of(first, Categories)).fit(data)
    assert again.history[0]["loss"] < first.history[-1]["loss"] + 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": ParallelSGD()}, "the model has a Table, 'ids', which gangs alone train"),
        ({"layout": Pipelined(2)}, "layout is Pipelined, and the model has a Table, ids"),
        ({"precision": "fp16"}, "precision='fp16' is set"),
    ],
)
def test_settings_that_do_not_train_tables_raise_before_the_launch(data, settings, message):
    with pytest.raises(InvalidInput, match=message):
        classifier(**settings).fit(data)
