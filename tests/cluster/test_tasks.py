"""The tree of reductions, and the errors of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sparkdl.cluster.tasks import TaskResult, Tensors, TreeReducer, mapped, raise_on_failure
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.pickling import ship
from tests.contracts.algorithm_contract import shards_of


@pytest.mark.parametrize(("count", "shape"), [(1, "0"), (4, "((0 1) (2 3))"), (7, "(((0 1) (2 3)) ((4 5) 6))")])
def test_tree_depends_on_number_of_shards(count: int, shape: str) -> None:
    tree = TreeReducer(lambda one, other: {"x": f"({one['x']} {other['x']})"})  # type: ignore[dict-item]
    for shard in range(count):
        tree.push({"x": str(shard)})  # type: ignore[dict-item]
    assert str(tree.result()["x"]) == shape


def test_tree_sums_and_holds_one_result_per_level() -> None:
    heights = []

    def reduce(left: Any, right: Any) -> Any:
        heights.append(len(tree._stack))
        return {"x": left["x"] + right["x"]}

    tree = TreeReducer(reduce)
    for shard in range(1000):
        tree.push({"x": torch.tensor(shard)})
    assert tree.result()["x"] == sum(range(1000))
    assert max(heights) <= 10
    with pytest.raises(InvalidInput, match="there are no shards"):
        tree.result()


def test_first_failed_shard_is_named() -> None:
    failed, later = (TaskResult(index, trouble=("KeyError", "'x'", "trace"), host="here") for index in (2, 3))
    with pytest.raises(WorkerFailed, match="shard 2 in round 5: KeyError: 'x'") as caught:
        raise_on_failure([later, TaskResult(0), failed], 5)
    assert (caught.value.rank, caught.value.host, caught.value.trace) == (2, "here", "trace")


@dataclass(frozen=True)
class Placed:
    """The note is the task's device."""

    device: torch.device | None = None

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        return {}, str(self.device)


def test_work_gets_the_device_of_its_task() -> None:
    def missing() -> torch.device:
        raise InvalidInput("there is no GPU.")

    [shard] = shards_of(2)
    for choose, device in ((None, "cpu"), (lambda: torch.device("meta"), "meta")):
        assert mapped(ship(Placed()), {}, shard, choose_device=choose).note == device
    result = mapped(ship(Placed()), {}, shard, choose_device=missing)
    assert result.trouble is not None
    assert result.trouble[:2] == ("InvalidInput", "there is no GPU.")
