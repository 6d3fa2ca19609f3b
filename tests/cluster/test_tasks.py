"""The tree of reductions, and the errors of tasks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from sparkdl.cluster.tasks import TaskResult, TreeReducer, raise_on_failure
from sparkdl.errors import InvalidInput, WorkerFailed


@pytest.mark.parametrize(("count", "shape"), [(1, "0"), (4, "((0 1) (2 3))"), (7, "(((0 1) (2 3)) ((4 5) 6))")])
def test_tree_depends_on_number_of_shards(count: int, shape: str) -> None:
    tree = TreeReducer(lambda one, other: {"x": f"({one['x']} {other['x']})"})  # type: ignore[dict-item]
    for shard in range(count):
        tree.push({"x": str(shard)})  # type: ignore[dict-item]
    assert str(tree.result()["x"]) == shape


def test_tree_sums_and_holds_one_result_per_level() -> None:
    heights = []

    def reduce(one: Any, other: Any) -> Any:
        heights.append(len(tree._stack))
        return {"x": one["x"] + other["x"]}

    shards = [torch.randn(10, generator=torch.Generator().manual_seed(shard)) for shard in range(1000)]
    tree = TreeReducer(reduce)
    for shard in shards:
        tree.push({"x": shard})
    *_, running = itertools.accumulate(shards)
    assert torch.allclose(tree.result()["x"], running, rtol=1e-5, atol=1e-6)
    assert max(heights) <= 10
    with pytest.raises(InvalidInput, match="there are no shards"):
        TreeReducer(reduce).result()


def test_first_failed_shard_is_named() -> None:
    fine = TaskResult(0)
    invalid = TaskResult(3, trouble=("InvalidInput", "no labels", "trace"), host="there")
    failed = TaskResult(2, trouble=("KeyError", "'x'", "trace"), host="here")
    raise_on_failure([fine], 5)
    with pytest.raises(InvalidInput, match="shard 3 in round 5: no labels") as rejected:
        raise_on_failure([fine, invalid], 5)
    assert (rejected.value.rank, rejected.value.host, rejected.value.stage) == (3, "there", "map")
    with pytest.raises(WorkerFailed, match="shard 2 in round 5: KeyError: 'x'") as raised:
        raise_on_failure([invalid, fine, failed], 5)
    assert raised.value.trace == "trace"
