"""Gangs on a Spark cluster."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.elastic import emit_from_driver
from sparkdl.cluster.failure import Failure, WorkerResult, first_cause, raise_first_cause
from sparkdl.cluster.protocol import Capacity, Listener, gang_size
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.cluster.worker import Work, WorkerTask
from sparkdl.data.columns import Columns
from sparkdl.errors import ClusterUnavailable, ErrorContext, InvalidInput, SessionLost, WorkerLost
from sparkdl.io.fields import Count, NonNegative, Positive, checked
from sparkdl.io.pickling import ship
from sparkdl.net.protocol import Endpoint
from sparkdl.spark.barrier import SCHEMA, BarrierTask, assemble
from sparkdl.spark.columns import col, numbered, select_columns
from sparkdl.spark.error_messages import (
    cancellation,
    first_lines,
    invalid_setting,
    losing_session,
    missing_sparkdl,
    other_python,
)
from sparkdl.spark.executor_tasks import PackedFrame
from sparkdl.spark.job_watch import JobWatch
from sparkdl.spark.python_worker import PickledTask
from sparkdl.spark.rendezvous import AddressBook, driver_channel
from sparkdl.spark.session import Session, session_of, setting
from sparkdl.spark.session.errors import JVM_ERRORS
from sparkdl.spark.slots.capacity import (
    check,
    check_encryption,
    check_setting,
    check_slots,
    find_slots,
    wait_for_slots,
    warn_of_address_limit,
)
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.task_runner import ShardJobs, SparkTaskRunner, TaskSettings
from sparkdl.spark.warm_up import await_warm_up, warm_up
from sparkdl.telemetry.event import Event, observed
from sparkdl.telemetry.event_tail import EventTail
from sparkdl.telemetry.log_forwarding import level_of
from sparkdl.telemetry.task_recorder import Reporting

logger = logging.getLogger(__name__)

_reached: set[str] = set()  # the applications whose workers reach the driver
_GRACE = 20.0  # seconds for the other workers to report after one has failed


class SparkCluster:
    """A Spark cluster; a gang is one barrier job, in which each task reads one partition and runs one worker.

    If workers must not use the interface of the executor's address, ``spark.sparkdl.network`` sets its name or address.

    Args:
        spark: the session.
        size: workers of a gang.
        device: ``"cpu"`` or ``"cuda"``.
        backend: ``"nccl"``, ``"gloo"``, or ``"auto"`` for NCCL on GPUs and gloo on CPUs.
        task_cpus: cores of each task, of a gang or of rounds; None for ``spark.task.cpus``.
        task_gpus: GPUs of each task; None for 1 on GPUs, if the executors have any. Tasks of rounds, and workers under
            gloo, may share a GPU, as with 0.5.
        timeout: seconds until a collective, or the rendezvous, fails.
        resource_timeout: seconds to wait for executors, and again for slots that other jobs hold.
        allow_unencrypted: run even if Spark encrypts its traffic; the gang's traffic is not encrypted.
        event_directory: a folder that workers share, for events that cannot be sent to the driver; None to drop them.
        run_directory: a folder that workers and this process share, for large states of rounds in a session of Spark
            Connect; None without one.
        logs: lowest level of the log records that listeners get, one of ``sparkdl.telemetry.log_forwarding.LEVELS``.
        title: description of the jobs in the Spark UI, before the attempt or round.

    Raises:
        InvalidInput: ``size`` is below 1, or ``logs`` is no level.
    """

    def __init__(
        self,
        spark: SparkSession,
        size: int,
        *,
        device: str = "cpu",
        timeout: float = 600.0,
        resource_timeout: float = 120.0,
        backend: str = "auto",
        task_cpus: int | None = None,
        task_gpus: float | None = None,
        allow_unencrypted: bool = False,
        event_directory: str | None = None,
        run_directory: str | None = None,
        logs: str = "off",
        title: str = "sparkdl",
    ) -> None:
        warn_of_address_limit(spark)
        self.size, self._device, self._backend = checked(size, Count, "size"), device, backend
        self._spark, self._session = spark, session_of(spark)
        self._requests = TaskResources.of_training(spark, device, cpus=task_cpus, gpus=task_gpus)
        self._timeout = checked(timeout, Positive, "timeout")
        self._resource_timeout = checked(resource_timeout, NonNegative, "resource_timeout")
        self._allow_unencrypted = allow_unencrypted
        self._event_directory, self._run_directory = event_directory, run_directory
        self._level, self._title = level_of(logs), title

    def capacity(self) -> Capacity:
        """Capacity in task slots, whether free or in use."""
        check_setting(self._spark, allow_unencrypted=self._allow_unencrypted)
        return find_slots(self._spark, self._requests)

    def warm_up(self) -> None:
        """Start the executors' Python workers and let them load PyTorch, in the background.

        Call it before other work of the application, such as the ETL of a fit's data. Executors that are warm stay so:
        later calls only serve new ones. Its tasks take 0.2 s; ``conf/spark`` has the daemon that they need for that.
        """
        warm_up(self._spark, self.size, timeout=self._resource_timeout)

    def gang(
        self,
        work: Work,
        data: DataFrame | None = None,
        columns: Columns | Sequence[str] | None = None,
        *,
        listener: Listener | None = None,
        attempt: int = 0,
        cancellation: CancellationToken | None = None,
        size: int | None = None,
    ) -> list[Any]:
        """Run a gang as a barrier job, as ``Cluster.gang``; repartitions the DataFrame ``data`` by worker.

        Raises:
            SessionLost: the server of Spark Connect has gone, or ended the session.
            pyspark.errors.PySparkException: the query of the data failed before any worker started.
        """
        with observed(listener) as shown, losing_session():
            failures = _FailureListener(shown, gang_size(size, self.size), attempt)
            return self._gang(work, data, columns, failures, cancellation or CancellationToken())

    def _gang(
        self, work: Work, data: Any, columns: Any, failures: _FailureListener, cancellation: CancellationToken
    ) -> list[Any]:
        size, attempt, shipped = failures.size, failures.attempt, ship(work)
        check(self._spark, size, self._requests, shipped, allow_unencrypted=self._allow_unencrypted)
        self.warm_up()
        frame, specification = self._frame(data, columns, size)

        def waiting(what: str, seconds: float) -> None:
            cancellation.check()
            failures.waiting(what, seconds)

        wait_for_slots(self._spark, size, self._requests, timeout=self._resource_timeout, report=waiting)
        await_warm_up(self._spark, size)
        task = WorkerTask(
            shipped,
            size,
            uuid.uuid4().hex,
            attempt,
            specification,
            self._timeout,
            self._device,
            self._backend,
            fallback=self._event_directory,
            heartbeat=cancellation.heartbeat,
            level=self._level,
        )
        network, limit = setting(self._spark, "spark.sparkdl.network") or None, self._resource_timeout
        watch = JobWatch(self._spark, f"sparkdl-{task.run}", size, timeout=limit, report=failures.waiting)
        title = f"{self._title}, attempt {attempt}: {size} workers{_title_of(work)}"
        book = AddressBook(size)
        channel = self._channel(failures, book.answer)
        with (
            channel as endpoint,
            self._tail(endpoint, failures, attempt) as failures.tail,
            closing(book),
            self._session.described(title),
        ):
            if endpoint is None:  # without heartbeats, no late event is taken for a lost worker
                failures.has_channel, task = False, replace(task, heartbeat=None)
                if self._event_directory is None:
                    watch.show_tasks = partial(emit_from_driver, failures, "tasks", attempt)
            if endpoint is not None and self._session.application() in _reached:  # else it may be that no event arrives
                watch.is_silent = lambda seconds: not failures.started and seconds > self._timeout
            worker = PickledTask(ship(BarrierTask(replace(task, endpoint=endpoint), network, tuple(frame.columns))))
            rows = numbered(frame).mapInArrow(
                worker.run, SCHEMA, barrier=True, profile=self._requests.profile(self._spark)
            )
            return self._run(rows, watch, failures, cancellation)

    @contextmanager
    def map_reduce(
        self,
        data: DataFrame,
        columns: Columns | Sequence[str] | None = None,
        *,
        num_shards: int | None = None,
        shuffle: bool = True,
        listener: Listener | None = None,
    ) -> Iterator[TaskRunner]:
        """Map shards of a DataFrame in ordinary tasks, also under dynamic allocation, as ``Cluster.map_reduce``."""
        check_encryption(self._spark, allow_unencrypted=self._allow_unencrypted)
        if not self._requests.is_default:
            check_slots(self._spark, 1, self._requests)  # else Spark would wait for ever
        self.warm_up()
        with observed(listener) as shown, nullcontext() if listener is None else self._events(shown) as endpoint:
            settings = TaskSettings(
                size=self.size,
                requests=self._requests,
                device=self._device,
                reporting=Reporting(endpoint, None if listener is None else self._event_directory, level=self._level),
                title=self._title,
                listener=shown,
                directory=self._run_directory,
            )
            shards = (num_shards or self.size) if shuffle else None
            runner = SparkTaskRunner(
                _jobs_of(self._session), self._spark, data, columns, num_shards=shards, settings=settings
            )
            with closing(runner):
                runner.pack()
                yield runner

    @contextmanager
    def _channel(
        self, listener: Listener, answer: Callable[[bytes], Sequence[bytes]] | None = None
    ) -> Iterator[Endpoint | None]:
        if self._session.channel_address() is None:
            yield None  # as docs/connect.md says
            return
        try:
            channel = driver_channel(self._spark, listener, answer)
        except InvalidInput as error:
            warnings.warn(f"live progress is unavailable: {error}", stacklevel=2)
            yield None
            return
        with channel:
            yield channel.endpoint

    @contextmanager
    def _events(self, listener: Listener) -> Iterator[Endpoint | None]:
        with self._channel(listener) as endpoint, self._tail(endpoint, listener):
            yield endpoint

    def _tail(self, endpoint: Endpoint | None, listener: Listener, attempt: int | None = None) -> EventTail:
        """Passes on the events that workers and tasks write to files if they have no channel."""
        return EventTail(self._event_directory if endpoint is None else None, listener, attempt=attempt)

    def _frame(
        self, data: DataFrame | None, columns: Columns | Sequence[str] | None, size: int
    ) -> tuple[DataFrame, Columns | None]:
        if data is None:
            if columns is not None:
                raise InvalidInput("columns were given without data.")
            return self._spark.range(0, size, 1, size).toDF("rank"), None
        frame, specification = select_columns(data, columns)
        # The shuffle breaks chains of stages that a barrier stage may not end. A row's shard depends only on its id, so
        # a retried task repartitions rows as before without a sort.
        assert specification.row_id is not None
        return frame.repartition(size, col(specification.row_id.name)), specification

    def _run(
        self, frame: DataFrame, watch: JobWatch, failures: _FailureListener, cancellation: CancellationToken
    ) -> list[Any]:
        failures.cancel = watch.cancel
        try:
            with watch.running(), cancellation.stopping(watch.cancel):
                try:
                    with losing_session():
                        rows = watch.collect(frame)
                except SessionLost:  # nobody would answer
                    raise
                except BaseException:
                    watch.end()
                    raise
                finally:
                    failures.tail.close()  # what follows relies on the events
            if not rows:  # Spark's optimizer found no rows and ran no task
                raise InvalidInput("the data has no rows; expected at least one.", context=ErrorContext("feed"))
            results = assemble(rows)
            failures.note_results(results)
            return raise_first_cause(results, failures, attempt=failures.attempt)
        except JVM_ERRORS as error:
            daemon = setting(self._spark, "spark.python.daemon.module")
            if (explained := _explained(error, watch, failures, daemon)) is error:
                raise
            raise explained from error
        finally:
            failures.close()
            if failures.started and failures.has_channel:
                _reached.add(self._session.application())


def _jobs_of(session: Session) -> Callable[[SparkSession, PackedFrame], ShardJobs[Any]]:
    if session.has_rdds():
        from sparkdl.spark.classic_tasks import ClassicJobs

        return ClassicJobs
    from sparkdl.spark.connect_tasks import ConnectJobs

    return ConnectJobs


def _title_of(work: Work) -> str:
    title = getattr(work, "title", None)
    try:
        return f", {title()}" if callable(title) else ""
    except Exception:
        logger.debug("a work has no title", exc_info=True)
        return ""


class _FailureListener:
    def __init__(self, listener: Listener, size: int, attempt: int) -> None:
        self.failures: list[Failure] = []
        self.started: dict[int, ErrorContext] = {}
        self.size, self.attempt = size, attempt
        self.cancel: Any = None
        self.has_channel = True
        self.tail = EventTail(None, self)
        self._listener = listener
        self._noted: set[int] = set()  # ranks whose failures came with their results
        self._alarm: threading.Timer | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "started":
            self.started[event.rank] = ErrorContext("work", event.rank, event.payload.get("host"), event.attempt)
        if event.kind == "failed":
            if event.rank in self._noted:  # its event arrives after its result
                return
            self.failures.append(Failure.from_json(event.payload))
            if self._alarm is None and self.cancel is not None:
                self._alarm = threading.Timer(_GRACE, self.cancel)
                self._alarm.daemon = True
                self._alarm.start()
        self._listener(event)

    def note_results(self, results: Sequence[WorkerResult]) -> None:
        """Note the failures of workers whose events did not arrive."""
        ranks = {failure.context.rank for failure in self.failures}
        for result in results:
            if result.failure is not None and result.rank not in ranks:
                payload = result.failure.to_json()
                self(Event("failed", result.rank, self.attempt, result.failure.time, None, payload))
                self._noted.add(result.rank)

    def waiting(self, what: str, seconds: float) -> None:
        if seconds > 1.0 and not self.started:
            self._listener(Event("waiting", -1, 0, time.time(), None, {"what": what, "seconds": seconds}))

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def _explained(error: Exception, watch: JobWatch, reports: _FailureListener, daemon: str = "") -> Exception:
    if watch.gave_up is not None:
        return ClusterUnavailable(
            f"other jobs held the task slots for {watch.gave_up:.0f} s, or there are too few: {reports.size} workers "
            f"need {reports.size} at a time. Wait until those jobs end, raise resourceTimeout, lower numWorkers, or "
            "give the application more cores."
        )
    if watch.cancelled and not reports.started and not reports.failures:
        message = "no worker started in time. The executors' Python processes may be stopped, as by SIGSTOP."
        return WorkerLost(message, context=ErrorContext("launch", 0, None, reports.attempt))
    if not watch.cancelled and (known := cancellation(error) or invalid_setting(error)) is not None:
        return known
    if causes := [failure for failure in reports.failures if not failure.peer]:
        return first_cause(causes).error()
    if (unfit := missing_sparkdl(error, daemon) or other_python(error)) is not None:
        return unfit
    absent = [rank for rank in range(reports.size) if rank not in reports.started]
    waited = [failure for failure in reports.failures if failure.context.stage == "join"]
    if absent and waited:
        never = ErrorContext("launch", absent[0], None, reports.attempt)
        return WorkerLost(f"rank {absent[0]} never started: {waited[0].message}", context=never)
    if not reports.started and "barrier ResultStage" not in str(error):
        return error
    task = re.search(r"ResultTask\(\d+, (\d+)\)", str(error))
    rank = None if task is None else int(task[1])
    stage = "launch" if reports.has_channel else "work"  # without a channel, no worker says that it started
    context = None if rank is None else reports.started.get(rank, ErrorContext(stage, rank, None, reports.attempt))
    return WorkerLost(f"Spark lost a worker of the gang: {first_lines(error)}", context=context)
