"""The round loop: validation, patience, transforms, local states, checkpoints, and data that raises."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from sparkdl import InlineCluster
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster import shutdown
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.errors import Fenced, InvalidInput, Stopped, WorkerFailed
from sparkdl.rounds import State, Update, add
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_state import LocalState
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.labels import Classes
from sparkdl.training.objective.objective import Objective
from tests.object_store import object_store

ROWS = 120
X = np.random.default_rng(4).normal(size=(ROWS, 3))
HELD = np.arange(ROWS) % 4 == 0
LABEL = (X @ [1.0, -1.0, 0.5] > 0).astype(np.int64)
DATA = {"id": np.arange(ROWS), "x": X, "label": LABEL, "held": HELD}
COLUMNS = Columns(
    (InputColumn("x"),), InputColumn("label", "int64"), row_id=InputColumn("id", "int64"), floating="float64"
)
VALIDATED = replace(COLUMNS, validation=InputColumn("held", "bool"))
SGD = partial(torch.optim.SGD, lr=0.5)
OBJECTIVE = Objective(partial(nn.Linear, 3, 2), nn.CrossEntropyLoss(), SGD, precision="fp64")


def run(algorithm: Any, columns: Columns = VALIDATED, data: Any = DATA, num_shards: int = 3, **options: Any) -> Any:
    """The ``Rounds`` that ran in this process, its state and its history."""
    rounds = Rounds(algorithm, **{"objective": OBJECTIVE, "seed": 1} | options)
    with InlineCluster().map_reduce(data, columns, num_shards=num_shards) as jobs:
        return rounds, *rounds.run(jobs)


def equal(one: State, other: State) -> bool:
    return all(torch.equal(one["weights"][name], tensor) for name, tensor in other["weights"].items())


@dataclass(frozen=True)
class Scripted:
    """An algorithm with given losses: all weights are the number of the round; the first round prepares."""

    losses: tuple[float, ...]
    uses_optimizer = False

    def init(self, objective: Objective, seed: int) -> State:
        return {"weights": objective.build().state_dict(), "round": -1}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Any) -> tuple[Update, Any]:
        seen = [] if memory is None else memory["seen"]
        assert len(seen) == state["round"] + 1
        return {"rows": torch.tensor(shard.rows)}, {"seen": [*seen, state["round"]]}

    reduce = staticmethod(add)

    def apply(self, state: State, update: Update) -> State:
        number = state["round"] + 1
        weights = {name: torch.full_like(each, number) for name, each in state["weights"].items()}
        return {"weights": weights, "round": number, "rows": int(update["rows"])}

    def converged(self, state: State) -> bool:
        return bool(state["round"] == len(self.losses))

    def metrics(self, state: State) -> dict[str, Any]:
        return {"loss": self.losses[state["round"] - 1], "rows": state["rows"]} if state["round"] else {}


# ---- the loop --------------------------------------------------------------------------------------------------------


def test_preparatory_round_counts_nowhere(tmp_path):
    rows: list[Any] = []
    algorithm = Scripted((3.0, 2.0, 1.0))
    _, state, history = run(algorithm, memories=str(tmp_path / "states"), max_rounds=2, listener=rows.append)
    assert [(row["round"], row["loss"]) for row in history] == [(1, 3.0), (2, 2.0)]
    assert rows == history
    assert float(state["weights"]["bias"][0]) == 2


def test_validation_rows_are_measured_and_not_trained_on():
    metrics = {"accuracy": MulticlassAccuracy(2, average="micro")}
    rounds, state, history = run(ParallelSGD(rounds=3), objective=replace(OBJECTIVE, metrics=metrics))
    assert (sum(rounds.summary.training), sum(rounds.summary.validation)) == (np.sum(~HELD), np.sum(HELD))
    label, weights = torch.from_numpy(LABEL[HELD]), state["weights"]
    scores = nn.functional.linear(torch.from_numpy(X[HELD]), weights["weight"], weights["bias"])
    assert history[-1]["valid_loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, label)), rel=1e-12)
    assert history[-1]["valid_accuracy"] == pytest.approx(float((scores.argmax(1) == label).double().mean()))
    _, other, _ = run(ParallelSGD(rounds=3), data={**DATA, "label": np.where(HELD, 1 - LABEL, LABEL)})
    assert equal(state, other)


def test_metrics_without_validation_rows_cover_all_training_rows():
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

    objective = replace(OBJECTIVE, model=model, loss=nn.BCEWithLogitsLoss(), metrics={"auc": BinaryAUROC()})
    columns = replace(COLUMNS, target=InputColumn("label", "float64"))
    _, state, history = run(LBFGS(l2=0.1), columns, objective=objective)
    metric = BinaryAUROC()
    metric.update(torch.from_numpy(X) @ state["weights"]["0.weight"][0], torch.from_numpy(LABEL))
    assert history[-1]["auc"] == pytest.approx(float(metric.compute()))
    assert not any(name.startswith("valid_") for name in history[-1])


@pytest.mark.parametrize(
    ("losses", "options", "rounds_and_bias"),
    [
        ((3.0, 1.0, 2.0, 2.5, 0.5), {"keep_best": True}, (4, 2, 2)),
        ((3.0, 1.0, 2.0, 2.5, 0.5), {"keep_best": False}, (4, 2, 4)),
        ((3.0, 2.9, 2.8, 2.0), {"min_delta": 0.5}, (3, 1, 3)),
    ],
)
def test_patience_stops_and_keep_best_returns_weights_of_best_round(tmp_path, losses, options, rounds_and_bias):
    rounds, state, history = run(Scripted(losses), COLUMNS, patience=2, memories=str(tmp_path / "states"), **options)
    assert (len(history), rounds.best, float(state["weights"]["bias"][0])) == rounds_and_bias


def test_rounds_compare_a_column_of_the_algorithm(tmp_path):
    options = {"objective": replace(OBJECTIVE, monitor="primal", monitor_mode="max"), "memories": str(tmp_path)}
    rounds, _, history = run(ConsensusADMM(), COLUMNS, keep_best=True, max_rounds=4, **options)
    primal = [row["primal"] for row in history]
    assert rounds.best == 1 + primal.index(max(primal))
    with pytest.raises(InvalidInput, match="set validationFraction or validationIndicatorCol"):
        run(ConsensusADMM(), COLUMNS, patience=1, memories=str(tmp_path))


def test_training_is_augmented_and_collated_and_validation_is_collated():
    def double(inputs: Any, target: Any) -> Any:
        return (2 * inputs[0],), target

    def noise(inputs: Any, target: Any, generator: torch.Generator) -> Any:
        return (inputs[0] + torch.rand(inputs[0].shape, generator=generator, dtype=inputs[0].dtype),), target

    _, plain, expected = run(ParallelSGD(rounds=1), data={**DATA, "x": 2 * X})
    _, doubled, history = run(ParallelSGD(rounds=1), transforms=Transforms(double))
    assert equal(plain, doubled)
    assert history[0]["valid_loss"] == expected[0]["valid_loss"]
    _, noisy, other = run(ParallelSGD(rounds=1), transforms=Transforms(double, noise))
    assert not equal(noisy, doubled)
    weights = noisy["weights"]
    scores = nn.functional.linear(torch.from_numpy(2 * X[HELD]), weights["weight"], weights["bias"])
    loss = nn.functional.cross_entropy(scores, torch.from_numpy(LABEL[HELD]))
    assert other[0]["valid_loss"] == pytest.approx(float(loss), rel=1e-12)


# ---- local states --------------------------------------------------------------------------------------------------


def test_pickled_copy_reads_state_by_name_until_its_round_is_deleted(tmp_path):
    with object_store(tmp_path) as query:
        for folder in (str(tmp_path / "states"), f"s3://key:secret@runs/states?{query}"):
            states = LocalState(folder)
            states.take_over()
            name = states.write(3, 1, {"x": torch.arange(3.0), "rho": 0.5})
            other = states.write(4, 1, {})
            read = cloudpickle.loads(cloudpickle.dumps(states)).read
            assert torch.equal(read(name)["x"], torch.arange(3.0))
            assert read(name)["rho"] == 0.5
            assert name.startswith("round-000003/shard-00001-")
            assert states.write(3, 1, {}) != name
            states.forget(3)
            states.forget(-1)
            with pytest.raises(FileNotFoundError):
                read(name)
            assert read(other) == {}
            states.withdraw()
            for call in (partial(read, other), partial(states.write, 4, 1, {})):
                with pytest.raises(InvalidInput, match="not share the driver's directory"):
                    call()
            assert "secret" not in repr(states)


def test_local_states_without_checkpoint_are_deleted(tmp_path):
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), run="a run")
    run(Scripted((1.0,) * 6), memories=str(tmp_path / "states"), checkpoints=checkpoints)
    assert sorted(os.listdir(tmp_path / "states")) == ["round-000006", "round-000007"]
    assert len(os.listdir(tmp_path / "states/round-000007")) == 3


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_resume_reports_earlier_rounds_first_and_rejects_other_rows(tmp_path):
    checkpoints, heard = Checkpoints(str(tmp_path), run="a run"), []
    options = {"checkpoints": checkpoints, "listener": heard.append, "restored": heard.append}
    run(ParallelSGD(rounds=2), **options)
    first = list(heard)
    assert [row["round"] for row in first] == [1, 2]
    _, _, history = run(ParallelSGD(rounds=3), **options)
    assert heard[2:] == [first, history[2]]
    fewer = {name: each[1:] for name, each in DATA.items()}
    for change in ({"data": {**DATA, "x": X + 1}}, {"num_shards": 2}, {"data": fewer}):
        with pytest.raises(InvalidInput, match="runDir, or the same data"):
            run(ParallelSGD(rounds=4), checkpoints=checkpoints, **change)


def test_driver_saves_no_round_after_another_one_has_resumed_its_run(tmp_path):
    def driven(algorithm: Any) -> Any:
        return run(algorithm, checkpoints=Checkpoints(str(tmp_path), run="a run"), memories=str(tmp_path / "states"))

    class Overtaken(Scripted):
        def apply(self, state: State, update: Update) -> State:
            if state["round"] == 1:
                driven(Scripted(self.losses))
            return super().apply(state, update)

    with pytest.raises(Fenced, match="attempt 0 may not commit"):
        driven(Overtaken((3.0, 2.0, 1.0)))
    _, _, history = driven(Scripted((3.0, 2.0, 1.0)))
    assert [row["loss"] for row in history] == [3.0, 2.0, 1.0]
    assert not [*tmp_path.glob("attempt-0000-*-step-0000000004")]


def test_stop_request_saves_finished_rounds(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), run="a run")

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            shutdown.request_stop("a test")

    try:
        with pytest.raises(Stopped, match="ended after round 2"):
            run(ParallelSGD(rounds=9), checkpoints=checkpoints, listener=stop)
    finally:
        shutdown.forget_stop()
    _, state, history = run(ParallelSGD(rounds=3), checkpoints=checkpoints)
    assert [row["round"] for row in history] == [1, 2, 3]
    assert equal(state, run(ParallelSGD(rounds=3))[1])


LABELS = {"one": np.ones(ROWS, np.int64), "seven": np.where(DATA["id"] == 60, 7, LABEL)}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": {**DATA, "held": np.ones(ROWS, bool)}}, InvalidInput, "every row is a validation row"),
        ({"data": {**DATA, "held": np.zeros(ROWS, bool)}}, InvalidInput, "no row is a validation row"),
        (
            {"data": {**DATA, "label": LABELS["seven"]}, "classes": Classes(2)},
            InvalidInput,
            "holds 7; expected class indices from 0 to 1",
        ),
        ({"data": {**DATA, "label": LABELS["one"]}, "classes": Classes()}, InvalidInput, "holds 1 in every row"),
        (
            {"objective": replace(OBJECTIVE, model=partial(nn.Linear, 4, 2))},
            WorkerFailed,
            r"shard 0 in round 0: forward\(\) of Linear raised RuntimeError: mat1",
        ),
        ({"algorithm": ConsensusADMM()}, InvalidInput, r"ConsensusADMM .* memories="),
    ],
)
def test_unusable_data_raises(options, error, message):
    with pytest.raises(error, match=message):
        run(**{"algorithm": ParallelSGD()} | options)
