"""The tree along which updates are reduced."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from sparkdl.cluster.tasks import TaskResult, TreeReducer, raise_on_failure
from sparkdl.errors import InvalidInput, WorkerFailed


def shape(count: int) -> str:
    """The tree of so many parts, in writing."""
    tree = TreeReducer(lambda one, other: {"x": f"({one['x']} {other['x']})"})  # type: ignore[dict-item]
    for part in range(count):
        tree.push({"x": str(part)})  # type: ignore[dict-item]
    return str(tree.result()["x"])


def test_the_tree_depends_on_the_number_of_parts_alone() -> None:
    assert shape(1) == "0"
    assert shape(4) == "((0 1) (2 3))"
    assert shape(7) == "(((0 1) (2 3)) ((4 5) 6))"


def test_it_holds_one_for_each_level() -> None:
    held = []

    def reduce(one: Any, other: Any) -> Any:
        held.append(len(tree._stack))
        return one

    tree = TreeReducer(reduce)
    for _ in range(1000):
        tree.push({"x": torch.zeros(1)})
    assert max(held) <= 10


def test_another_association_is_the_same_but_for_rounding() -> None:
    parts = [torch.randn(100, generator=torch.Generator().manual_seed(part)) for part in range(13)]
    tree = TreeReducer(lambda one, other: {"x": one["x"] + other["x"]})
    for each in parts:
        tree.push({"x": each})
    *_, running = itertools.accumulate(parts)
    assert torch.allclose(tree.result()["x"], running, rtol=1e-5, atol=1e-6)


def test_no_parts() -> None:
    with pytest.raises(InvalidInput, match="there are no parts"):
        TreeReducer(lambda one, other: one).result()


def test_the_first_part_that_failed_is_named() -> None:
    fine = TaskResult(0)
    invalid = TaskResult(3, trouble=("InvalidInput", "no labels", "trace"), host="there")
    failed = TaskResult(2, trouble=("KeyError", "'x'", "trace"), host="here")
    raise_on_failure([fine], 5)
    with pytest.raises(InvalidInput, match="part 3 in round 5: no labels") as refused:
        raise_on_failure([fine, invalid], 5)
    assert (refused.value.rank, refused.value.host, refused.value.stage) == (3, "there", "map")
    with pytest.raises(WorkerFailed, match="part 2 in round 5: KeyError: 'x'") as raised:
        raise_on_failure([invalid, fine, failed], 5)
    assert raised.value.trace == "trace"
