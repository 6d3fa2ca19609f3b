"""A gang of two that is used again and again, what its run ends with, and a look at what each test leaves behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.local import LocalCluster
from tests.chaos.leavings import descendants, nothing_left, tcp, temporary
from tests.chaos.runs import SIZE, undisturbed


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where temporary files go, and stay in no case."""
    with temporary(tmp_path_factory.mktemp("spool")) as folder:
        yield folder


@pytest.fixture(scope="module")
def pair(spool: Path) -> Iterator[LocalCluster]:
    """Two members; those that are lost are replaced."""
    with nothing_left(), LocalCluster(SIZE, timeout=60) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole(pair: LocalCluster) -> Any:
    """What an undisturbed run ends with."""
    return undisturbed(pair)


@pytest.fixture(autouse=True)
def _nothing_left(spool: Path) -> Iterator[None]:
    """After a gang its members are idle or gone: there is no TCP socket and no temporary file."""
    yield
    assert tcp({os.getpid(), *descendants()}) == set()
    assert list(spool.iterdir()) == []
