"""A cached shard and batches on a copy stream equal those of the host; these tests need no GPU."""

import pytest
import torch

from sparkdl.data.batch import arguments
from sparkdl.data.batching import Batcher, DeviceCache, fits
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from tests.data.test_batching import ID, INPUTS, PLAIN, WEIGHTED, assert_same, shards, weighted
from tests.fake_gpu import MAIN, install

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
SIZES = (300, 0, 97)
RAGGED = Columns((INPUTS[0], InputColumn("tokens", ragged="padded")), row_id=ID)


@pytest.fixture
def held(monkeypatch):
    """Lets a shard be held on the CPU, as on a GPU with enough memory."""
    monkeypatch.setattr("sparkdl.data.batching.fits", lambda size, device, mode: True)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("columns", [PLAIN, WEIGHTED], ids=["plain", "weighted"])
def test_batches_equal_those_from_the_host(columns):
    dataset = shards(SIZES, columns, arrival=3)
    dataset = weighted(dataset) if columns.weight else dataset
    plan = Plan(SIZES, 16, seed=5)
    for shard in dataset:
        cache = DeviceCache.of(shard, CPU)
        assert cache is not None
        for epoch, start in ((0, 0), (1, 7)):
            batchers = Batcher(shard, plan), Batcher(shard, plan, cache=cache)
            copied, held = ([list(batcher.batches(epoch, start=start))] for batcher in batchers)
            assert_same(held, copied)


@pytest.mark.usefixtures("held")
def test_ragged_columns_stay_on_the_host():
    (shard,) = shards((8,), RAGGED)
    assert DeviceCache.of(shard, CPU) is None
    with pytest.warns(UserWarning, match="cacheOnDevice='always' is ignored: a column is ragged"):
        assert DeviceCache.of(shard, CPU, "always") is None


def test_a_shard_is_measured_in_the_types_of_the_batches(monkeypatch):
    sizes = []
    monkeypatch.setattr("sparkdl.data.batching.fits", lambda size, *_: sizes.append(size) or False)
    (shard,) = shards((10,), Columns((InputColumn("row", "int32"), InputColumn("x", "float32"))))
    assert DeviceCache.of(shard, GPU) is None
    assert sizes == [10 * (8 + 2 * 4)]


@pytest.mark.parametrize(
    ("size", "device", "mode", "held"),
    [
        (50, GPU, "auto", True),
        (51, GPU, "auto", False),
        (100, GPU, "always", True),
        (1, GPU, "never", False),
        (1, CPU, "auto", False),
    ],
)
def test_a_gpu_holds_what_takes_half_of_its_free_memory(size, device, mode, held, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 1000))
    assert fits(size, device, mode) == held


def test_what_cannot_be_held_raises_or_warns(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 1000))
    with pytest.raises(InvalidInput, match="the shard takes 101 bytes, and cuda:0 has 100 bytes free"):
        fits(101, GPU, "always")
    with pytest.warns(UserWarning, match="cacheOnDevice='always' is ignored: device is 'cpu'"):
        assert not fits(1, CPU, "always")


# ---- batches on a copy stream; a recording fake stands for the GPU ---------------------------------------------------


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
