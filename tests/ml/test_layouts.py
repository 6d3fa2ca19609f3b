"""The Param ``layout``: fits whose workers hold slices, and settings that a layout refuses before the launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl import Bagging, InvalidInput, ParallelSGD, TorchClassifier
from sparkdl.ml.model import TorchModel
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.contracts.together import Together
from tests.ml import nets, rows
from tests.ml.rows import ROWS

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
regressor = partial(rows.regressor, optimizer=SGD, batchSize=ROWS, precision="fp64", epochs=3, numWorkers=2)


@dataclass(frozen=True)
class Narrow(Replicated):
    """A layout that refuses wide models."""

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        assert all(parameter.is_meta for parameter in module.parameters())
        raise InvalidInput(f"no model with {sum(one.numel() for one in module.parameters())} numbers on {workers}.")


def test_workers_with_slices_fit_save_and_score(data, tmp_path):
    whole = regressor().fit(data)
    fitted = regressor(layout=Sharded(), runDir=str(tmp_path / "run"), checkpointInterval=1).fit(data)
    torch.testing.assert_close(fitted.module().state_dict(), whole.module().state_dict(), rtol=0, atol=1e-12)
    fitted.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.transform(data).collect() == fitted.transform(data).collect()
    longer = regressor(runDir=str(tmp_path / "run"), checkpointInterval=1, epochs=5).fit(data)  # another layout resumes
    expected = regressor(epochs=5).fit(data).module().state_dict()
    torch.testing.assert_close(longer.module().state_dict(), expected, rtol=0, atol=1e-12)
    assert [row["epoch"] for row in longer.history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": Together(), "numWorkers": 3}, r"Together\(\) takes multiples of 2 workers, and numWorkers is 3"),
        ({"layout": Together(), "minWorkers": 1}, r"Together\(\) takes multiples of 2 workers, and minWorkers is 1"),
        ({"layout": Narrow()}, "no model with 4 numbers on 2"),
        ({"layout": Replicated(), "syncBatchNorm": True}, "expected one of the two Params"),
        ({"layout": Sharded(), "syncBatchNorm": True}, "expected one of the two Params"),
        ({"layout": Replicated(True), "syncBatchNorm": False}, "expected one of the two Params"),
        ({"layout": Replicated}, "a layout, such as Replicated"),
        ({"strategy": ParameterServer(backup=2)}, "backup is 2, and there are 2 workers"),
        ({"strategy": ParameterServer(), "layout": Sharded()}, "workers hold slices of the model"),
        ({"strategy": ParameterServer(), "precision": "fp16"}, "precision is 'fp16'"),
        ({"layout": Together(), "strategy": ParallelSGD()}, "needs 2 workers, and rounds, and members"),
    ],
)
def test_settings_that_do_not_fit_raise_before_the_launch(data, settings, message):
    with pytest.raises((InvalidInput, TypeError), match=message):
        regressor(**settings).fit(data)


def test_number_of_workers_is_a_multiple(data):
    fitted = regressor(layout=Together(), numWorkers=None, batchSize=16).fit(data)
    assert fitted.report["workers"][0] % 2 == 0


def test_rounds_and_members_in_tasks_ignore_a_layout_of_one_worker(data):
    with pytest.warns(UserWarning, match=r"layout=Sharded\(.*\) is ignored"):
        regressor(layout=Sharded(), strategy=ParallelSGD(rounds=1)).fit(data)
    frame = data.selectExpr("x AS features", "CAST(label AS INT) AS label", "row AS id")
    base = TorchClassifier(model=nets.two_scores, numWorkers=1, batchSize=16, epochs=1, idCol="id")
    with pytest.warns(UserWarning, match=r"layout is Sharded\(.*\); members that train in tasks ignore it"):
        fitted: Any = Bagging(base=base.copy({base.layout: Sharded()}), numModels=2).fit(frame)
    assert len(fitted.models) == 2
    with pytest.raises(InvalidInput, match="needs 2 workers"):
        Bagging(base=base.copy({base.layout: Together()}), numModels=2).fit(frame)
    assert np.isfinite(fitted.models[0].history[-1]["loss"])
