"""What all reducers guarantee, on two and three workers."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers.cast import Cast
from sparkdl.training.strategies.reducers.exact import Exact
from sparkdl.training.strategies.reducers.one_bit import OneBit
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from sparkdl.training.strategies.reducers.topk import TopK
from tests.contracts import work
from tests.contracts.strategy_contract import Case, assert_equal, numbers
from tests.training.strategies.reducers.reducing import Reduce

FEEDBACK = [TopK(0.05), OneBit(warmup=1), PowerSGD(rank=2, warmup=1, min_compression_rate=0.5)]
LOSSY = [Cast(), Cast("fp16"), *FEEDBACK]
LOSSLESS = [TopK(1.0), PowerSGD(rank=64, warmup=0, min_compression_rate=1e-3)]


def assert_same(results):
    """All workers have the same bits."""
    for result in results[1:]:
        for step, expected in zip(result["sums"], results[0]["sums"], strict=True):
            assert all(map(torch.equal, step, expected))


@pytest.mark.parametrize("reducer", [*LOSSY, *LOSSLESS], ids=str)
def test_workers_are_bit_identical_and_counts_and_bytes_exact(three, reducer):
    """One of them has no rows."""
    work = Reduce(reducer)
    results = three.gang(work)
    assert_same(results)
    for actual, expected in zip(results[0]["sums"], work.exact(3), strict=True):
        for buffer, total, used in zip(actual, expected, (1, 2, 4), strict=True):
            assert torch.equal(buffer[-used:], total[-used:])
    for result in results:
        assert all(stated == sent for stated, sent in result["bytes"])


@pytest.mark.parametrize("reducer", LOSSLESS, ids=str)
def test_nothing_is_lost(three, reducer):
    work = Reduce(reducer)
    for actual, expected in zip(three.gang(work)[0]["sums"], work.exact(3), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reducer", FEEDBACK, ids=str)
def test_sums_over_time_lack_only_the_last_residuals(three, reducer):
    work = Reduce(reducer, steps=(0, 12))
    results = three.gang(work)
    lost = sum(residual.abs().sum() for residual in results[0]["state"]["residuals"])
    assert lost > 1
    for index, exact in enumerate(map(sum, zip(*work.exact(3), strict=True))):
        missing = exact - sum(step[index] for step in results[0]["sums"])
        residual = sum(result["state"]["residuals"][index] for result in results)
        if "stripe_residuals" in results[0]["state"]:  # of the owners, in rank order
            residual = residual + torch.cat([result["state"]["stripe_residuals"][index] for result in results])
        torch.testing.assert_close(not_zero(missing), not_zero(residual), rtol=0, atol=1e-10)


def not_zero(values):
    """The elements of the parameters that travel compressed, except some that a worker sent whole."""
    return values[values.abs() > 1e-9]


@pytest.mark.parametrize("reducer", FEEDBACK, ids=str)
def test_resumed_sums_are_bit_identical(pair, reducer):
    straight = pair.gang(Reduce(reducer, steps=(0, 5)))
    for stop in (1, 3):  # in the uncompressed steps, and after
        stopped = pair.gang(Reduce(reducer, steps=(0, stop)))
        states = tuple(unpack_state(pack_state(result["state"])) for result in stopped)
        resumed = pair.gang(Reduce(reducer, steps=(stop, 5), states=states))
        for result, expected in zip(resumed, straight, strict=True):
            assert_same([result, expected | {"sums": expected["sums"][stop:]}])
            assert result["bytes"] == expected["bytes"][stop:]


@pytest.mark.parametrize("reducer", FEEDBACK, ids=str)
def test_infinite_gradient_reaches_all_and_leaves_no_residual(pair, reducer):
    results = pair.gang(Reduce(reducer, steps=(0, 4), poison=1))
    for ours, theirs in zip(*(itertools.chain(*result["sums"]) for result in results), strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
    for result in results:
        finite = [all(bool(buffer.isfinite().all()) for buffer in step) for step in result["sums"]]
        assert finite == [True, False, True, True]


@pytest.mark.parametrize("reducer", [*LOSSY, *LOSSLESS], ids=str)
def test_group_of_one_changes_nothing(reducer):
    (bucket,) = make_buckets([nn.Parameter(torch.ones(40, 24))], 1 << 20)
    expected = bucket.buffer.normal_().clone()
    reduction = reducer.open([bucket], Group())
    reduction.start(bucket).wait()
    assert torch.equal(bucket.buffer, expected)
    assert reduction.bytes_per_step == 0
    reduction.load_state_dict(reduction.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reducer", [*LOSSY, *LOSSLESS], ids=str)
def test_other_dtypes(pair, reducer, dtype):
    results = pair.gang(Reduce(reducer, steps=(0, 3), dtype=dtype))
    assert_same(results)
    assert {buffer.dtype for step in results[0]["sums"] for buffer in step} == {dtype}


@pytest.mark.parametrize("reducer", FEEDBACK, ids=str)
def test_state_of_another_reducer_raises(reducer):
    buckets = make_buckets([nn.Parameter(torch.ones(40, 24))], 1 << 20)
    reduction = reducer.open(buckets, Group(0, 2))
    with pytest.raises(InvalidInput, match=r"the saved residuals have the shapes .*Resume with the reducer"):
        reduction.load_state_dict(Exact().open(buckets, Group(0, 2)).state_dict())


@pytest.mark.parametrize("reducer", LOSSY, ids=str)
def test_complex_parameters_raise(reducer):
    buckets = make_buckets([nn.Parameter(torch.ones(4, dtype=torch.complex64))], 1 << 20)
    with pytest.raises(InvalidInput, match="complex64; expected real ones"):
        reducer.open(buckets, Group(0, 2))


@pytest.mark.parametrize("reducer", [*LOSSY, *LOSSLESS], ids=str)
def test_training(pair, reducer):
    case = Case(batch_size=10)
    fits = [
        pair.gang(work.Fit(case.training(AllReduce(one, bucket_bytes=64))), numbers(), case.columns())
        for one in (replace(reducer), Exact())
    ]
    assert_equal(fits[0][1]["parameters"], fits[0][0]["parameters"])
    if reducer in LOSSLESS:
        assert_equal(fits[0][0]["parameters"], fits[1][0]["parameters"], 1e-12)
