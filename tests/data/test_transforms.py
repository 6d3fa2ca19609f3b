"""The user's own functions on batches: what they are given, what they may change, and that it is repeatable."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch, Ragged
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms, collated
from sparkdl.errors import InvalidInput
from sparkdl.training.loss import Criterion
from tests.data.spooled import cut, parts_of

SIZES = (37, 0, 12)
COLUMNS = Columns(
    (InputColumn("x"), InputColumn("tokens", ragged="padded")), InputColumn("y"), row_id=InputColumn("id", "int64")
)


def members(**others: Any) -> list[Shard]:
    rows = sum(SIZES)
    tokens = [list(range(row % 4)) for row in range(rows)]
    data = {"id": np.arange(rows), "x": np.arange(rows) / 1.0, "y": np.arange(rows) % 3, "tokens": tokens}
    return parts_of(cut(pa.table(data), SIZES), Columns(**{**vars(COLUMNS), **others}))


def epoch_of(transforms: Transforms | None, *, epoch: int = 0, start: int = 0, seed: int = 0) -> list[list[Batch]]:
    plan = Plan(SIZES, 8, seed)
    return [list(Batcher(part, plan, transforms=transforms).batches(epoch, start=start)) for part in members()]


def noise(inputs: Any, target: Any, generator: torch.Generator) -> Any:
    x, tokens = inputs
    return (x + torch.rand(x.shape, generator=generator), tokens), target


def noises(batches: list[list[Batch]]) -> list[Any]:
    return [batch.inputs[0].tolist() for each in batches for batch in each]  # type: ignore[union-attr]


# ---- what they do ----------------------------------------------------------------------------------------------------


def test_batches_go_through_augment_and_then_collate() -> None:
    def double(inputs: Any, target: Any, generator: torch.Generator) -> Any:
        return (inputs[0] * 2, inputs[1]), target

    def add(inputs: Any, target: Any) -> Any:
        return [inputs[0] + 1, *inputs[1].arguments()], target.float()

    found, plain = epoch_of(Transforms(add, double)), epoch_of(None)
    for each, other in zip(found, plain, strict=True):
        for batch, before in zip(each, other, strict=True):
            if before.rows:
                assert torch.equal(batch.inputs[0], before.inputs[0] * 2 + 1)  # type: ignore[arg-type, operator]
                assert [len(tensor) for tensor in batch.inputs] == [batch.rows] * 3
                assert batch.target is not None
                assert batch.target.dtype == torch.float32
            assert (batch.rows, batch.weight_fraction, batch.total) == (
                before.rows,
                before.weight_fraction,
                before.total,
            )


def test_they_run_ahead_in_the_feeds_thread_and_without_gradients() -> None:
    seen = set()

    def watch(inputs: Any, target: Any) -> Any:
        seen.add((threading.current_thread().name, torch.is_grad_enabled()))
        return inputs, target

    epoch_of(Transforms(watch))
    assert seen == {("sparkdl-prefetch", False)}


def test_a_batch_without_rows_stays_what_it_is() -> None:
    def never(inputs: Any, target: Any) -> Any:
        assert len(inputs[0])
        return inputs, target

    assert all(batch.rows == 0 for batch in epoch_of(Transforms(never))[1])


def test_without_functions_there_is_nothing_to_do() -> None:
    assert not Transforms()
    inputs = (torch.arange(3),)
    assert collated(None, inputs) is inputs


def test_in_inference_there_is_no_target() -> None:
    def check(inputs: Any, target: Any) -> Any:
        assert target is None
        return (inputs[0] * 2,), None

    assert collated(check, (torch.arange(3),))[0].tolist() == [0, 2, 4]  # type: ignore[union-attr]


# ---- random numbers --------------------------------------------------------------------------------------------------


def test_an_augmented_epoch_is_repeatable() -> None:
    first = noises(epoch_of(Transforms(augment=noise)))
    assert noises(epoch_of(Transforms(augment=noise))) == first
    assert noises(epoch_of(Transforms(augment=noise), epoch=1)) != first
    assert noises(epoch_of(Transforms(augment=noise), seed=1)) != first


@pytest.mark.parametrize("start", [1, 3, 6])
def test_a_resumed_epoch_is_the_tail_of_the_whole_one(start: int) -> None:
    whole = epoch_of(Transforms(augment=noise))
    assert noises(epoch_of(Transforms(augment=noise), start=start)) == noises([each[start:] for each in whole])


def test_no_two_batches_share_their_random_numbers() -> None:
    def draw(inputs: Any, target: Any, generator: torch.Generator) -> Any:
        return (torch.rand(1, generator=generator).expand(len(target)), inputs[1]), target

    drawn = [batch.inputs[0][0].item() for each in epoch_of(Transforms(augment=draw)) for batch in each if batch.rows]  # type: ignore[index]
    assert len(set(drawn)) == len(drawn) > 7


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x, y: ((x[0][1:], x[1]), y), r"collate returned \d+ rows in input 0 for a batch of \d+ rows"),
        (lambda x, y: ((x[0], x[1][1:]), y), r"collate returned \d+ rows in input 1 for a batch of \d+ rows"),
        (lambda x, y: (x, y[1:]), r"collate returned \d+ rows in the target for a batch of \d+ rows"),
        (lambda x, y: ((x[0].sum(),), y), "collate returned no rows in input 0"),
        (lambda x, y: (x[0], y), "collate returned tuple of Tensor, Tensor; expected .* inputs as a tuple"),
        (lambda x, y: x[0], r"collate returned a Tensor; expected \(inputs, target\)"),
        (lambda x, y: ((), y), "collate returned tuple of tuple, Tensor; expected"),
        (lambda x, y: (x, [1]), "collate returned a target of type list"),
        (lambda x, y: (x, None), "returned no target for a batch that has one"),
    ],
)
def test_rows_may_be_neither_added_nor_left_out(returned: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        epoch_of(Transforms(returned))


def test_an_error_of_a_function_keeps_its_own_traceback() -> None:
    def fail(inputs: Any, target: Any, generator: torch.Generator) -> Any:
        raise ZeroDivisionError("by the user")

    with pytest.raises(ZeroDivisionError, match="by the user") as caught:
        epoch_of(Transforms(augment=fail))
    assert caught.traceback[-1].name == "fail"


def test_labels_may_not_come_to_weigh_something_else() -> None:
    """The step's total weight was agreed on before: the gradient would no longer be the mean over the global batch."""

    def ignore(inputs: Any, target: Tensor) -> Any:
        return inputs, torch.where(target == 2, -100, target)

    def swap(inputs: Any, target: Tensor) -> Any:
        return inputs, 2 - target

    plain, classes = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    epoch_of(Transforms(swap, denominators=Criterion(plain).denominators))
    with pytest.raises(InvalidInput, match="changed labels to some of another weight in the loss"):
        epoch_of(Transforms(ignore, denominators=Criterion(plain).denominators))
    plan = Plan(SIZES, 8)
    for part in (each.with_denominators(Criterion(classes).denominators) for each in members()):
        kept = Transforms(lambda x, y: (x, y.clone()), denominators=Criterion(classes).denominators)
        list(Batcher(part, plan, transforms=kept).batches(0, totals=[1.0] * plan.steps))
        if part.rows:
            other = Transforms(swap, denominators=Criterion(classes).denominators)
            with pytest.raises(InvalidInput, match="of another weight"):
                list(Batcher(part, plan, transforms=other).batches(0, totals=[1.0] * plan.steps))


def test_ragged_rows_stay_ragged() -> None:
    def check(inputs: Any, target: Any) -> Any:
        assert isinstance(inputs[1], Ragged)
        return inputs, target

    epoch_of(Transforms(check))
