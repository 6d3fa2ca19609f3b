"""Training from the weights of an earlier model."""

from __future__ import annotations

import copy
import json
import pickle
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pyspark.ml import PipelineModel
from pyspark.ml.feature import StandardScaler
from torch import nn

from sparkdl import InvalidInput, ParallelSGD, TorchModel, WarmStart
from sparkdl.cli.pipeline.stages import _warmed
from sparkdl.io.weights import pack
from sparkdl.rounds.parameters import module_of, start
from sparkdl.serving.format.export import export, load
from sparkdl.serving.scorer import restored
from sparkdl.training.objective.objective import Objective
from tests.ml import nets
from tests.ml.rows import ROWS, classifier

LINEAR = partial(nn.Linear, 3, 2)
TRAINED = SimpleNamespace(module=LINEAR, _trained=SimpleNamespace(weights=b""))


def equal(first: nn.Module, second: nn.Module) -> bool:
    return pack(first) == pack(second)


def test_each_module_has_its_own_copy_of_the_weights():
    earlier = LINEAR()
    factory = WarmStart(LINEAR, pack(earlier))
    first, second = factory(), factory()
    assert equal(first, earlier)
    with torch.no_grad():
        first.weight.zero_()
    assert equal(second, earlier)
    assert equal(pickle.loads(pickle.dumps(factory))(), earlier)  # noqa: S301 - our own
    module = LINEAR()
    assert equal(WarmStart(module, pack(earlier))(), earlier)
    assert not equal(module, earlier)  # a given module stays unchanged


class Half(nn.Linear):
    """A layer of bfloat16 with an integer that no float has."""

    def __init__(self) -> None:
        super().__init__(3, 2, dtype=torch.bfloat16)
        self.register_buffer("count", torch.tensor(2**60 + 1))
        self.register_buffer("mean", torch.zeros(3))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_weights_keep_their_precision(precision):
    earlier = Objective(Half, nn.MSELoss(), precision=precision).build()
    for value in (*earlier.parameters(), earlier.mean):
        nn.init.uniform_(value)
    later = Objective(WarmStart(Half, pack(earlier)), nn.MSELoss(), precision=precision)
    for module in (later.build(), restored(Half, pack(earlier), precision), module_of(later, start(later, 0)[0])):
        assert equal(module, earlier)


def test_copy_of_a_program_keeps_its_precision():
    program = load(export(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), [torch.ones(2, 3)])).double()
    for value in (*program.parameters(), program.get_buffer("program.1.running_mean")):
        nn.init.uniform_(value)
    assert equal(copy.deepcopy(program), program)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(nn.Linear, 3, 4), r"the saved weights do not fit Linear: [\s\S]*size mismatch"),
        (dict, "the factory returned dict; expected a torch.nn.Module"),
    ],
)
def test_weights_that_do_not_fit_raise(factory, message):
    with pytest.raises(InvalidInput, match=message):
        WarmStart.of(TRAINED, factory)


def test_factory_of_a_warm_start_is_called_with_modelargs():
    start = WarmStart.of(TRAINED, nn.Linear)
    made = classifier(model=start, modelArgs={"in_features": 3, "out_features": 2}).objective().model
    assert pack(made()) == start.weights
    assert (made.factory.func, made.factory.keywords) == (nn.Linear, {"in_features": 3, "out_features": 2})
    for model, arguments, message in (
        (start, {}, "the factory of WarmStart fails with modelArgs={}: .* missing .* 'in_features' and 'out_features'"),
        (start, {"in_features": 3, "out_features": 4}, "size mismatch"),
        (WarmStart(LINEAR(), start.weights), {"in_features": 3}, "model is a Linear, which is made already"),
    ):
        with pytest.raises(InvalidInput, match=message):
            classifier(model=model, modelArgs=arguments).objective()


def test_fit_continues_from_an_earlier_model(data, tmp_path):
    run = {"runDir": str(tmp_path / "run"), "checkpointInterval": "1 epoch"}
    estimator = classifier(model=nets.Seen, numWorkers=1, batchSize=30, epochs=4, seed=1)
    earlier = estimator.fit(data)
    warm = WarmStart.of(earlier, nets.Seen)
    later = estimator.copy().setParams(model=warm, **run).fit(data)
    assert (earlier.module().rows, later.module().rows) == (4 * ROWS, 8 * ROWS)  # extra state
    first, last = earlier.history[-1]["loss"], later.history[-1]["loss"]
    assert last < first < earlier.history[0]["loss"]
    assert later.history[0]["loss"] < first
    text = json.loads((tmp_path / "run/config.json").read_text())["model"]
    assert warm.digest in text
    assert len(text) < 200  # the hash and not the bytes
    with pytest.raises(InvalidInput, match="belongs to"):  # another start is another run
        estimator.copy().setParams(model=WarmStart(nets.Seen, pack(nets.Seen())), **run).fit(data)
    with pytest.raises(InvalidInput, match=r"Seen has extra state, '_extra_state', which rounds cannot average"):
        classifier(model=nets.Seen, strategy=ParallelSGD()).fit(data)
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
