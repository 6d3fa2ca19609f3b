"""Fixed bugs: a test for each, with its story."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.batch import Batch
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.factory import resolve
from sparkdl.ml.run import Run
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.evaluate import as_only_shard, mass_of
from sparkdl.rounds.local_solvers import ConjugateGradient
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.parameters import flatten
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective import Objective
from tests.contracts import algorithm_contract as rounds
from tests.object_store import object_store


def test_gradients_outside_the_optimizer_piled_up() -> None:
    # Only the optimizer's zero_grad dropped gradients: those of other parameters grew, and clipping shrank each step.
    def head(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[2:], lr=0.0)

    objective = Objective(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.MSELoss(), head)
    replica = Replicated().place(objective, World())
    replica.gradients(Batch((torch.ones(2, 1),), torch.ones(2, 1), None, None, 2, 2.0, 1.0))
    replica.apply()
    assert [parameter.grad for parameter in replica.parameters] == [None] * 4


def test_missing_dependency_was_a_missing_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # If a model's module lacked a dependency, the error named the module that had been shipped.
    (tmp_path / "shipped.py").write_text("import not_shipped\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InvalidInput, match="No module named 'not_shipped'"):
        resolve({"path": "shipped:Net", "args": [], "kwargs": {}})


def test_run_on_an_object_store_with_options_lost_its_files(tmp_path: Path) -> None:
    # The file's name went behind the whole URI: the run asked for the region "us-east-1/report.json".
    with object_store(tmp_path) as query:
        Run(f"s3://key:secret@runs/digits?{query}").save("report", {"rows": 7})
    assert (tmp_path / "runs/digits/report.json").read_bytes() == b'{\n  "rows": 7\n}\n'


def test_relative_run_directory_differed_in_every_process(tmp_path, monkeypatch) -> None:
    # Workers resolved it in their own working directories, so its hosts seemed to share no directory.
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    checkpoints = Checkpoints("run/checkpoints", run="a run")
    travelled = cloudpickle.dumps(checkpoints)
    monkeypatch.chdir(tmp_path)
    assert cloudpickle.loads(travelled).folder.path == str(tmp_path / "driver" / "run" / "checkpoints")
    assert checkpoints.folder.path == cloudpickle.loads(travelled).folder.path


def test_client_weighed_as_much_as_its_shard() -> None:
    # The weight of a subset was the sum over the whole shard: all clients of a shard had the same share.
    own = as_only_shard(rounds.parts_of(90)[0], rounds.objective().criterion())
    weights = torch.from_numpy(rounds.data()["w"])
    assert mass_of(own.subset(torch.arange(10), (10,))) == pytest.approx(float(weights[:10].sum()))


def test_failed_line_search_forgot_its_best_point() -> None:
    # Its name was never written: the run repeated the search, or ended with worse weights than it had evaluated.
    algorithm, (shard,) = LBFGS(maxls=1), rounds.parts_of(90)
    _, state = rounds.states(algorithm, [shard], 1)
    trial = state["iterate"]["x"] + 1e-6 * state["direction"]  # better, but not by enough
    state = {**state, "trial": trial, "search": {**state["search"], "t": 1e-6}}
    update, _ = algorithm.map(rounds.objective(), state, shard, None)
    after = algorithm.apply(state, update)
    assert torch.equal(flatten(after["weights"], after["names"]), trial)
    assert str(algorithm.metrics(after)["status"]).endswith("continues from the best point")


def test_quadratic_loss_was_not_quadratic_at_its_minimum() -> None:
    # Tolerances were relative to the first gradient. At the minimum both are rounding, and the loss was rejected.
    algorithm = ConsensusADMM(solver=ConjugateGradient(), abs_tol=0, rel_tol=0)
    found = rounds.states(algorithm, rounds.parts_of(90), 60)
    assert found[-1]["round"] == 59


def test_tied_weight_went_back_to_its_start() -> None:
    # A state_dict has a tied parameter under each name, and one was trained: each round began with the first weights.
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    x = np.random.default_rng(5).normal(size=(40, 3))
    objective = Objective(Tied, nn.MSELoss(), precision="fp64")
    columns = Columns((InputColumn("x"),), InputColumn("y"), floating="float64")
    with InlineCluster().map_reduce({"x": x, "y": 2 * x}, columns, num_shards=2) as jobs:
        state, history = Rounds(LBFGS(gtol=1e-8), objective).run(jobs)
    assert history[-1]["objective"] < 1e-9
    assert list(state["weights"]) == ["a.weight"]
