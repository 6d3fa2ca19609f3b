"""Spark on this machine alone: a session of this process, and drivers that are processes of their own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = Path(__file__).resolve().parents[1]
EXECUTORS = "local-cluster[2,1,1024]"
"""Two executors, each a JVM of its own with one core."""
IN_PROCESS = "local[2,2]"
"""Two cores in the driver's JVM, and two attempts for each task: a job takes a third less processor time."""

# A driver that hangs says where, before it is killed.
_DRIVER = """
import faulthandler, importlib, json, sys
faulthandler.dump_traceback_later({warning})
function = getattr(importlib.import_module({module!r}), {name!r})
result = function(*json.loads(sys.argv[1]))
print(json.dumps(result), flush=True)
"""


def make_loggers() -> None:
    """Make pyspark's loggers of errors with a query context, such that they leave handlers as they are.

    They would make every handler write JSON, also pytest's, and ``caplog.text`` of all later tests.
    """
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        logger.addHandler = partial(logging.Logger.addHandler, logger)  # type: ignore[method-assign]


@contextlib.contextmanager
def session(folder: str | os.PathLike[str], master: str = EXECUTORS, **conf: str) -> Iterator[Any]:
    """A session with files in ``folder``; in names of ``conf`` two underscores are a dot, after ``spark.``."""
    from pyspark.sql import SparkSession

    make_loggers()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The status store writes counts down at most this often: nothing may depend on how new they are.
        "spark.ui.liveUpdate.period": "1h",
        # Sessions are short: without the optimising compiler their JVMs take half the processor time.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # A Python worker ends with an error it raises: every further attempt starts one and imports torch again.
        "spark.task.maxFailures": "2",
        # By default the worker of a cancelled task trains for two more seconds before Spark kills it.
        "spark.python.task.killTimeout": "200ms",
        "spark.sql.warehouse.dir": Path(folder, "warehouse").as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.sparkdl.modules": "tests",
    } | {f"spark.{name.replace('__', '.')}": value for name, value in conf.items()}
    with pytest.MonkeyPatch.context() as patch:  # what Spark's processes have from this one, from then on
        patch.setenv("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName("sparkdl tests")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def conf(spark: Any, key: str, value: str) -> Iterator[None]:
    """A block in which a setting of the session has this value."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)


def abandon_call() -> None:
    """Cancel the jobs of the active session, and drop this thread's connection to the JVM, if there is one.

    If an exception cuts a call off, py4j takes the answer to it for the answer to the next call, and so on.
    """
    pyspark = sys.modules.get("pyspark")
    context = pyspark and pyspark.SparkContext._active_spark_context
    if context is not None:
        if (connection := context._gateway._gateway_client.get_thread_connection()) is not None:
            connection.close()
        context.cancelAllJobs()


@dataclass(frozen=True)
class Finished:
    """A driver that has ended: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """What the driver's function returned."""
        assert self.code == 0, f"the driver ended with {self.code}\n{self.out}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])


def command(function: Callable[..., Any], *arguments: Any, timeout: float) -> list[str]:
    """The command that calls a top-level function, and prints its result as the last line."""
    script = _DRIVER.format(warning=timeout - 10, module=function.__module__, name=function.__qualname__)
    return [sys.executable, "-c", script, json.dumps(arguments, default=str)]


def drive(function: Callable[..., Any], *arguments: Any, timeout: float = 280.0) -> Finished:
    """Call a top-level function in another Python, and kill its process group at the end or after ``timeout`` s."""
    process = subprocess.Popen(
        command(function, *arguments, timeout=timeout),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Finished(process.returncode, out, err)


def driver_environment(local: str | os.PathLike[str], **more: str) -> dict[str, str]:
    """The environment of a Python or spark-submit that a test starts, with its files in ``local``."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(local),
        **more,
    }


def frame(arrays: dict[str, np.ndarray]) -> DataFrame:
    """Arrays ``[rows, ...]`` as a DataFrame of the active session."""
    from pyspark.sql import SparkSession

    columns = {}
    for name, array in arrays.items():
        kind = pa.from_numpy_dtype(array.dtype)
        for _ in array.shape[1:]:
            kind = pa.list_(kind)
        columns[name] = pa.array(array.tolist(), kind)
    return SparkSession.active().createDataFrame(pa.table(columns))
