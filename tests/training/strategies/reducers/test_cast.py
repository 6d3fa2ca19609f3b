"""Half precision."""

import pytest
import torch

from sparkdl.training.strategies.reducers.cast import Cast
from sparkdl.training.strategies.reducers.exact import Exact
from tests.training.strategies.reducers.reducing import Reduce


@pytest.mark.parametrize(("dtype", "error"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_integers_are_exact_and_others_rounded(pair, dtype, error):
    integers, others = Reduce(Cast(dtype), dtype=torch.float32, scale=10.0), Reduce(Cast(dtype), dtype=torch.float32)
    for work, bound in ((integers, 0.0), (others, 3 * error)):
        for actual, expected in zip(pair.gang(work)[0]["sums"], work.exact(2), strict=True):
            for buffer, total in zip(actual, expected, strict=True):
                # Both terms are rounded, then their sum; a small sum of large terms keeps the terms' error.
                assert ((buffer - total).abs() <= bound * 10).all()
    exact, cast = (pair.gang(Reduce(one, dtype=torch.float32))[0]["bytes"][0][0] for one in (Exact(), Cast(dtype)))
    counts = 4 * 7
    assert cast - counts == (exact - counts) // 2
