"""Early stopping without a gang, and on one."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.cluster.group.world import Group
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.io.weights import pack, unpack
from sparkdl.training.early_stopping import EarlyStopping, GangEarlyStopping
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective

COLUMNS = Columns((InputColumn("x"),), InputColumn("y", "float32"), validation=InputColumn("held", "bool"))


def line() -> nn.Module:
    module = nn.Linear(1, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module


def rows(*, slope: float, opposite: float) -> dict[str, np.ndarray]:
    """Training rows ``y = slope x``, and validation rows ``y = opposite x``."""
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    held = np.arange(64) % 4 == 0
    return {"x": x[:, None], "y": np.where(held, opposite * x, slope * x).astype(np.float32), "held": held}


def training(**options) -> Training:
    objective = Objective(line, nn.MSELoss(), partial(torch.optim.SGD, lr=0.1))
    return Training(objective, 16, 12, **options)


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
    module, stopping = line(), GangEarlyStopping(patience, Group())
    for epoch, loss in enumerate(losses, start=1):
        module.bias.data.fill_(epoch)
        if restored:
            state = unpack_state(pack_state(stopping.state_dict()))
            stopping = GangEarlyStopping(patience, Group())
            stopping.load_state_dict(state)
        if stopping.after({"epoch": epoch, "loss": loss}, module):
            break
    else:
        epoch = None
    assert (epoch, stopping.finished, stopping.epochs.best) == (stops, stops is not None, best)
    kept = line()
    unpack(stopping.weights(module), kept)
    assert kept.bias.item() == (best or module.bias.item())


def test_loss_within_tolerance_is_not_smaller():
    stopping = EarlyStopping(patience=2, tol=0.1)
    losses = enumerate([3.0, 2.0, 1.95, 1.8, 1.75, 1.71], start=1)
    assert [stopping.after(number, loss) for number, loss in losses] == [*[False] * 5, True]
    assert (stopping.best, stopping.loss) == (4, 1.8)
    assert not any(EarlyStopping(None).after(number, 1.0) for number in range(1, 6))


def test_validation_loss_decides_and_without_patience_last_weights_stay():
    stopping = GangEarlyStopping(1, Group())
    assert not stopping.after({"epoch": 1, "loss": 5.0, "valid_loss": 1.0}, line())
    assert stopping.after({"epoch": 2, "loss": 4.0, "valid_loss": 1.5}, line())
    module, stopping = line(), GangEarlyStopping(None, Group())
    assert not any(stopping.after({"epoch": epoch, "loss": 1.0}, module) for epoch in range(1, 9))
    assert stopping.epochs.best is None
    assert stopping.weights(module) == pack(module)


@pytest.mark.slow
def test_gang_stops_at_one_epoch_with_best_weights():
    # Towards slope 2 the validation rows get worse, so the first epoch is the best.
    data = rows(slope=2.0, opposite=0.1)
    one, other = LocalCluster(2).gang(training(patience=2), data, COLUMNS)
    losses = [[row["valid_loss"] for row in worker.history] for worker in (one, other)]
    assert losses[0] == losses[1]
    assert (len(losses[0]), one.report["best_epoch"], other.weights) == (3, 1, b"")
    first, _ = LocalCluster(2).gang(Training(training().objective, 16, 1), data, COLUMNS)
    assert one.weights == first.weights
    assert first.report["best_epoch"] is None
    (improving,) = InlineCluster().gang(training(patience=1), rows(slope=2.0, opposite=2.0), COLUMNS)
    assert len(improving.history) == improving.report["best_epoch"] == 12
