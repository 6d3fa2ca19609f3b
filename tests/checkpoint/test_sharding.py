"""Replicated state is written once, in shards of nearly equal size."""

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


@pytest.fixture(scope="module")
def state():
    """A replica after a step of Adam: tensors in dicts, and numbers in lists beside them."""
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


def ordered(nested):
    return {key: ordered(nested[key]) for key in sorted(nested, key=repr)} if isinstance(nested, dict) else nested


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_shards_merge_to_the_state_and_share_no_tensor(workers, state):
    shards = [unpack_state(pack_state(shard(state, rank, workers))) for rank in range(workers)]
    sizes = [*map(size, shards)]
    assert pack_state(ordered(unshard(shards))) == pack_state(ordered(state))
    assert sum(sizes) == size(state)
    assert max(sizes) - min(sizes) <= 30 * 20 * 4


def test_rank_0_gets_other_values_and_keys_keep_their_type():
    nested = {"state": {}, "groups": [{"lr": 0.1}], "none": None}
    assert shard(nested, 0, 2) == nested
    assert shard(nested, 1, 2) == {"state": {}}
    assert unshard([shard(nested, 1, 2), shard(nested, 0, 2)]) == nested
    keys = {"state": {0: torch.ones(2), "0": torch.zeros(2)}}
    merged = unshard([shard(keys, rank, 2) for rank in range(2)])
    assert [float(merged["state"][key].sum()) for key in (0, "0")] == [2.0, 0.0]


def test_docstring_example():
    assert doctest.testmod(sharding).failed == 0
