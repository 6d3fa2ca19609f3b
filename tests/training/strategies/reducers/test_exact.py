"""The uncompressed sum: under NCCL a step's stream waits for it, and its thread one step later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import PeerLost
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers.exact import Exact


class Nccl:
    """A group whose works record how they are waited for; ``lost`` names those that time out."""

    nccl, size = True, 2

    def __init__(self, lost: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[str, int]] = []
        self._lost, self._started = lost, 0

    def sum_(self, tensor: torch.Tensor, *, wait: bool) -> Any:
        assert not wait
        number, self._started = self._started, self._started + 1
        self.calls.append(("start", number))

        def waited() -> None:
            if number in self._lost:
                raise torch.distributed.DistBackendError("the collective exceeded the timeout")
            self.calls.append(("wait", number))

        return SimpleNamespace(wait=waited, synchronize=lambda: self.calls.append(("stream waits", number)))


def step(group: Nccl, reduction: Any, buckets: Any) -> None:
    for pending in [reduction.start(bucket) for bucket in buckets]:
        pending.wait()
    group.calls.append(("step", 0))


def test_under_nccl_the_thread_waits_for_the_step_before():
    group, buckets = Nccl(), make_buckets([*nn.Linear(2, 2).parameters()], 1)
    reduction = Exact().open(buckets, group)
    step(group, reduction, buckets)
    assert [kind for kind, _ in group.calls] == ["start", "start", "stream waits", "stream waits", "step"]
    step(group, reduction, buckets)
    assert group.calls[5:9] == [("wait", 0), ("start", 2), ("wait", 1), ("start", 3)]


def test_a_lost_sum_of_nccl_raises_one_step_later():
    group, buckets = Nccl(lost=(1,)), make_buckets([*nn.Linear(2, 2).parameters()], 1)
    reduction = Exact().open(buckets, group)
    step(group, reduction, buckets)
    with pytest.raises(PeerLost, match="another worker is unreachable: the collective exceeded the timeout"):
        step(group, reduction, buckets)


def test_a_checkpoint_waits_for_the_sums_of_nccl():
    group, buckets = Nccl(lost=(3,)), make_buckets([*nn.Linear(2, 2).parameters()], 1)
    reduction = Exact().open(buckets, group)
    step(group, reduction, buckets)
    assert reduction.state_dict() == {}
    assert {("wait", 0), ("wait", 1)} <= {*group.calls}
    step(group, reduction, buckets)
    with pytest.raises(PeerLost):
        reduction.state_dict()
