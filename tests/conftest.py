"""What the tests on Spark share. Only one SparkContext can live in a process: whoever needs another one drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.class_archive import share_classes
from tests.job_fixtures import jobs, read, refused  # noqa: F401 - fixtures
from tests.sessions import Finished, drive, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """Before any JVM is started."""
    share_classes()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is given Spark needs real executors and time for them to start, whatever else it says."""
    for item in items:
        if {"spark", "driver"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process: two executors with one core each.

    Its Python workers are forked from ``tests.worker_daemon``. Those of drivers that are processes of their own are as
    users have them.
    """
    with session(tmp_path_factory.mktemp("spark"), python__daemon__module="tests.worker_daemon") as found:
        yield found


@pytest.fixture
def driver() -> Callable[..., Finished]:
    """``drive``: a Spark driver that is a process of its own."""
    return drive
