"""Outputs of layers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl import InvalidInput, TorchModel
from sparkdl.io.weights import pack
from sparkdl.serving.loading import load_predictor
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def deep() -> nn.Module:
    return nets.mlp(3, 5, outputs=2)


def made(factory=deep, **others) -> TorchModel:
    fields = {"kind": "classifier", "signature": [([3], "float32")], "output": [2]} | others
    return TorchModel(factory=factory, weights=pack(factory()), **fields)._set(inputCols=["x"], thresholds=[1.0, 2.0])


def test_embeddings_are_those_of_the_module(spark, tmp_path):
    model = made().withOutputs("1").setPredictionCol("embedding")
    with torch.inference_mode():
        wanted = deep()[:2](torch.from_numpy(X)).numpy()
    there = np.array([row.embedding for row in model.transform(frame({"x": X}).coalesce(1)).collect()])
    np.testing.assert_allclose(there, wanted, rtol=1e-6)
    np.testing.assert_array_equal(np.stack(model.predict(X)["embedding"]), there)
    model.save(str(tmp_path / "model"))
    loaded = load_predictor(tmp_path / "model", modules=[__name__])
    np.testing.assert_array_equal(np.stack(loaded.predict(X)["embedding"]), there)
    assert TorchModel.load(str(tmp_path / "model")).getPredictionCol() == "embedding"


def test_a_layer_with_one_number_a_row_gives_numbers():
    numbers = made(nets.Line, kind="regressor", output=[]).withOutputs("inner").predict(X)["prediction"]
    assert numbers.dtype == np.float32
    np.testing.assert_allclose(numbers, nets.Line()(torch.from_numpy(X)).detach(), rtol=1e-6)


class Repeated(nn.Module):
    """Calls one layer twice, and another never."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.never, self.state = nn.Linear(3, 3), nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.state(self.twice(self.twice(x)).unsqueeze(1))[0].squeeze(1)


def in_place() -> nn.Module:
    return nn.Sequential(deep()[0], nn.ReLU(inplace=True), nn.Linear(5, 2))


def test_the_last_call_of_a_layer_counts_before_the_next_layer_changes_it():
    module = Repeated()
    model = TorchModel(factory=Repeated, weights=pack(module), signature=[([3], "float32")])._set(inputCols=["x"])
    with torch.inference_mode():
        wanted = module.twice(module.twice(torch.from_numpy(X))).numpy()
    np.testing.assert_allclose(np.stack(model.withOutputs("twice").predict(X)["prediction"]), wanted, atol=1e-6)
    found = np.stack(made(in_place).withOutputs("0").predict(X)["prediction"])
    np.testing.assert_allclose(found, deep()[0](torch.from_numpy(X)).detach(), rtol=1e-5)
    assert found.min() < 0


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("head", "there is no layer 'head'; the model has 'twice', 'never', 'state'"),
        ("", "there is no layer ''"),
        ("never", "does not call the layer 'never'"),
        ("state", r"the layer 'state' returned \(\[2, 1, 2\]"),
    ],
)
def test_layers_without_an_output_raise(layer, message):
    with pytest.raises(InvalidInput, match=message):
        made(Repeated, kind="estimator").withOutputs(layer)


def test_threads_that_share_a_model_get_their_own_outputs():
    model = made().withOutputs("0")
    inputs = [X + at for at in range(40)]
    wanted = [np.stack(model.predict(x)["prediction"]) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: np.stack(model.predict(x)["prediction"]), inputs))
    np.testing.assert_array_equal(found, wanted)


def test_a_factory_without_a_name_is_saved_as_a_program(spark, tmp_path):
    model = made(nets.inner()).withOutputs("inner")
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    np.testing.assert_allclose(np.stack(loaded.predict(X)["prediction"]), nets.scores()(torch.from_numpy(X)).detach())
    with pytest.raises(InvalidInput, match="there is no layer 'inner'"):
        loaded.withOutputs("inner")
