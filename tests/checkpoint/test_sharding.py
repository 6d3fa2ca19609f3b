"""Replicated state is written once, in shards of nearly equal size."""

from __future__ import annotations

import pytest
import torch

from sparkdl.checkpoint.sharding import shard, unshard
from sparkdl.io.serialization import pack_state, unpack_state

MOMENTS = {name: torch.rand(20, 30) for name in ("exp_avg", "exp_avg_sq")}
STATE = {
    "model": {"weight": torch.rand(20, 30), "bias": torch.rand(20)},
    "optimizer": {"state": {0: {**MOMENTS, "step": torch.tensor(1.0)}, "0": {}}, "groups": [{"lr": 0.1}], "none": None},
}


def size(nested):
    if isinstance(nested, dict):
        return sum(map(size, nested.values()))
    return nested.nbytes if isinstance(nested, torch.Tensor) else 0


def ordered(nested):
    return {key: ordered(nested[key]) for key in sorted(nested, key=repr)} if isinstance(nested, dict) else nested


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_shards_merge_to_the_state_and_share_no_tensor(workers):
    shards = [unpack_state(pack_state(shard(STATE, rank, workers))) for rank in range(workers)]
    sizes = [*map(size, shards)]
    assert pack_state(ordered(unshard(shards))) == pack_state(ordered(STATE))
    assert sum(sizes) == size(STATE)
    assert max(sizes) - min(sizes) <= 30 * 20 * 4
    for nested in shards[1:]:  # rank 0 alone has other values than tensors
        assert nested["optimizer"].keys() == {"state"}
