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


@pytest.fixture(scope="module")
def nccl() -> Iterator[LocalCluster]:
    with LocalCluster(1, device="cuda") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gloo() -> Iterator[LocalCluster]:
    with LocalCluster(2, device="cuda", backend="gloo") as cluster:
        yield cluster


class TestNcclOfOne(SynchronousContract):
    @pytest.fixture
    def cluster(self, nccl):
        return nccl


class TestGlooOfTwo(SynchronousContract):
    @pytest.fixture
    def cluster(self, gloo):
        return gloo
