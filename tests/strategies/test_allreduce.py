"""All-reduce is the optimizer of a single process."""

from __future__ import annotations

import pytest

from sparkdl.cluster import InlineCluster, LocalCluster
from tests.contracts.strategy_contract import SynchronousContract

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", params=[1, 2, 4])
def members(request):
    if request.param == 1:
        yield InlineCluster()
        return
    with LocalCluster(request.param) as cluster:
        yield cluster


class TestAllReduce(SynchronousContract):
    @pytest.fixture
    def cluster(self, members):
        return members
