"""What all members have alike is written once, in parts of nearly equal size."""

from __future__ import annotations

import doctest
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.checkpoint import sharding
from sparkdl.checkpoint.sharding import shard, unshard
from sparkdl.cluster.group.world import World
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective import Objective


def state():
    """A replica that has taken a step with Adam: tensors in dicts, and numbers in lists beside them."""
    optimizer = partial(torch.optim.Adam, lr=0.01)
    replica = Replicated().place(Objective(lambda: nn.Linear(30, 20), nn.MSELoss(), optimizer), World())
    for parameter in replica.parameters:
        parameter.grad = torch.ones_like(parameter)
    replica.apply()
    return replica.state_dict()["alike"]


def size(nested):
    if isinstance(nested, dict):
        return sum(map(size, nested.values()))
    return nested.nbytes if isinstance(nested, torch.Tensor) else 0


@pytest.mark.parametrize("members", [1, 2, 3, 20])
def test_parts_make_the_whole_and_no_tensor_is_in_two(members):
    whole = state()
    parts = [unpack_state(pack_state(shard(whole, rank, members))) for rank in range(members)]
    merged = unshard(parts)
    assert pack_state(sort(merged)) == pack_state(sort(whole))
    assert sum(map(size, parts)) == size(whole)


def test_parts_are_of_nearly_one_size():
    parts = [size(shard(state(), rank, 3)) for rank in range(3)]
    assert max(parts) - min(parts) <= 30 * 20 * 4


def test_what_is_no_tensor_is_rank_0s_and_empty_dicts_stay():
    nested = {"state": {}, "groups": [{"lr": 0.1}], "none": None}
    assert shard(nested, 0, 2) == nested
    assert shard(nested, 1, 2) == {"state": {}}
    assert unshard([shard(nested, 1, 2), shard(nested, 0, 2)]) == nested


def test_keys_keep_their_type():
    nested = {"state": {0: torch.ones(2), "0": torch.zeros(2)}}
    merged = unshard([shard(nested, rank, 2) for rank in range(2)])
    assert [float(merged["state"][key].sum()) for key in (0, "0")] == [2.0, 0.0]


def sort(nested):
    if isinstance(nested, dict):
        return {key: sort(nested[key]) for key in sorted(nested, key=repr)}
    return nested


def test_the_example():
    assert doctest.testmod(sharding).failed == 0
