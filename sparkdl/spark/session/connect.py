"""The session of Spark Connect: the driver runs in a server, and this process is a client without a JVM.

The client sees no scheduler. The plan of a range shows the number of cores, as its partitions by default. Progress
reports, every two seconds by default, say how many tasks of a query run: a gang whose query runs none waits for slots.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
from pyspark import inheritable_thread_target
from pyspark.resource import ResourceProfile
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.proto import ResourceProfile as ProfileRequest
from pyspark.sql.connect.proto import TaskResourceRequest as TaskRequest
from pyspark.sql.types import StructType

from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.io.threads import in_background
from sparkdl.spark.python_worker import NumberTask
from sparkdl.spark.session.outage import announce_outages
from sparkdl.spark.session.settings import EXECUTOR_GPUS, TASK_GPUS, setting, task_requests
from sparkdl.spark.session.shared_bytes import InlineBytes

if TYPE_CHECKING:
    from pyspark.ml.wrapper import JavaParams

_MOST_BYTES = 64 << 20  # in a query; a server with the default memory of 1 GiB fails at 100 MiB
_FRESH = 2.0  # seconds for which a number of slots holds
_IDLE = 5.0  # seconds without a running task after which a query counts as waiting: two reports and a half
_HIDING = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism", "spark.dynamicAllocation.enabled")
_LEAST = 2  # Spark's default number of partitions on a cluster, with fewer cores too, and before executors register
_STAGE = ("num_completed_tasks", "num_tasks")
_ADDRESS = "spark.sparkdl.driver.host"


@dataclass
class _Query:
    """A query of this process."""

    patience: float | None  # seconds without a running task after which it waits for slots; None if reports are rare
    idle_since: float | None  # None while tasks run
    tasks: tuple[int, int, int] | None = None  # that run, that have ended, and all of its stages so far
    answer: Future[list[Any]] | None = None
    interrupt: Future[list[str]] | None = None


@dataclass
class _ServerState:
    """What this process knows of a session on the server."""

    profiles: dict[tuple[int | None, float | None], ResourceProfile] = field(default_factory=dict)
    queries: dict[str, _Query] = field(default_factory=dict)  # by tag
    cores: tuple[float, int | None] = (-_FRESH, None)  # and when they were counted
    lock: threading.Lock = field(default_factory=threading.Lock)
    checked: bool = False
    asked: bool = False
    interval: float | None = None  # seconds between reports of progress, once the server was asked


@cache
def _state_of(session_id: str) -> _ServerState:
    return _ServerState()


def connect_session(spark: SparkSession) -> ConnectSession:
    """The session; raises ClusterUnavailable if the server's Spark is older than 4."""
    session = ConnectSession(spark)
    state = _state_of(session.application())
    if not state.checked and int(spark.version.partition(".")[0]) < 4:
        raise ClusterUnavailable(f"the server has Spark {spark.version}; expected Spark 4.0 or later.")
    if not state.checked:
        announce_outages(spark)
        state.checked = True
    return session


@dataclass(frozen=True)
class ConnectSession:
    """``sparkdl.spark.session.protocol.Session`` by Spark's public API alone."""

    spark: SparkSession

    @property
    def _state(self) -> _ServerState:
        return _state_of(self.application())

    def master(self) -> str:
        return setting(self.spark, "spark.master")

    def application(self) -> str:
        return str(self.spark.session_id)  # type: ignore[attr-defined]

    def qualify(self, path: str) -> str:
        return path

    def forwarding_sigterm(self) -> AbstractContextManager[None]:
        return nullcontext()  # the signal comes to this process

    def channel_address(self) -> tuple[str, str] | None:
        host = setting(self.spark, _ADDRESS)
        return (host, setting(self.spark, "spark.sparkdl.driver.bindAddress") or host) if host else None

    def has_rdds(self) -> bool:
        return False

    # ---- capacity --------------------------------------------------------------------------------------------------

    def parallelism(self) -> int:
        return self._cores() or 1

    def hidden_slots(self) -> str:
        return next((name for name in _HIDING if setting(self.spark, name) not in ("", "false")), "")

    def slots(self, cpus: int | None, gpus: float | None) -> tuple[int | None, int | None]:
        cores = None if self.hidden_slots() else self._cores()
        if cores is None:
            return None, None
        cpus = cpus or int(setting(self.spark, "spark.task.cpus") or 1)
        taken, offered = (float(setting(self.spark, name) or 0) for name in (TASK_GPUS, EXECUTOR_GPUS))
        taken = taken if gpus is None else gpus
        size = int(setting(self.spark, "spark.executor.cores") or 0)  # by default, an executor has its host's cores
        if not size:
            return None if taken and offered else cores // cpus, None
        tasks = min(size // cpus, int(offered / taken)) if taken and offered else size // cpus
        return cores // size * tasks, None

    def _cores(self) -> int | None:
        """Spark's default number of partitions, which is the number of registered cores unless a setting hides it."""
        state = self._state
        with state.lock:
            counted, cores = state.cores
            if time.monotonic() - counted > _FRESH:
                # Spark plans it and runs no task, which would wait for the slots that a gang holds.
                plan = self.spark.sql("EXPLAIN SELECT * FROM range(8)").collect()[0][0]
                splits = re.search(r"Range \(.*splits=(\d+)\)", plan)
                cores = None if splits is None else int(splits[1])
                cores = (
                    self._configured_cores() if cores == _LEAST and not self.master().startswith("local[") else cores
                )
                state.cores = time.monotonic(), cores
        return cores

    def _configured_cores(self) -> int | None:
        """The cores of all executors by the settings, if these are so few that all register at once."""
        cluster = re.fullmatch(r"local-cluster\[(\d+),(\d+),\d+\]", self.master())
        names = ("spark.executor.instances", "spark.executor.cores")
        numbers = cluster.groups() if cluster else [setting(self.spark, name) or "0" for name in names]
        cores = int(setting(self.spark, "spark.cores.max") or 0) or int(numbers[0]) * int(numbers[1])
        return cores if 0 < cores <= _LEAST else None

    def profile(self, cpus: int | None, gpus: float | None) -> ResourceProfile | None:
        state, requests = self._state, task_requests(self.spark, cpus, gpus)
        if requests is None:
            return None
        with state.lock:
            if (cpus, gpus) not in state.profiles:
                # pyspark would ask for a profile's number later, by the active session of a thread that may have none.
                asked, client = requests.requests, cast("Any", self.spark).client
                taken = {name: TaskRequest(resource_name=name, amount=one.amount) for name, one in asked.items()}
                profile = ResourceProfile(_task_req=asked)
                profile._id = client._create_profile(ProfileRequest(task_resources=taken))
                state.profiles[cpus, gpus] = profile
            return state.profiles[cpus, gpus]

    def registration_wait(self) -> float:
        return 0.0

    def task_attempts(self) -> int:
        return int(setting(self.spark, "spark.task.maxFailures") or 4)

    def executors(self) -> frozenset[str]:
        daemon = setting(self.spark, "spark.python.daemon.module")
        return frozenset({daemon} if daemon else ())  # one name for all, which warm_up needs if sparkdl is the daemon

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def described(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()  # the server describes a job by its query

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        state, session = self._state, cast("Any", self.spark)
        if not state.asked:  # once, and not in each round
            state.interval, state.asked = self._report_seconds(), True
        patience = None if state.interval is None else max(_IDLE, 2.5 * state.interval)
        query = state.queries[tag] = _Query(patience, time.monotonic())

        def progress(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            if tag in session.getTags():  # handlers get the reports of all queries, each in its query's thread
                query.idle_since = None if inflight_tasks else query.idle_since or time.monotonic()
                ended, of = (sum(getattr(stage, name) for stage in stages or ()) for name in _STAGE)
                query.tasks = query.tasks if done else (inflight_tasks, ended, of)

        session.registerProgressHandler(progress)
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)
            session.removeProgressHandler(progress)
            del state.queries[tag]

    def collect(self, rows: DataFrame, tag: str) -> list[Any]:
        # In a thread of its own, whose end is that of the query: an interrupt of this thread, such as Ctrl-C, would
        # leave the client of pyspark at once, and the server does not say when a query has ended.
        inheriting = inheritable_thread_target(self.spark)
        answer = self._state.queries[tag].answer = in_background(inheriting(rows.collect), f"sparkdl-query-{tag}")
        return answer.result()

    def cancel(self, tag: str) -> None:
        query = self._state.queries.get(tag) or _Query(None, None)
        if query.interrupt is None or query.interrupt.done():  # a server that has gone never answers
            query.interrupt = in_background(partial(self.spark.interruptTag, tag), "sparkdl-cancel")

    def runs(self, tag: str) -> bool:
        query = self._state.queries.get(tag)
        return query is not None and query.answer is not None and not query.answer.done()

    def state(self, tag: str) -> str | None:
        query = self._state.queries.get(tag)
        if query is None or query.patience is None or query.idle_since is None:
            return None
        return "waiting" if time.monotonic() - query.idle_since > query.patience else None

    def tasks(self, tag: str) -> tuple[int, int, int] | None:
        query = self._state.queries.get(tag)
        return None if query is None else query.tasks

    def _report_seconds(self) -> float | None:
        """Seconds between the server's reports of progress; None if it sends none, or the setting is unknown."""
        parts = re.fullmatch(
            r"(\d+)(ms|s|m|min|)", setting(self.spark, "spark.connect.progress.reportInterval") or "2s"
        )
        units = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "": 0.001}
        return int(parts[1]) * units[parts[2]] or None if parts else None

    def count_rows(self, rows: DataFrame, limit: int) -> int:
        return int(rows.select(F.lit(1)).limit(limit).toArrow().num_rows)

    def transformed_schema(self, stage: JavaParams, frame: DataFrame) -> StructType:
        transformer: Any = stage
        schema: StructType = transformer.transform(frame.limit(0)).schema
        return schema

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def share_workers(self) -> None:
        """Nothing: all tasks are those of DataFrames."""

    def run_tasks(
        self, task: Callable[[Iterable[int]], Iterator[Any]], numbers: list[int], *, barrier: bool = False
    ) -> list[Any]:
        size = len(numbers)
        rows = self.spark.range(0, size, 1, size).mapInArrow(
            NumberTask(task, tuple(numbers)).run, "row binary", barrier=barrier
        )
        return [cloudpickle.loads(row.row) for row in rows.collect()]

    def share(self, packed: bytes) -> InlineBytes:
        # Not in a file of addArtifacts: Spark 4.3 lists the files of an ended session for other sessions, and an
        # executor that starts later finds none of them and fails all of its tasks.
        if len(packed) > _MOST_BYTES:
            raise InvalidInput(
                f"the model has {len(packed) / 1e6:.0f} MB, and a query of Spark Connect carries at most "
                f"{_MOST_BYTES / 1e6:.0f} MB. Set runDir in the fit, to a folder that this process and the executors "
                "share; or save the model where executors can read it, and load it. Then weights of more than "
                f"{0.9 * _MOST_BYTES / 1e6:.0f} MB are in a file. An ensemble of smaller members, a model saved as a "
                "torch.export program and a model of withOutputs need a classic session."
            )
        return InlineBytes(packed)

    def query_limit(self) -> int | None:
        return _MOST_BYTES

    def release(self, frame: DataFrame) -> None:
        """Nothing: the server frees the blocks with the client's object."""
