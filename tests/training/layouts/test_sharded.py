"""A sharded model trains as a single process does."""

from __future__ import annotations

import pytest

from sparkdl.training.layouts.sharded import Sharded
from tests.contracts.strategy_contract import CASES, SynchronousContract


class TestSharded(SynchronousContract):
    layout = Sharded()
    cases = tuple(name for name in CASES if "sparse" not in name)

    @pytest.fixture
    def cluster(self, pair):
        return pair
