"""Early stopping without a gang, and on one."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.io.weights import unpack
from sparkdl.training.callbacks.early_stopping import EarlyStopping, GangEarlyStopping
from sparkdl.training.layouts import Workers
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.loop import Training
from sparkdl.training.objective.monitored_value import MODES, check_monitor, mode_of, monitored
from sparkdl.training.objective.objective import Objective

COLUMNS = Columns((InputColumn("x"),), InputColumn("y", "float32"), validation=InputColumn("held", "bool"))


def line() -> nn.Module:
    module = nn.Linear(1, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module


def keeping(module: nn.Module, patience: int | None) -> GangEarlyStopping:
    replica = ModuleReplica(Objective(line, nn.MSELoss()), module, Workers.of(World()))
    return GangEarlyStopping(replica, Group(), EarlyStopping(patience), keep=True)


@pytest.mark.parametrize(
    ("losses", "patience", "stops", "best"),
    [
        ([3, 2, 1], 1, None, 3),
        ([3, 2, 2, 2], 2, 4, 2),
        ([3, 2, 4, 4], 2, 4, 2),
        ([1, 2, 0.5, 2, 2], 2, 5, 3),
        ([1, 1, 1], 1, 2, 1),
        ([math.nan, 1, 2], 1, 1, None),
        ([math.nan, 1, 2, 3], 2, 4, 2),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_best_epoch_and_end(losses, patience, stops, best, restored):
    """The same with a new object after every epoch, restored from the state of the one before."""
    module = line()
    stopping = keeping(module, patience)
    for epoch, loss in enumerate(losses, start=1):
        module.bias.data.fill_(epoch)
        if restored:
            state = unpack_state(pack_state(stopping.state_dict()))
            stopping = keeping(module, patience)
            stopping.load_state_dict(state)
        stopping.after(epoch, loss)
        if stopping.finished:
            break
    else:
        epoch = None
    assert (epoch, stopping.finished, stopping.epochs.best) == (stops, stops is not None, best)
    kept = line()
    unpack(merge_weights([b"".join(stopping.packed_weights())]), kept)
    assert kept.bias.item() == (best or module.bias.item())


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [("min", [3.0, 2.0, 1.95, 1.8, 1.75, 1.71], (4, 1.8)), ("max", [0.2, math.inf, 0.6, 0.65, 0.5], (3, 0.6))],
)
def test_value_within_tolerance_is_no_better(mode, values, best):
    stopping = EarlyStopping(patience=2, tol=0.1, mode=mode)
    assert [stopping.after(*pair) for pair in enumerate(values, start=1)] == [*[False] * (len(values) - 1), True]
    assert (stopping.best, stopping.value) == best
    assert not any(EarlyStopping().after(number, 1.0) for number in range(1, 6))


ACCURACY = {"accuracy": MulticlassAccuracy(2), "error": MeanSquaredError(), "sum": MulticlassAccuracy(2) + 1}


@pytest.mark.parametrize(
    ("monitor", "validated", "in_rounds", "message"),
    [
        (None, True, False, None),
        ("loss", True, False, None),
        ("valid_accuracy", True, False, None),
        ("accuracy", True, False, "has loss, valid_loss, valid_accuracy, valid_error, valid_sum"),
        ("accuracy", False, False, None),
        ("valid_loss", False, False, "the history has loss, accuracy, error, sum. For validation rows, set"),
        ("auc", False, False, "monitor is 'auc'"),
        ("objective", True, True, None),
        ("valid_auc", True, True, "monitor is 'valid_auc'"),
        ("accuracy", True, True, "monitor is 'accuracy'"),
    ],
)
def test_monitor_is_a_column_of_the_history(monitor, validated, in_rounds, message):
    with nullcontext() if message is None else pytest.raises(InvalidInput, match=message):
        check_monitor(monitor, ACCURACY, validated=validated, in_rounds=in_rounds)


def test_mode_is_the_metric_s():
    of_collection = {"both": MetricCollection([MulticlassAccuracy(2)])}
    assert mode_of("valid_both_MulticlassAccuracy", "auto", of_collection) == "max"
    assert [mode_of(name, "auto", ACCURACY) for name in (None, "valid_loss", "objective", "error")] == ["min"] * 4
    assert [mode_of("valid_accuracy", mode, ACCURACY) for mode in MODES] == ["max", "min", "max"]
    for unknown in ("sum", "primal"):
        with pytest.raises(InvalidInput, match=f"whether a higher {unknown} is better; expected 'min' or 'max'"):
            mode_of(unknown, "auto", ACCURACY)
    for loss in (None, "valid_loss"):
        with pytest.raises(InvalidInput, match=r"monitorMode is 'max', and monitor is .*, a loss, which is minimized"):
            mode_of(loss, "max", ACCURACY)


def test_monitored_value_is_a_number_of_the_row():
    row = {"epoch": 1, "loss": 3.0, "valid_loss": 2.0, "curve": [1.0]}
    assert (monitored(row, None), monitored(row, "loss"), monitored({"objective": 1}, None)) == (2.0, 3.0, 1.0)
    for monitor, value in (("curve", r"\[1.0\]"), ("auc", "None")):
        message = f"monitor is '{monitor}', which is {value}; the history has epoch, loss"
        with pytest.raises(InvalidInput, match=message):
            monitored(row, monitor)
    with pytest.raises(InvalidInput, match="need a loss, and the history has primal, dual; set validationFraction or"):
        monitored({"primal": 1.0, "dual": 1.0}, None)


def test_best_epoch_by_a_metric_and_not_by_the_loss():
    """The accuracy of the validation rows is best in the first epoch, their loss in the last."""
    x, held = np.linspace(-1, 1, 64, dtype=np.float32), np.arange(64) % 4 == 0
    data = {"x": x[:, None], "y": np.where(held, 0.1 * x, 2.0 * x).astype(np.float32), "held": held}
    watched = {"metrics": {"error": MeanAbsoluteError()}, "monitor": "valid_error"}
    objective = Objective(line, nn.MSELoss(), partial(torch.optim.SGD, lr=0.1), **watched)
    (low,), (high,) = (
        InlineCluster().gang(Training(replace(objective, monitor_mode=mode), 16, 4), data, COLUMNS)
        for mode in ("auto", "max")
    )
    errors = [row["valid_error"] for row in low.history]
    assert errors == [row["valid_error"] for row in high.history]
    assert (low.report["best_epoch"], high.report["best_epoch"]) == (1, 1 + errors.index(max(errors)))
    assert (high.report["best_epoch"], low.weights == high.weights) == (4, False)
    (last,) = InlineCluster().gang(Training(objective, 16, 4, keep_best=False), data, COLUMNS)
    assert (last.report["best_epoch"], last.weights) == (None, high.weights)
