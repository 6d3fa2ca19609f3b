"""Training that starts from the weights of an earlier model."""

from __future__ import annotations

import json
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import PipelineModel
from pyspark.ml.feature import StandardScaler
from torch import nn

from sparkdl import TorchClassifier, TorchModel, WarmStart
from sparkdl.cli.pipeline.stages import _warmed
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.formatting import format_full_value
from tests.sessions import frame

LINEAR = partial(nn.Linear, 3, 2)


def equal(one: nn.Module, other: nn.Module) -> bool:
    return pack(one) == pack(other)


def test_modules_have_the_weights_each_its_own():
    earlier = LINEAR()
    start = WarmStart(LINEAR, pack(earlier))
    first, second = start(), start()
    assert equal(first, earlier)
    with torch.no_grad():
        first.weight.zero_()
    assert equal(second, earlier)
    assert equal(pickle.loads(pickle.dumps(start))(), earlier)  # noqa: S301 - our own
    other = LINEAR()
    assert equal(WarmStart(other, pack(earlier))(), earlier)
    assert not equal(other, earlier)  # a module that is given stays as it is


def test_it_is_known_by_its_weights():
    one, other = (WarmStart(LINEAR, pack(LINEAR())) for _ in range(2))
    assert format_full_value(one) != format_full_value(other)
    assert format_full_value(one) == format_full_value(WarmStart(LINEAR, one.weights))
    assert one.digest in format_full_value(one)
    assert len(format_full_value(one)) < 200  # not by the bytes themselves


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (partial(nn.Linear, 3, 4), r"the saved weights do not fit Linear: [\s\S]*size mismatch"),
        (partial(nn.Conv1d, 3, 2, 1), "the saved weights do not fit Conv1d"),
        (dict, "the factory returned dict; expected a torch.nn.Module"),
    ],
)
def test_weights_that_do_not_fit_are_refused_at_once(factory, said):
    class Earlier:
        def module(self) -> nn.Module:
            return LINEAR()

    with pytest.raises(InvalidInput, match=said):
        WarmStart.of(Earlier(), factory)


@pytest.fixture(scope="module")
def rows(spark):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3)).astype(np.float32)
    return frame({"id": np.arange(200), "features": x, "label": (x.sum(1) > 0).astype(np.int64)}).cache()


def test_a_fit_goes_on_from_an_earlier_model_and_is_saved_without_it(spark, rows, tmp_path):
    estimator = TorchClassifier(
        model=LINEAR, optimizer=partial(torch.optim.SGD, lr=0.1), idCol="id", batchSize=50, epochs=4, seed=1
    )
    earlier = estimator.fit(rows)
    start = WarmStart.of(earlier, LINEAR)
    later = estimator.copy({estimator.model: start, estimator.runDir: str(tmp_path / "run")}).fit(rows)
    first, last = earlier.history[-1]["loss"], later.history[-1]["loss"]
    assert last < first < earlier.history[0]["loss"]
    assert later.history[0]["loss"] < first
    assert start.digest in json.loads((tmp_path / "run/config.json").read_text())["model"]

    later.save(str(tmp_path / "model"))  # as the factory alone: nothing is pickled
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert equal(loaded.module(), later.module())


def test_another_start_is_another_run(spark, rows, tmp_path):
    starts = [WarmStart(LINEAR, pack(LINEAR())) for _ in range(2)]
    estimator = TorchClassifier(model=starts[0], idCol="id", runDir=str(tmp_path), checkpointInterval="1 epoch")
    estimator.fit(rows)
    with pytest.raises(InvalidInput, match="belongs to"):
        estimator.setModel(starts[1]).fit(rows)


def test_stages_that_the_model_in_use_does_not_have_stay_and_start_anew(spark, rows):
    scaler = StandardScaler(inputCol="features", outputCol="scaled")
    classifier = TorchClassifier(model=LINEAR, idCol="id", batchSize=50, epochs=1)
    earlier = PipelineModel(stages=[classifier.fit(rows)])
    with pytest.warns(UserWarning, match="the model in use has nothing in its place"):
        assert _warmed([scaler, classifier], earlier) == [scaler, classifier]
    [warm] = _warmed([classifier], earlier)
    assert equal(warm.getModel()(), earlier.stages[0].module())
    with pytest.warns(UserWarning, match="warm_start is ignored: no stage is a PyTorch estimator"):
        assert _warmed([scaler], earlier) == [scaler]
