"""1-bit SGD: by hand, and against a serial simulation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers.one_bit import OneBit
from tests.training.strategies.reducers.reducing import Reduce

# The second has three columns of 16 elements; the last has several blocks.
SHAPES = ((13, 7), (3, 4, 2, 2), (40, 24), (2500, 37))


def quantised(a: Tensor) -> Tensor:
    """Q^-1(Q(a)), whose columns are the rows of a matrix."""
    high, low = ((a * q).sum(1, keepdim=True) / q.sum(1, keepdim=True).clamp(min=1) for q in (a >= 0, a < 0))
    return torch.where(a >= 0, high, low)


def owned_columns(gradients: Sequence[Tensor], rank: int, workers: int) -> list[Tensor]:
    """Which columns of each matrix a worker owns: those that start in its share of all elements."""
    elements, start, owned = sum(map(Tensor.numel, gradients)), 0, []
    for gradient in gradients:
        starts = start + torch.arange(len(gradient)) * (gradient.numel() // len(gradient))
        owned.append((starts >= elements * rank // workers) & (starts < elements * (rank + 1) // workers))
        start += gradient.numel()
    return owned


def simulate(work: Reduce, workers: int) -> list[Tensor]:
    """The sums of one bucket by step, with all workers in this process; both residuals of all owners in one matrix."""
    (bucket,) = make_buckets([nn.Parameter(torch.zeros(shape, dtype=work.dtype)) for shape in work.shapes], 1 << 20)
    residuals = [[torch.zeros_like(one.flatten(1)) for one in bucket.gradients] for _ in range(workers + 1)]
    sums = []
    for step in range(*work.steps):
        totals = residuals[workers]
        for rank in range(workers):
            work.fill([bucket], step, rank)
            owned = owned_columns(bucket.gradients, rank, workers)
            for gradient, residual, total, own in zip(bucket.gradients, residuals[rank], totals, owned, strict=True):
                residual.add_(gradient.flatten(1))
                sent = torch.where(own[:, None], residual, quantised(residual))
                residual.sub_(sent)
                total.add_(sent)
        sent_to_all = [quantised(total) for total in totals]
        for total, sent in zip(totals, sent_to_all, strict=True):
            total.sub_(sent)
        sums.append(torch.cat([sent.flatten() for sent in sent_to_all]))
    return sums


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sums_equal_a_serial_simulation(request, workers):
    work = Reduce(OneBit(warmup=0), steps=(0, 6), shapes=SHAPES, bucket_bytes=1 << 20)
    cluster = request.getfixturevalue({2: "pair", 4: "four"}[workers])
    results = cluster.gang(work)
    for (buffer,), expected in zip(results[0]["sums"], simulate(work, workers), strict=True):
        torch.testing.assert_close(buffer[: len(expected)], expected, rtol=0, atol=1e-11)


def test_bytes_count_the_uncompressed_steps(pair):
    work = Reduce(OneBit(warmup=2), shapes=((64, 128), (64,)), dtype=torch.float32)
    sizes = [stated for stated, _ in pair.gang(work)[0]["bytes"]]
    uncompressed = 4 * (64 + 2)
    # A stripe has 32 columns of 128 bits and two numbers; each travels to and from its owner.
    assert sizes == [4 * (64 * 128) + uncompressed] * 2 + [2 * 32 * (128 // 8 + 8) + uncompressed] * 2
