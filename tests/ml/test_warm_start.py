"""Training from the weights of an earlier model."""

from __future__ import annotations

import json
import pickle
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pyspark.ml import PipelineModel
from pyspark.ml.feature import StandardScaler
from torch import nn

from sparkdl import TorchModel, WarmStart
from sparkdl.cli.pipeline.stages import _warmed
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from tests.ml.rows import classifier

LINEAR = partial(nn.Linear, 3, 2)


def equal(first: nn.Module, second: nn.Module) -> bool:
    return pack(first) == pack(second)


def test_each_module_has_its_own_copy_of_the_weights():
    earlier = LINEAR()
    start = WarmStart(LINEAR, pack(earlier))
    first, second = start(), start()
    assert equal(first, earlier)
    with torch.no_grad():
        first.weight.zero_()
    assert equal(second, earlier)
    assert equal(pickle.loads(pickle.dumps(start))(), earlier)  # noqa: S301 - our own
    module = LINEAR()
    assert equal(WarmStart(module, pack(earlier))(), earlier)
    assert not equal(module, earlier)  # a given module stays unchanged


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(nn.Linear, 3, 4), r"the saved weights do not fit Linear: [\s\S]*size mismatch"),
        (dict, "the factory returned dict; expected a torch.nn.Module"),
    ],
)
def test_weights_that_do_not_fit_raise(factory, message):
    with pytest.raises(InvalidInput, match=message):
        WarmStart.of(SimpleNamespace(module=LINEAR), factory)


def test_fit_continues_from_an_earlier_model(data, tmp_path):
    run = {"runDir": str(tmp_path / "run"), "checkpointInterval": "1 epoch"}
    estimator = classifier(model=LINEAR, numWorkers=1, batchSize=30, epochs=4, seed=1)
    earlier = estimator.fit(data)
    start = WarmStart.of(earlier, LINEAR)
    later = estimator.copy().setParams(model=start, **run).fit(data)
    first, last = earlier.history[-1]["loss"], later.history[-1]["loss"]
    assert last < first < earlier.history[0]["loss"]
    assert later.history[0]["loss"] < first
    text = json.loads((tmp_path / "run/config.json").read_text())["model"]
    assert start.digest in text
    assert len(text) < 200  # the hash and not the bytes
    with pytest.raises(InvalidInput, match="belongs to"):  # another start is another run
        estimator.copy().setParams(model=WarmStart(LINEAR, pack(LINEAR())), **run).fit(data)
    later.save(str(tmp_path / "model"))  # as the factory alone: nothing is pickled
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert equal(loaded.module(), later.module())

    scaler = StandardScaler(inputCol="features", outputCol="scaled")
    with pytest.warns(UserWarning, match="the model in use has nothing in its place"):
        assert _warmed([scaler, estimator], PipelineModel(stages=[earlier])) == [scaler, estimator]
    [warm] = _warmed([estimator], PipelineModel(stages=[earlier]))
    assert equal(warm.getModel()(), earlier.module())
    with pytest.warns(UserWarning, match="warm_start is ignored: no stage is a PyTorch estimator"):
        assert _warmed([scaler], PipelineModel(stages=[earlier])) == [scaler]
