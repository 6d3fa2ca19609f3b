"""A gang of two for many tests, its undisturbed run, and a check that no test leaves sockets or files."""

import os

import pytest

from sparkdl.cluster.local import LocalCluster
from tests.chaos.leavings import descendants, nothing_left, tcp, temporary
from tests.chaos.runs import SIZE, undisturbed


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    """The folder of temporary files, which each gang leaves empty."""
    with temporary(tmp_path_factory.mktemp("spool")) as folder:
        yield folder


@pytest.fixture(scope="module")
def pair(spool):
    with nothing_left(), LocalCluster(SIZE, timeout=60) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(pair):
    return undisturbed(pair)


@pytest.fixture(autouse=True)
def _nothing_left(spool):
    yield
    assert tcp({os.getpid(), *descendants()}) == set()
    assert list(spool.iterdir()) == []
