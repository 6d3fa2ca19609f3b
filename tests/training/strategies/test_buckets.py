"""Buckets are a pure function of the parameter list, and their views are the memory that travels."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from sparkdl.training.strategies.buckets import FIRST_BYTES, assign, make_buckets


@pytest.mark.parametrize("seed", range(12))
def test_assignment_of_several_kinds(seed):
    draw = random.Random(100 + seed)
    sizes = [draw.randint(0, 40) for _ in range(50)]
    kinds = [draw.choice("abc") for _ in sizes]
    capacity, first = 100, 50
    buckets = assign(sizes, kinds, capacity, first)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(50))
    for bucket in buckets:
        assert bucket == sorted(bucket, reverse=True)
        assert len({kinds[index] for index in bucket}) == 1
        *others, _ = bucket
        assert sum(sizes[index] for index in others) < capacity
    for kind in "abc":  # each kind in its own order
        order = [index for bucket in buckets for index in bucket if kinds[index] == kind]
        assert order == sorted(order, reverse=True)
    # a bucket is sent when its last gradient comes: of those that were filled, the one that is filled first goes first
    filled = [bucket[-1] for bucket in buckets if sum(sizes[index] for index in bucket) >= capacity]
    assert filled == sorted(filled, reverse=True)


def test_first_bucket_is_small() -> None:
    sizes = [FIRST_BYTES // 2] * 8
    assert assign(sizes, ["f"] * 8, 4 * FIRST_BYTES) == [[7, 6], [5, 4, 3, 2, 1, 0]]
    assert assign([1, 1000, 1], ["f"] * 3, 10, first=1) == [[2], [1], [0]]
    assert len(make_buckets(list(nn.Linear(100, 100).parameters()), 100)) == 2  # smaller than torch's first bucket


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(3, 4), (4,), (), (0, 5), (2, 2, 2), (7,)]
    made = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    return [*made, nn.Parameter(torch.randn(5).double()), nn.Parameter(torch.randn(6).bfloat16())]


@pytest.mark.parametrize("capacity", [1, 40, 1 << 20])
def test_views_cover_buffer(capacity: int) -> None:
    tensors = parameters()
    buckets = make_buckets(tensors, capacity)
    assert make_buckets([], capacity) == []
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    assert sorted(index for bucket in buckets for index in bucket.parameters) == list(range(len(tensors)))
    for bucket in buckets:
        assert bucket.buffer.numel() == sum(view.numel() for view in bucket.gradients) + len(bucket.parameters)
        assert bucket.used.tolist() == [1] * len(bucket.parameters)
        for number, (index, view) in enumerate(zip(bucket.parameters, bucket.gradients, strict=True)):
            assert view.shape == tensors[index].shape
            assert view.dtype == tensors[index].dtype == bucket.buffer.dtype
            assert not view.any()
            view.fill_(number + 2)
        bucket.used.fill_(9)
        flat = [[float(number + 2)] * view.numel() for number, view in enumerate(bucket.gradients)]
        assert bucket.buffer.tolist() == [
            *(value for values in flat for value in values),
            *[9] * len(bucket.parameters),
        ]
