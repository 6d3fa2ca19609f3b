"""The contract of strategies and layouts on one card: NCCL in a gang of one, gloo in a gang of two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sparkdl.cluster.local import LocalCluster
from tests.contracts.strategy_contract import SynchronousContract

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class TestOneCard(SynchronousContract):
    @pytest.fixture(scope="class", params=[(1, "auto"), (2, "gloo")], ids=["NCCL of one", "gloo of two"])
    def cluster(self, request) -> Iterator[LocalCluster]:
        size, backend = request.param
        with LocalCluster(size, device="cuda", backend=backend) as cluster:
            yield cluster
