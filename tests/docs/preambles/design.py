"""docs/design.md: what the loop has before its first line, of a gang of one in this process."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from sparkdl import AllReduce, Column, Columns, Objective, Training
from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import Invitation, Meeting, join
from sparkdl.telemetry.clock import Clock
from sparkdl.training.dataloader import Rows
from sparkdl.training.layouts.replicated import Replicated
from tests.data.spooled import parts_of
from tests.docs.digits import Net, table


def page(execute, folder):
    columns = Columns(inputs=(Column("features"),), target=Column("label"))
    (part,) = parts_of([table().select(["features", "label"])], columns)
    objective = Objective(Net, nn.CrossEntropyLoss(), partial(torch.optim.SGD, lr=0.1))
    alone = Invitation([{"host": "here", "address": "127.0.0.1"}], None)
    with join(Meeting(0, 1, "design", 0, Address("127.0.0.1")), alone) as world:
        group, clock = world.group(), Clock()
        execute(
            {
                "layout": Replicated(),
                "objective": objective,
                "world": world,
                "strategy": AllReduce(),
                "group": group,
                "clock": clock,
                "epoch": 0,
                "rows": Rows(part, group, Training(objective, batch_size=64), world.device),
            }
        )
    assert clock.samples == part.rows
