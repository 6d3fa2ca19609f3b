"""The round loop, with what belongs to any algorithm: validation, patience, memories, what is saved."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from sparkdl.errors import InvalidInput, Stopped, WorkerFailed
from sparkdl.rounds import State, Update, add
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.training.labels import Classes
from sparkdl.training.objective import Objective

ROWS = 120
DRAW = np.random.default_rng(4)
X = DRAW.normal(size=(ROWS, 3))
DATA = {
    "id": np.arange(ROWS),
    "x": X,
    "label": (X @ [1.0, -1.0, 0.5] > 0).astype(np.int64),
    "held": np.arange(ROWS) % 4 == 0,
}
COLUMNS = Columns(
    (InputColumn("x"),), InputColumn("label", "int64"), row_id=InputColumn("id", "int64"), floating="float64"
)
HELD = replace(COLUMNS, validation=InputColumn("held", "bool"))
SGD = partial(torch.optim.SGD, lr=0.5)
OBJECTIVE = Objective(partial(nn.Linear, 3, 2), nn.CrossEntropyLoss(), SGD, precision="fp64")


def run(
    algorithm: Any, columns: Columns = HELD, data: Any = DATA, parts: int = 3, **options: Any
) -> tuple[Rounds, Any, Any]:
    """A run of rounds on this process; what ran, the state and the history."""
    rounds = Rounds(algorithm, **{"objective": OBJECTIVE, "seed": 1} | options)
    with InlineCluster().map_reduce(data, columns, parts=parts) as jobs:
        return rounds, *rounds.run(jobs)


def without_times(history: Any) -> Any:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@dataclass(frozen=True)
class Scripted:
    """An algorithm whose losses are given: weights count the rounds, and rows are written down.

    Attributes:
        losses: of the rounds; the first round of all only prepares.
    """

    losses: tuple[float, ...]
    uses_optimizer = False

    def init(self, objective: Objective, seed: int) -> State:
        return {"weights": objective.build().state_dict(), "round": -1}

    def map(self, objective: Objective, state: State, part: Shard, memory: Any) -> tuple[Update, Any]:
        seen = [] if memory is None else memory["seen"]
        assert len(seen) == state["round"] + 1
        return {"rows": torch.tensor(part.rows)}, {"seen": [*seen, state["round"]]}

    def reduce(self, one: Update, other: Update) -> Update:
        return add(one, other)

    def apply(self, state: State, update: Update) -> State:
        number = state["round"] + 1
        weights = {name: torch.full_like(each, number) for name, each in state["weights"].items()}
        return {"weights": weights, "round": number, "rows": int(update["rows"])}

    def converged(self, state: State) -> bool:
        return bool(state["round"] == len(self.losses))

    def metrics(self, state: State) -> dict[str, Any]:
        return {"loss": self.losses[state["round"] - 1], "rows": state["rows"]} if state["round"] else {}


# ---- the loop --------------------------------------------------------------------------------------------------------


def test_a_round_that_prepares_is_no_row_of_the_history_and_no_round(tmp_path):
    heard: list[Any] = []
    memories = str(tmp_path / "memories")
    _, state, history = run(Scripted((3.0, 2.0, 1.0)), memories=memories, max_rounds=2, listener=heard.append)
    assert [(row["round"], row["loss"]) for row in history] == [(1, 3.0), (2, 2.0)]
    assert heard == history
    assert float(state["weights"]["bias"][0]) == 2


def test_validation_rows_are_not_trained_on_and_are_measured_after_each_round():
    metrics = {"accuracy": MulticlassAccuracy(2, average="micro")}
    rounds, state, history = run(ParallelSGD(rounds=3), objective=replace(OBJECTIVE, metrics=metrics))
    held = DATA["held"]
    assert sum(rounds.seen.training) == np.sum(~held)
    assert sum(rounds.seen.validation) == np.sum(held)
    with torch.no_grad():
        x, label = torch.from_numpy(X[held]), torch.from_numpy(DATA["label"][held])
        scores = nn.functional.linear(x, state["weights"]["weight"], state["weights"]["bias"])
    assert history[-1]["valid_loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, label)), rel=1e-12)
    assert history[-1]["valid_accuracy"] == pytest.approx(float((scores.argmax(1) == label).double().mean()))
    _, other, _ = run(ParallelSGD(rounds=3), data={**DATA, "label": np.where(held, 1 - DATA["label"], DATA["label"])})
    assert all(torch.equal(other["weights"][name], each) for name, each in state["weights"].items())


def test_metrics_without_validation_rows_are_over_the_training_rows_and_as_one_process_has_them():
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

    objective = replace(OBJECTIVE, model=model, loss=nn.BCEWithLogitsLoss(), metrics={"auc": BinaryAUROC()})
    columns = replace(COLUMNS, target=InputColumn("label", "float64"))
    _, state, history = run(LBFGS(l2=0.1), columns, objective=objective)
    scores = torch.from_numpy(X) @ state["weights"]["0.weight"][0]
    metric = BinaryAUROC()
    metric.update(scores, torch.from_numpy(DATA["label"]))
    assert history[-1]["auc"] == pytest.approx(float(metric.compute()))
    assert not any(name.startswith("valid_") for name in history[-1])


def test_patience_ends_with_the_best_rounds_weights(tmp_path):
    losses = (3.0, 1.0, 2.0, 2.5, 0.5)
    rounds, state, history = run(Scripted(losses), COLUMNS, memories=str(tmp_path / "m"), patience=2)
    assert len(history) == 4
    assert rounds.best == 2
    assert float(state["weights"]["bias"][0]) == 2


def test_patience_needs_a_loss(tmp_path):
    with pytest.raises(InvalidInput, match="set validationIndicatorCol"):
        run(ConsensusADMM(), COLUMNS, patience=1, memories=str(tmp_path))


def test_time_and_rounds_end_it():
    assert run(ParallelSGD(rounds=9), max_rounds=2)[2][-1]["round"] == 2
    assert run(ParallelSGD(rounds=9), max_seconds=0)[2] == []


def test_batches_go_through_augment_and_collate_and_evaluation_through_collate_alone():
    def double(inputs: Any, target: Any) -> Any:
        return (2 * inputs[0],), target

    def noise(inputs: Any, target: Any, generator: torch.Generator) -> Any:
        return (inputs[0] + torch.rand(inputs[0].shape, generator=generator, dtype=inputs[0].dtype),), target

    _, plain, _ = run(ParallelSGD(rounds=1), data={**DATA, "x": 2 * X})
    _, doubled, history = run(ParallelSGD(rounds=1), transforms=Transforms(double))
    assert all(torch.equal(doubled["weights"][name], each) for name, each in plain["weights"].items())
    _, noisy, other = run(ParallelSGD(rounds=1), transforms=Transforms(double, noise))
    assert not torch.equal(noisy["weights"]["weight"], doubled["weights"]["weight"])
    assert other[0]["valid_loss"] != history[0]["valid_loss"]


# ---- what is saved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [ParallelSGD(rounds=4), ConsensusADMM(adapt_rounds=2), LBFGS(l2=0.01)])
def test_a_run_that_ended_early_goes_on_as_if_it_had_not(tmp_path, algorithm):
    def kept(name: str, **options: Any) -> Any:
        folder = tmp_path / name
        checkpoints = Checkpoints(str(folder / "checkpoints"), run="a run")
        return run(algorithm, checkpoints=checkpoints, memories=str(folder / "memories"), **options)

    _, whole, history = kept("whole", max_rounds=4)
    kept("halves", max_rounds=2)
    _, halves, continued = kept("halves", max_rounds=4)
    assert without_times(continued) == without_times(history)
    assert all(torch.equal(halves["weights"][name], each) for name, each in whole["weights"].items())
    _, _, again = kept("halves", max_rounds=4)
    assert again == continued


def test_memories_that_no_checkpoint_refers_to_are_deleted(tmp_path):
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), run="a run")
    run(Scripted((1.0,) * 6), memories=str(tmp_path / "memories"), checkpoints=checkpoints)
    assert sorted(os.listdir(tmp_path / "memories")) == ["round-000006", "round-000007"]
    assert len(os.listdir(tmp_path / "memories/round-000007")) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"data": {**DATA, "x": X + 1}},
        {"parts": 2},
        {"data": {name: each[1:] for name, each in DATA.items()}},
    ],
)
def test_other_rows_are_refused(tmp_path, change):
    checkpoints = Checkpoints(str(tmp_path), run="a run")
    run(ParallelSGD(rounds=1), checkpoints=checkpoints)
    with pytest.raises(InvalidInput, match="Take another runDir, or the same data"):
        run(ParallelSGD(rounds=2), checkpoints=checkpoints, **change)


def test_rounds_that_go_on_tell_of_the_earlier_ones_first(tmp_path):
    checkpoints, heard = Checkpoints(str(tmp_path), run="a run"), []
    telling = {"listener": heard.append, "restored": heard.append}
    run(ParallelSGD(rounds=2), checkpoints=checkpoints, **telling)
    assert [row["round"] for row in heard] == [1, 2]
    first = list(heard)
    _, _, history = run(ParallelSGD(rounds=3), checkpoints=checkpoints, **telling)
    assert heard[2:] == [first, history[2]]


def test_who_is_asked_to_stop_saves_and_stops(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), run="a run")
    try:
        with pytest.raises(Stopped, match="ended after round 2"):
            run(
                ParallelSGD(rounds=9),
                checkpoints=checkpoints,
                listener=lambda row: shutdown.request_stop("a test") if row["round"] == 2 else None,
            )
    finally:
        shutdown.forget_stop()
    _, state, history = run(ParallelSGD(rounds=3), checkpoints=checkpoints)
    assert [row["round"] for row in history] == [1, 2, 3]
    assert torch.equal(state["weights"]["bias"], run(ParallelSGD(rounds=3))[1]["weights"]["bias"])


# ---- what cannot be --------------------------------------------------------------------------------------------------


def test_fewer_rows_than_parts_are_trained_on_as_in_as_many():
    data = {name: each[1:3] for name, each in DATA.items()}
    _, state, _ = run(ParallelSGD(rounds=2), COLUMNS, data)
    _, other, _ = run(ParallelSGD(rounds=2), COLUMNS, data, parts=2)
    assert torch.allclose(state["weights"]["weight"], other["weights"]["weight"])


def test_a_validation_column_of_one_kind_is_refused():
    with pytest.raises(InvalidInput, match="every row is a validation row"):
        run(ParallelSGD(), data={**DATA, "held": np.ones(ROWS, bool)})
    with pytest.raises(InvalidInput, match="no row is a validation row"):
        run(ParallelSGD(), data={**DATA, "held": np.zeros(ROWS, bool)})


def test_labels_that_cannot_be_are_refused_before_the_first_round():
    with pytest.raises(InvalidInput, match="holds 7; expected class indices from 0 to 1"):
        run(ParallelSGD(), data={**DATA, "label": np.where(DATA["id"] == 60, 7, DATA["label"])}, classes=Classes(2))
    with pytest.raises(InvalidInput, match="holds 1 in every row"):
        run(ParallelSGD(), data={**DATA, "label": np.ones(ROWS, np.int64)}, classes=Classes())


def test_a_model_that_does_not_take_the_rows_is_told_of_before_the_first_round():
    with pytest.raises(WorkerFailed, match=r"shard 0 in round 0: forward\(\) of Linear raised RuntimeError: mat1"):
        run(ParallelSGD(), objective=replace(OBJECTIVE, model=partial(nn.Linear, 4, 2)))


def test_a_memory_that_no_task_can_see_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"ConsensusADMM keeps a memory of each part; give memories="):
        run(ConsensusADMM())
