"""What sparkdl asks of a Spark session, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from sparkdl.spark.session.shared_bytes import SharedValue

if TYPE_CHECKING:
    from pyspark.ml.wrapper import JavaParams  # it takes a worker a second to import pyspark.ml
    from pyspark.resource import ResourceProfile
    from pyspark.sql.types import StructType


class Session(Protocol):
    """A Spark session; no task captures it."""

    def master(self) -> str:
        """The URL of the cluster's master, such as ``local[2]``."""

    def application(self) -> str:
        """The identity of what ends shared bytes: the application, or a session on a server."""

    def qualify(self, path: str) -> str:
        """The path as a URI with its filesystem, as Spark resolves it."""

    def forwarding_sigterm(self) -> AbstractContextManager[None]:
        """A block in which SIGTERM to the driver is a stop request in this process, wherever the driver runs."""

    def channel_address(self) -> tuple[str, str] | None:
        """The host at which executors reach this process, and the address to listen at; None if it is unknown."""

    def has_rdds(self) -> bool:
        """Whether the session has RDDs, whose jobs start sooner than queries."""

    # ---- capacity --------------------------------------------------------------------------------------------------

    def parallelism(self) -> int:
        """Spark's default number of partitions, ``spark.default.parallelism``."""

    def slots(self, cpus: int | None, gpus: float | None) -> tuple[int | None, int | None]:
        """Numbers of tasks with these requests that run at a time, on the registered and on all configured executors.

        A request of None is the application's setting; a number of None is unknown.
        """

    def hidden_slots(self) -> str:
        """The name of the setting that hides the number of slots; empty if nothing does."""

    def profile(self, cpus: int | None, gpus: float | None) -> ResourceProfile | None:
        """The resource profile of tasks with these requests; None for the application's own.

        Equal requests share one profile: Spark keeps every profile until the application ends.
        """

    def registration_wait(self) -> float:
        """Seconds in which Spark still waits for the executors of an application that has just begun."""

    def task_attempts(self) -> int:
        """The number of times that Spark tries a task before it fails the job."""

    def executors(self) -> frozenset[str]:
        """Addresses of the registered executors, and of the driver; one name for all if they are unknown."""

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def described(self, text: str) -> AbstractContextManager[None]:
        """Describe the block's jobs in the Spark UI, for this thread and threads that inherit its properties."""

    def tagged(self, tag: str) -> AbstractContextManager[None]:
        """Tag the jobs that this thread starts inside the block; a tag is unique in the application."""

    def collect(self, rows: DataFrame, tag: str) -> list[Any]:
        """Run a query in a block of ``tagged``; ``runs`` is exact for it, even if an interrupt ends this call."""

    def cancel(self, tag: str) -> None:
        """Cancel the jobs with a tag, without waiting for their end."""

    def runs(self, tag: str) -> bool:
        """Whether the tag's job has not ended."""

    def state(self, tag: str) -> str | None:
        """``"waiting"`` if pending tasks of the tag's job wait for slots, ``"running"`` if barrier tasks run."""

    def tasks(self, tag: str) -> tuple[int, int, int] | None:
        """Numbers of the tag's tasks that run, that have ended, and of all so far; None if the session has none."""

    def count_rows(self, rows: DataFrame, limit: int) -> int:
        """The number of rows, at most ``limit``; Spark reads partition after partition, without columns, until then."""

    def transformed_schema(self, stage: JavaParams, frame: DataFrame) -> StructType:
        """The schema after a stage of pyspark.ml; raises Spark's errors if the stage rejects the columns."""

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def share_workers(self) -> None:
        """Let later tasks of ``run_tasks`` run in the Python workers of DataFrames."""

    def run_tasks(
        self, task: Callable[[Iterable[int]], Iterator[Any]], numbers: list[int], *, barrier: bool = False
    ) -> list[Any]:
        """Run one job, in which ``task`` gets each number as the only row of a task; return the rows of all tasks."""

    def share(self, packed: bytes) -> SharedValue:
        """Bytes for tasks, which Spark sends to each executor once if it can; raises InvalidInput if it cannot."""

    def query_limit(self) -> int | None:
        """The most bytes that a query carries to its tasks; None without a limit."""

    def release(self, frame: DataFrame) -> None:
        """Free the blocks of a DataFrame from ``localCheckpoint``, if the application still runs."""


def session_of(spark: SparkSession) -> Session:
    """What sparkdl asks of this session, by its kind."""
    if any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__):
        from sparkdl.spark.session.connect import connect_session

        return connect_session(spark)
    from sparkdl.spark.session.classic import ClassicSession

    return ClassicSession(spark)
