"""Batches reach a GPU on a copy stream; a recording fake stands for the GPU."""

from __future__ import annotations

import pytest
import torch

from sparkdl.data.batch import arguments
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.transforms import Transforms
from tests.data.test_batching import ID, INPUTS, PLAIN, WEIGHTED, shards, weighted
from tests.fake_gpu import GPU, MAIN, install

SIZES = (300, 0, 97)
RAGGED = Columns((INPUTS[0], InputColumn("tokens", ragged="padded")), row_id=ID)


def augmented(inputs, target, generator):
    return inputs, target


@pytest.mark.parametrize("columns", [PLAIN, WEIGHTED, RAGGED], ids=["plain", "weighted", "ragged"])
@pytest.mark.parametrize("transforms", [None, Transforms(augment=augmented)], ids=["stored", "augmented"])
def test_batches_equal_those_of_the_cpu_and_arrive_by_a_side_stream(monkeypatch, columns, transforms):
    monkeypatch.setattr("sparkdl.data.batching._GATHER_STEPS", 4)
    dataset = shards(SIZES, columns, arrival=3)
    shard = (weighted(dataset) if columns.weight else dataset)[0]
    plan = Plan(SIZES, 16, seed=5)
    on_cpu = [*Batcher(shard, plan, transforms=transforms).batches(0)]

    gpu = install(monkeypatch)
    seen = []
    for batch in Batcher(shard, plan, GPU, transforms).batches(0):
        seen.append(batch)
        gpu.log.append(("step",))
    for one, other in zip(seen, on_cpu, strict=True):
        pairs = [*zip(arguments(one.inputs), arguments(other.inputs), strict=True)]
        pairs += [pair for pair in ((one.target, other.target), (one.weights, other.weights)) if pair[1] is not None]
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    copies = gpu.kinds("to")
    assert copies
    assert {(stream, pinned, blocking) for _, stream, pinned, blocking in copies} == {("side 1", True, False)}
    assert {entry[1:] for entry in gpu.kinds("wait")} == {(MAIN, "side 1")}  # a step waits on its own stream
    assert {entry[1] for entry in gpu.kinds("record")} == {MAIN}
    assert not gpu.kinds("synchronize")  # the CPU waits for nothing
    items = len(gpu.kinds("event"))
    assert items == len(gpu.kinds("wait")) > 1
    assert gpu.log.index(("wait", MAIN, "side 1")) < gpu.log.index(("step",))


def test_copies_are_ahead_of_the_step(monkeypatch):
    monkeypatch.setattr("sparkdl.data.batching._GATHER_STEPS", 1)
    (shard,) = shards((64,), PLAIN)
    gpu = install(monkeypatch)
    batches = Batcher(shard, Plan((64,), 8), GPU).batches(0)
    next(batches)
    while len(gpu.kinds("event")) < 3:  # two are ready and the next is being made
        torch.randn(100).sum()
    batches.close()
