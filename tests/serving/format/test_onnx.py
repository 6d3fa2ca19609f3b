"""Exports equal the predictions of ``predict`` and of ``transform``."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from sparkdl import InputColumn, InvalidInput, TorchModel
from sparkdl.io.weights import pack
from sparkdl.serving.format.export import Signature
from tests.ml import nets
from tests.serving.format.test_export import Sized
from tests.sessions import frame

RNG = np.random.default_rng(0)


class Words(nn.Module):
    """An embedding of a word beside two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 4), nn.Linear(6, 2)

    def forward(self, word: Tensor, numbers: Tensor) -> Tensor:
        return self.head(torch.cat([self.table(word), numbers], 1))


class Transformer(nn.Module):
    """Attention over twelve tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.table(tokens)).mean(1))


WORDS = {"kind": RNG.integers(0, 30, 40), "size": RNG.normal(size=(40, 2)).astype(np.float32)}
MODELS: dict[str, tuple[type[nn.Module], dict[str, np.ndarray], Signature]] = {
    "cnn": (nets.Images, {"x": RNG.uniform(0, 256, (20, 28, 28)).astype(np.float32)}, [([28, 28], "float32")]),
    "embedding": (Words, WORDS, [([], "int64"), ([2], "float32")]),
    "transformer": (Transformer, {"tokens": RNG.integers(0, 30, (20, 12))}, [([12], "int64")]),
}


def made(name: str) -> TorchModel:
    factory, data, signature = MODELS[name]
    torch.manual_seed(0)
    model = TorchModel(factory=factory, weights=pack(factory()), kind="classifier", signature=signature)
    return model._set(inputCols=[*data])


@pytest.mark.parametrize("name", MODELS)
def test_every_form_of_a_model_gives_the_scores_of_transform(spark, tmp_path, name):
    model, data = made(name), MODELS[name][1]
    rows = model.transform(frame(data)).select("rawPrediction").collect()
    wanted = np.array([row.rawPrediction.toArray() for row in rows])
    predicted = np.stack(model.predict(data)["rawPrediction"])
    model.exportOnnx(str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [value.name for value in session.get_inputs()] == [*data]
    assert {value.shape[0] for value in (*session.get_inputs(), *session.get_outputs())} == {"batch"}
    (scores,) = session.run(["output"], data)
    model.exportProgram(str(tmp_path / "model.pt2"))
    program = torch.export.load(str(tmp_path / "model.pt2")).module()
    with torch.inference_mode():
        exported = program(*map(torch.from_numpy, data.values())).numpy()
    for found in (predicted, scores, exported):
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


class Sorted(nn.Linear):
    """An operator that ONNX does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(super().forward(x).unsqueeze(1).expand(-1, x.shape[1], -1)).sum(1)


class Random(nn.Linear):
    """Draws other numbers in every runtime."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand_like(x)


CONVOLUTION = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 3), nn.Flatten())


@pytest.mark.parametrize(
    ("module", "message", "params"),
    [
        (Sorted(3, 3), "cannot be exported to ONNX", {}),
        (CONVOLUTION, "onnxruntime lacks some operators of float64: train with", {"precision": "fp64"}),
        (Random(3, 3), "to ONNX: on 1 rows its outputs differ", {}),
        (Sized(lambda rows: rows == 1, lambda y: 7 * y), "Sized cannot be exported: on 1 rows", {}),
        (nets.Bag(), "the rows of 'x' have several lengths.* of one length", {"ragged": "padded", "signature": None}),
    ],
)
def test_what_onnx_lacks_or_computes_otherwise_raises(tmp_path, module, message, params):
    specs = [InputColumn("x", ragged=params.pop("ragged"))] if "ragged" in params else []
    dtype = "float64" if "precision" in params else "float32"
    model = TorchModel(factory=lambda: module, weights=b"", **{"signature": [([3], dtype)]} | params)
    with pytest.raises(InvalidInput, match=message):
        model._set(inputCols=["x"], columnSpecs=specs).exportOnnx(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_missing_packages_raise(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InvalidInput, match=r"pip install 'sparkdl-torch\[onnx\]'"):
        TorchModel(factory=nets.Line, weights=b"", signature=[([3], "float32")]).exportOnnx(tmp_path / "model.onnx")
