"""What tests on Spark share. A process has at most one SparkContext, so a test may drive another process.

Tests share one session per kind of master: those in tests/spark have executors (tests/spark/conftest.py) and run last,
all others run tasks in the driver's JVM. Those in tests/connect are clients of a server.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_timeout

from sparkdl.cluster.local import LocalCluster
from tests.class_archive import share_classes
from tests.cli.configurations import nets, read, refused  # noqa: F401 - fixtures
from tests.sessions import IN_PROCESS, Finished, abandon_call, drive, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ON_EXECUTORS, CONNECT = Path(__file__).with_name("spark"), Path(__file__).with_name("connect")


def pytest_configure() -> None:
    """Before any JVM is started."""
    gc.disable()  # until all tests are imported: collections take a quarter of the imports' time
    share_classes()
    # With SQLAlchemy, which Optuna needs, MLflow's own default would be a database in the current folder.
    os.environ.setdefault("MLFLOW_TRACKING_URI", Path(tempfile.gettempdir(), "sparkdl-mlflow").as_uri())
    fail = pytest_timeout.timeout_sigalrm

    def after_a_limit(*arguments: Any) -> None:
        # A test's time limit may cut off a call of the JVM, and what ends the test calls the JVM as well.
        try:
            abandon_call()
        finally:
            fail(*arguments)

    pytest_timeout.timeout_sigalrm = after_a_limit


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with Spark as ``cluster``, and tests on four workers as ``slow``.

    Tests with executors run after all others, and tests of Spark Connect run last.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "four" in fixtures:  # the workers wait for each other on two cores
            item.add_marker(pytest.mark.slow)
        if {"spark", "driver"} & fixtures:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
    items.sort(key=lambda item: (CONNECT in item.path.parents, ON_EXECUTORS in item.path.parents))


def pytest_collection_finish() -> None:
    """Exempt imports from garbage collection: a full collection would search half a million objects of torch."""
    gc.collect()  # freeze would keep existing garbage for ever
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many minutes the tests of each room took."""
    minutes: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                minutes[str(Path(report.nodeid.partition("::")[0]).parent)] += report.duration / 60
    terminalreporter.write_sep("=", "minutes by room")
    for room, spent in minutes.most_common():
        terminalreporter.write_line(f"{spent:6.1f} {room}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process, with two cores in the driver's JVM."""
    with session(tmp_path_factory.mktemp("spark"), IN_PROCESS) as spark:
        yield spark


@pytest.fixture(scope="session")
def pair() -> Iterator[LocalCluster]:
    """Two worker processes, which the tests of this process share; a killed one is replaced."""
    with LocalCluster(2, timeout=60.0) as cluster:
        yield cluster


@pytest.fixture
def driver() -> Callable[..., Finished]:
    """``drive``: a Spark driver that is a process of its own."""
    return drive
