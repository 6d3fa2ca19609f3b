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
from sparkdl.errors import InvalidInput
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


@pytest.mark.parametrize("losses", [[3, 2, 4, 4], [1, 2, 0.5, 2, 2], [math.nan, 1, 2, 3]])
def test_it_goes_on_from_its_state(losses):
    """With a new one after every epoch, the end, the best epoch and its weights are the same."""
    module, whole, part = line(), GangEarlyStopping(2, Group()), GangEarlyStopping(2, Group())
    for epoch, loss in enumerate(losses, start=1):
        module.bias.data.fill_(epoch)
        state = unpack_state(pack_state(part.state_dict()))
        part = GangEarlyStopping(2, Group())
        part.load_state_dict(state)
        assert part.after({"epoch": epoch, "loss": loss}, module) == whole.after({"epoch": epoch, "loss": loss}, module)
        assert (part.epoch, part.over) == (whole.epoch, whole.over)
        assert part.weights(module) == whole.weights(module)
    assert whole.over


@pytest.mark.parametrize(
    ("losses", "patience", "stops", "best"),
    [
        ([3, 2, 1], 1, None, 3),
        ([3, 2, 2, 2], 2, 4, 2),
        ([1, 2, 0.5, 2, 2], 2, 5, 3),
        ([1, 1, 1], 1, 2, 1),
        ([math.nan, 1, 2], 1, 1, None),
        ([math.nan, 1, 2, 3], 2, 4, 2),
    ],
)
def test_the_best_epoch_and_the_end(losses, patience, stops, best):
    module, stopping = line(), GangEarlyStopping(patience, Group())
    for epoch, loss in enumerate(losses, start=1):
        module.bias.data.fill_(epoch)
        if stopping.after({"epoch": epoch, "loss": loss}, module):
            break
    else:
        epoch = None
    assert (epoch, stopping.epoch) == (stops, best)
    kept = line()
    unpack(stopping.weights(module), kept)
    assert kept.bias.item() == (best or module.bias.item())


def test_a_loss_within_the_tolerance_is_no_smaller_one():
    stopping = EarlyStopping(patience=2, tol=0.1)
    losses = enumerate([3.0, 2.0, 1.95, 1.8, 1.75, 1.71], start=1)
    assert [stopping.after(number, loss) for number, loss in losses] == [*[False] * 5, True]
    assert (stopping.best, stopping.loss) == (4, 1.8)
    assert not any(EarlyStopping(None).after(number, 1.0) for number in range(1, 6))


def test_the_validation_loss_counts_where_there_is_one():
    stopping = GangEarlyStopping(1, Group())
    assert not stopping.after({"epoch": 1, "loss": 5.0, "valid_loss": 1.0}, line())
    assert stopping.after({"epoch": 2, "loss": 4.0, "valid_loss": 1.5}, line())


def test_without_patience_nothing_is_kept():
    module, stopping = line(), GangEarlyStopping(None, Group())
    assert not any(stopping.after({"epoch": epoch, "loss": 1.0}, module) for epoch in range(1, 9))
    assert stopping.epoch is None
    assert stopping.weights(module) == pack(module)


def test_a_run_ends_with_the_weights_of_its_best_epoch():
    # The further the slope goes towards 2 the worse it is for the rows held out, so that the first epoch is the best.
    (trained,) = InlineCluster().gang(training(patience=2), rows(slope=2.0, opposite=0.1), COLUMNS)
    assert len(trained.history) == 3
    assert trained.report["best_epoch"] == 1
    (first,) = InlineCluster().gang(Training(training().objective, 16, 1), rows(slope=2.0, opposite=0.1), COLUMNS)
    assert trained.weights == first.weights


def test_a_run_that_goes_on_improving_takes_all_its_epochs():
    (trained,) = InlineCluster().gang(training(patience=1), rows(slope=2.0, opposite=2.0), COLUMNS)
    assert len(trained.history) == trained.report["best_epoch"] == 12


def test_without_patience_there_is_no_best_epoch():
    (trained,) = InlineCluster().gang(training(), rows(slope=2.0, opposite=0.1), COLUMNS)
    assert trained.report["best_epoch"] is None


@pytest.mark.slow
def test_every_member_stops_at_the_same_epoch():
    one, other = LocalCluster(2).gang(training(patience=2), rows(slope=2.0, opposite=0.1), COLUMNS)
    losses = [[row["valid_loss"] for row in member.history] for member in (one, other)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert one.weights
    assert not other.weights


def test_patience_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="patience is 0; expected at least 1"):
        training(patience=0)
