"""The gang loop, alone and between two members: what it keeps, what it counts, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError

from sparkdl.cluster.group.world import Group
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import unpack
from sparkdl.telemetry.event import Event
from sparkdl.training.loop import Training
from sparkdl.training.monitor import average_buffers
from sparkdl.training.objective import Objective
from sparkdl.training.spec import Trained
from tests.contracts import work
from tests.contracts.strategy_contract import ROWS, numbers

COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("row"))
SEEDED = work.Seeded(work.Net)
OBJECTIVE = Objective(SEEDED, nn.MSELoss(), partial(torch.optim.SGD, lr=0.05))


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2) as cluster:
        yield cluster


def alone(training: Training, columns: Columns = COLUMNS, data: Any = None, **options: Any) -> Trained:
    (trained,) = InlineCluster().gang(training, numbers() if data is None else data, columns, **options)
    return trained


def loaded(trained: Trained, module: nn.Module) -> nn.Module:
    unpack(trained.weights, module)
    return module


# ---- what comes back --------------------------------------------------------------------------------------------


def test_weights_come_from_rank_0_and_the_history_from_all(pair):
    first, second = pair.gang(Training(OBJECTIVE, 16, epochs=2), numbers(), COLUMNS)
    assert second.weights == b""
    module = loaded(first, work.Net())
    assert any((a != b).any() for a, b in zip(module.parameters(), SEEDED().parameters(), strict=True))
    for ours, theirs in zip(first.history, second.history, strict=True):
        assert {name: ours[name] for name in ("epoch", "step", "samples", "loss")} == {
            name: theirs[name] for name in ("epoch", "step", "samples", "loss")
        }
    assert [(row["epoch"], row["step"], row["samples"]) for row in first.history] == [(1, 3, ROWS), (2, 6, 2 * ROWS)]
    assert (first.report["rows"], first.report["output"]) == (ROWS // 2, [])
    elements = sum(parameter.numel() + 1 for parameter in module.parameters())
    assert first.report["bytes_per_step"] == 4 * elements  # gradients, and who has one


def test_the_loss_is_the_mean_over_the_epoch():
    still = replace(OBJECTIVE, optimizer=partial(torch.optim.SGD, lr=0.0))
    trained = alone(Training(still, 7, epochs=2))
    data = numbers()
    with torch.no_grad():
        output = SEEDED()(torch.tensor(data["x"], dtype=torch.float32))
        expected = nn.functional.mse_loss(output, torch.tensor(data["y"], dtype=torch.float32)).item()
    assert [row["loss"] for row in trained.history] == [pytest.approx(expected, rel=1e-6)] * 2
    assert trained.report["bytes_per_step"] == 0


def test_metrics_are_of_the_training_rows_where_there_are_no_others():
    data = numbers()
    data["label"] = np.maximum(data["label"], 0)
    objective = Objective(
        work.Seeded(work.Classifier),
        nn.CrossEntropyLoss(),
        partial(torch.optim.SGD, lr=0.0),
        metrics={"accuracy": MulticlassAccuracy(4, average="micro"), "recall": MulticlassAccuracy(4, average="none")},
    )
    (row,) = alone(Training(objective, 7), replace(COLUMNS, target=InputColumn("label")), data).history
    with torch.no_grad():
        predicted = objective.build()(torch.tensor(data["x"], dtype=torch.float32)).argmax(1).numpy()
    right = predicted == data["label"]
    assert row["accuracy"] == pytest.approx(right.mean())
    assert row["recall"] == pytest.approx([right[data["label"] == label].mean() for label in range(4)])


def test_validation_rows_are_kept_out_of_training(pair):
    objective = replace(OBJECTIVE, metrics={"error": MeanSquaredError()}, precision="fp64")
    columns = replace(COLUMNS, validation=InputColumn("held", "bool"), floating="float64")
    data = numbers()
    data["held"] = np.arange(ROWS) >= 40  # all of them on the second member
    training = Training(objective, 8, epochs=2)
    both = pair.gang(training, data, columns)[0]
    only = alone(training, replace(columns, validation=None), {name: array[:40] for name, array in data.items()})
    assert [row["samples"] for row in both.history] == [40, 80]
    assert both.history[0]["step"] == 5
    assert "error" not in both.history[0]
    with torch.no_grad():
        output = loaded(both, objective.build())(torch.tensor(data["x"][40:]))
        expected = nn.functional.mse_loss(output, torch.tensor(data["y"][40:])).item()
    assert both.history[-1]["valid_loss"] == pytest.approx(expected, rel=1e-12)
    assert both.history[-1]["valid_error"] == pytest.approx(expected, rel=1e-6)
    assert set(only.history[0]) == {"epoch", "step", "samples", "loss", "error", "seconds", "rows_per_second"}


def test_the_callers_random_numbers_and_model_are_left_alone():
    module = work.Net()
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    trained = alone(Training(replace(OBJECTIVE, model=module), 16, epochs=2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(tensor, start[name]) for name, tensor in module.state_dict().items())
    assert any(
        not torch.equal(tensor, start[name]) for name, tensor in loaded(trained, work.Net()).state_dict().items()
    )


def test_seeds_decide():
    random = replace(OBJECTIVE, model=work.Net)
    runs = [alone(Training(random, 16, seed=seed)).weights for seed in (0, 1, 0, 2**40)]
    assert runs[0] == runs[2]
    assert len(set(runs)) == 3


def test_rows_come_in_the_order_of_their_ids_where_they_are_not_shuffled():
    training = Training(OBJECTIVE, 20, epochs=2, shuffle=False)
    (found,) = InlineCluster().gang(work.Fit(training), numbers(), COLUMNS)
    np.testing.assert_array_equal(np.concatenate(found["steps"]), [*range(ROWS), *range(ROWS)])


def test_a_model_may_be_its_own_target():
    objective = Objective(partial(nn.Linear, 3, 3), nn.MSELoss(), partial(torch.optim.Adam, lr=0.1))
    trained = alone(Training(objective, 16, epochs=20), replace(COLUMNS, target=None))
    assert trained.history[-1]["loss"] < 0.1 * trained.history[0]["loss"]
    assert trained.report["output"] == [3]


def test_a_model_may_have_several_inputs_and_outputs():
    objective = Objective(TwoHeads, TwoLosses(), partial(torch.optim.SGD, lr=0.05))
    columns = replace(COLUMNS, inputs=(InputColumn("x"), InputColumn("weight")))
    trained = alone(Training(objective, 16, epochs=3), columns)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert trained.report["output"] is None


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 1), nn.Linear(1, 1)

    def forward(self, x, weight):
        return {"one": self.one(x).squeeze(-1), "other": self.other(weight[:, None]).squeeze(-1)}


class TwoLosses:
    def __call__(self, output, target):
        return (output["one"] - target) ** 2 + (output["other"] - target) ** 2


# ---- events -----------------------------------------------------------------------------------------------------


def test_members_tell_how_far_they_are(pair):
    events: list[Event] = []
    (first, _) = pair.gang(Training(OBJECTIVE, 16, epochs=2), numbers(), COLUMNS, listener=events.append)
    progress = [event for event in events if event.kind == "progress"]
    epochs = [event for event in events if event.kind == "epoch"]
    assert {event.rank for event in progress} == {0, 1}
    assert {event.rank for event in epochs} == {0}
    progress = [event for event in progress if event.rank == 0]
    assert progress[0].clock == {"epoch": 0, "step": 1, "samples": 16}
    assert (progress[0].payload["epochs"], progress[0].payload["steps"]) == (2, 3)
    assert progress[0].payload["loss"] > 0
    assert [event.clock["epoch"] for event in epochs] == [1, 2]
    assert [event.payload for event in epochs] == first.history


def test_the_phases_of_a_member_are_those_that_its_events_tell_of(pair):
    events: list[Event] = []
    trained = pair.gang(Training(OBJECTIVE, 16, epochs=3), numbers(), COLUMNS, listener=events.append)
    for rank, member in enumerate(trained):
        told = [event.payload for event in events if event.kind == "step" and event.rank == rank]
        assert sum(each["steps"] for each in told) == 9
        assert sum(each["rows"] for each in told) == 3 * member.report["rows"]
        assert sum(each["bytes"] for each in told) == 9 * member.report["bytes_per_step"]
        assert {"feed", "forward", "backward", "exchange", "update"} <= set(member.report["phases"])
        for phase, seconds in member.report["phases"].items():
            assert seconds == pytest.approx(sum(each["seconds"].get(phase, 0.0) for each in told), abs=1e-5)


def test_phases_are_most_of_the_seconds_of_training():
    report = alone(Training(OBJECTIVE, 4, epochs=20)).report
    assert sum(report["phases"].values()) == pytest.approx(report["train_seconds"], rel=0.5)


def test_what_is_not_measured_is_not_told():
    events: list[Event] = []
    report = alone(Training(OBJECTIVE, 16, measured=False), listener=events.append).report
    assert not report["phases"]
    assert not {"step", "progress"} & {event.kind for event in events}
    assert "epoch" in {event.kind for event in events}


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["batch_size", "epochs", "micro_batches"])
def test_settings_are_checked(setting):
    with pytest.raises(InvalidInput, match=f"{setting} is 0; expected at least 1"):
        Training(**{"objective": OBJECTIVE, "batch_size": 1, setting: 0})


def test_there_have_to_be_rows():
    with pytest.raises(InvalidInput, match="no data to train on"):
        InlineCluster().gang(Training(OBJECTIVE, 16))
    data = numbers() | {"held": np.ones(ROWS, bool)}
    with pytest.raises(InvalidInput, match="every row is a validation row"):
        alone(Training(OBJECTIVE, 16), replace(COLUMNS, validation=InputColumn("held", "bool")), data)


def test_a_validation_column_without_validation_rows_is_refused():
    data = numbers() | {"held": np.zeros(ROWS, bool)}
    with pytest.raises(InvalidInput, match="no row is a validation row"):
        alone(Training(OBJECTIVE, 16), replace(COLUMNS, validation=InputColumn("held", "bool")), data)


def test_rows_that_weigh_nothing_change_nothing():
    data = numbers() | {"weight": np.zeros(ROWS)}
    trained = alone(Training(OBJECTIVE, 16), replace(COLUMNS, weight=InputColumn("weight")), data)
    assert np.isnan(trained.history[0]["loss"])
    for found, start in zip(loaded(trained, work.Net()).parameters(), SEEDED().parameters(), strict=True):
        assert torch.equal(found, start)


# ---- buffers ----------------------------------------------------------------------------------------------------


def scaled(world, part):
    module = nn.Module()
    shares = (0.1, 0.9)
    module.register_buffer("own", torch.tensor([float(world.rank), 1.0]))
    module.register_buffer("same", torch.tensor([0.1, -float("inf"), 3.4e38]))
    module.register_buffer("narrow", torch.tensor([0.1]).half())
    module.register_buffer("count", torch.tensor(world.rank))
    average_buffers(module, world.group(), shares[world.rank])
    return {name: buffer.tolist() for name, buffer in module.named_buffers()}


def test_buffers_are_averaged_by_share(pair):
    for rank, found in enumerate(pair.gang(scaled)):
        assert found["own"] == pytest.approx([0.9, 1.0])
        assert found["same"] == torch.tensor([0.1, -float("inf"), 3.4e38]).tolist()
        assert found["narrow"] == torch.tensor([0.1]).half().tolist()
        assert found["count"] == rank


def test_alone_buffers_stay_as_they_are():
    module = nn.BatchNorm1d(2)
    average_buffers(module, Group(), 1.0)
    assert module.running_var.tolist() == [1.0, 1.0]
