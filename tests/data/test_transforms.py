"""User functions on batches: their arguments, what they may change, and repeatable random numbers."""

import itertools
import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.data.batch import Ragged
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.transforms import AssembledInputs, Transforms, collated
from sparkdl.errors import InvalidInput
from sparkdl.training.objective.loss import Criterion
from tests.data.spooled import cut, shards_of

SIZES = (37, 0, 12)
COLUMNS = Columns(
    (InputColumn("x"), InputColumn("tokens", ragged="padded")), InputColumn("y"), row_id=InputColumn("id", "int64")
)


def shards():
    rows = np.arange(sum(SIZES))
    data = {"id": rows, "x": rows / 1.0, "y": rows % 3, "tokens": [list(range(row % 4)) for row in rows]}
    return shards_of(cut(pa.table(data), SIZES), COLUMNS)


def epoch_of(transforms, *, epoch=0, start=0, seed=0):
    """The batches of all workers, one worker after the other."""
    batchers = [Batcher(shard, Plan(SIZES, 8, seed), transforms=transforms) for shard in shards()]
    return [*itertools.chain(*(batcher.batches(epoch, start=start) for batcher in batchers))]


def noise(inputs, target, generator):
    x, tokens = inputs
    return (x + torch.rand(x.shape, generator=generator), tokens), target


def noises(**options):
    return [batch.inputs[0].tolist() for batch in epoch_of(Transforms(augment=noise), **options)]


def test_batches_go_through_augment_and_then_collate_in_the_prefetch_thread():
    def double(inputs, target, generator):
        assert len(inputs[0])  # a batch without rows stays as it is
        assert isinstance(inputs[1], Ragged)
        return (inputs[0] * 2, inputs[1]), target

    def add(inputs, target):
        assert threading.current_thread().name == "sparkdl-prefetch"
        assert not torch.is_grad_enabled()
        return [inputs[0] + 1, *inputs[1].arguments()], target.float()

    for batch, before in zip(epoch_of(Transforms(add, double)), epoch_of(None), strict=True):
        if before.rows:
            assert torch.equal(batch.inputs[0], before.inputs[0] * 2 + 1)
            assert [len(tensor) for tensor in batch.inputs] == [batch.rows] * 3
            assert torch.equal(batch.target, before.target.float())
        for name in ("rows", "weight_fraction", "total"):
            assert getattr(batch, name) == getattr(before, name)


def test_augmentation_depends_on_seed_epoch_and_step_alone():
    first = noises()
    assert noises() == first
    assert noises(epoch=1) != first
    assert noises(seed=1) != first
    steps = Plan(SIZES, 8).steps
    for start in (1, 3, 6):
        assert noises(start=start) == [noise for index, noise in enumerate(first) if index % steps >= start]


def test_every_batch_has_its_own_random_numbers_and_inference_no_target():
    def draw(inputs, target, generator):
        return (torch.rand(1, generator=generator).expand(len(target)), inputs[1]), target

    drawn = [batch.inputs[0][0].item() for batch in epoch_of(Transforms(augment=draw)) if batch.rows]
    assert len(set(drawn)) == len(drawn) > 7
    inputs = (torch.arange(3),)
    assert collated(lambda inputs, target: ((inputs[0] * 2,), target), inputs)[0].tolist() == [0, 2, 4]
    assert collated(None, inputs) is inputs
    assert not Transforms()


def test_changed_rows_raise():
    for returned, message in [
        (lambda x, y: ((x[0][1:], x[1]), y), r"collate returned \d+ rows in input 0 for a batch of \d+ rows"),
        (lambda x, y: (x, y[1:]), r"collate returned \d+ rows in the target for a batch of \d+ rows"),
        (lambda x, y: ((x[0].sum(),), y), "collate returned no rows in input 0"),
        (lambda x, y: (x[0], y), "collate returned tuple of Tensor, Tensor; expected .* inputs as a tuple"),
        (lambda x, y: x[0], r"collate returned a Tensor; expected \(inputs, target\)"),
        (lambda x, y: ((), y), "collate returned tuple of tuple, Tensor; expected"),
        (lambda x, y: (x, [1]), "collate returned a target of type list"),
        (lambda x, y: (x, None), "returned no target for a batch that has one"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            epoch_of(Transforms(returned))


def test_changed_weights_of_labels_raise():
    """The step's global weight was agreed before: the gradient would not be the mean over the global batch."""

    def ignore(inputs, target):
        return inputs, torch.where(target == 2, -100, target)

    def swap(inputs, target):
        return inputs, 2 - target

    plain = Criterion(nn.CrossEntropyLoss()).denominators
    classes = Criterion(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))).denominators
    epoch_of(Transforms(swap, denominators=plain))
    with pytest.raises(InvalidInput, match="changed the loss weight of labels"):
        epoch_of(Transforms(ignore, denominators=plain))
    plan = Plan(SIZES, 8)
    for shard in (shard.with_denominators(classes) for shard in shards()):
        copies = Transforms(lambda x, y: (x, y.clone()), denominators=classes)
        list(Batcher(shard, plan, transforms=copies).batches(0, totals=[1.0] * plan.steps))
        if shard.rows:
            swapping = Batcher(shard, plan, transforms=Transforms(swap, denominators=classes))
            with pytest.raises(InvalidInput, match="changed the loss weight"):
                list(swapping.batches(0, totals=[1.0] * plan.steps))


@pytest.mark.parametrize(("floating", "exact"), [("float32", 2**24), ("float64", 2**53)])
def test_assembled_integers_that_the_dtype_rounds_raise(floating, exact):
    x, ids = torch.zeros(2, 3, dtype=getattr(torch, floating)), torch.tensor([1, exact])
    assemble = AssembledInputs(None, floating)
    assert assemble((x, ids), None)[0][0][:, 3].tolist() == [1, exact]
    for inputs, number in (((x, ids + 1), exact + 1), ((x[:, :0], -ids - 1), exact + 1), ((ids * 0 - 2**63,), 2**63)):
        with pytest.raises(InvalidInput, match=f"assembleInputs is True, and {floating} rounds .* {number}"):
            assemble(inputs, None)
