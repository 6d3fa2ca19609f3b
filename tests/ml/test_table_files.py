"""Large tables stay in files from the end of a fit to scoring: nobody holds a table as one tensor."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import Table, TorchModel, TorchRegressor, WarmStart, load_predictor
from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import WeightsFile
from tests.sessions import drive, frame, session

ROWS, SIZE, WIDTH = 60, 50_001, 8  # 1.6 MB


class Items(nn.Module):
    """The sum of the rows of two ids in one table, under two names, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.items = Table(SIZE, WIDTH, padding_idx=0, init=0.5)
        self.again = self.items
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        output: Tensor = self.head(self.items(first) + self.again(second)).squeeze(1)
        return output


def scores(model: TorchModel, rows: Any) -> list[float]:
    return [row.prediction for row in model.transform(rows).orderBy("id").collect()]


def fit(folder: str) -> dict[str, Any]:
    """Fit on two executors whose driver accepts results of 1 MB; save, load, score, join, and go on."""
    generator = np.random.default_rng(0)
    columns = {name: generator.integers(0, SIZE, ROWS) for name in ("first", "second")}
    data = columns | {"label": generator.random(ROWS), "id": np.arange(ROWS)}
    run, saved = Path(folder, "run"), str(Path(folder, "saved"))
    with session(folder, driver__maxResultSize="1m"):
        rows = frame(data).persist()
        settings: dict[str, Any] = {"inputCols": ["first", "second"], "idCol": "id", "numWorkers": 2, "batchSize": 20}
        estimator = TorchRegressor(model=Items, runDir=str(run), epochs=2, **settings)
        model = estimator.fit(rows)
        weights = model._trained.weights
        assert isinstance(weights, WeightsFile)
        whole, mapped = model.module(), model.module(tables="mapped")
        model.save(saved)
        answers: dict[str, Any] = {"scores": scores(model, rows), "tables": [*weights.tables]}
        shutil.rmtree(run)
        loaded = TorchModel.load(saved)
        answers |= {"loaded": scores(loaded, rows), "parameters": loaded.summary.parameters}
        inputs = {name: data[name] for name in columns}
        answers["predicted"] = load_predictor(saved, modules=["tests"]).predict(inputs)["prediction"].tolist()
        with torch.inference_mode():
            both = [torch.from_numpy(values) for values in columns.values()]
            answers["modules"] = [one(*both).tolist() for one in (whole, mapped)]
        table = loaded.table("items", values=[f"item {number}" for number in range(SIZE)])
        answers["types"] = dict(table.dtypes)
        joined = table.where(F.col("id").isin(0, 1, 17, SIZE - 1)).orderBy("id").collect()
        answers["joined"] = [(row.id, row.value, row.vector) for row in joined]
        answers["vectors"] = whole.items.weight[[0, 1, 17, SIZE - 1]].tolist()
        answers["count"] = table.count()
        try:
            loaded.table("rows")
        except InvalidInput as error:
            answers["unknown"] = error.message
        later = estimator.setModel(WarmStart.of(loaded, Items)).setRunDir(f"{folder}/later").setEpochs(1).fit(rows)
        answers["losses"] = [model.history[0]["loss"], later.history[0]["loss"]]
        names = sorted(str(path.relative_to(saved)) for path in Path(saved).rglob("*.safetensors"))
        other = TorchModel(factory=Items, weights=loaded._trained.weights)
        other.evaluated = {"loss": nn.MSELoss()}
        other.setInputCols(["first", "second"]).setLabelCol("label")
        answers["error"] = other.evaluate(rows).loss - np.square(np.array(answers["scores"]) - data["label"]).mean()
        whole_again = loaded.in_memory().module()
        return answers | {"files": names, "memory": bool((whole_again.items.weight == whole.items.weight).all())}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_large_table_stays_in_files(tmp_path: Path) -> None:
    found = drive(fit, tmp_path).result
    expected = found["scores"]
    assert found["tables"] == ["items"]
    assert found["files"] == [*(f"tables/items/0000{at}-of-00002.safetensors" for at in (0, 1)), "weights.safetensors"]
    for name in ("loaded", "predicted"):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6)
    for outputs in found["modules"]:
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)
    assert found["parameters"] == SIZE * WIDTH + WIDTH + 1
    assert found["types"] == {"id": "bigint", "vector": "array<float>", "value": "string"}
    assert [row[:2] for row in found["joined"]] == [[number, f"item {number}"] for number in (0, 1, 17, SIZE - 1)]
    np.testing.assert_array_equal([vector for _, _, vector in found["joined"]], found["vectors"])
    assert found["count"] == SIZE
    assert found["unknown"] == "the model has no Table 'rows'; it has 'items'."
    assert found["losses"][1] < found["losses"][0]
    assert abs(found["error"]) < 1e-6
    assert found["memory"]
