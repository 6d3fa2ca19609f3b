"""What a layout knows of the rows before workers read them."""

from __future__ import annotations

import pytest

from sparkdl.data.sampler import Plan
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.feed import Feed


@pytest.mark.parametrize("rows", [(12, 13, 11, 14), (0, 40, 3, 0), (5, 0, 0, 1)])
@pytest.mark.parametrize("ranks", [(0,), (0, 1), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_most_rows_of_a_step(rows, ranks, drop_last):
    plan = Plan(rows, 7, drop_last=drop_last)
    exact = max(sum(plan.count(rank, step) for rank in ranks) for step in range(plan.steps))
    assert Feed(plan).most_rows(ranks) == exact
    bound = Feed(plan, validated=True).most_rows(ranks)
    assert exact <= bound <= 7


def test_there_is_no_spare_row_before_the_rows_are_read():
    with pytest.raises(InvalidInput, match=r"no spare row yet; a layout asks for it in a pass, not in place\(\)"):
        Feed(Plan((1,), 1)).spare_row()
