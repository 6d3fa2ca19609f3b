"""Requests of the tasks that train, by stage-level scheduling: workers of a gang, tasks of rounds, members.

Their stage has a resource profile of its own: its tasks take GPUs and several cores, and the tasks of the ETL before it
take one core and no GPU. The profile has task requests only: executor requests would start other executors, which needs
dynamic allocation, and under that Spark runs no barrier stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Positive
from sparkdl.spark.session import session_of, setting
from sparkdl.spark.session.settings import EXECUTOR_GPUS, GPU, TASK_GPUS


@dataclass(frozen=True)
class TaskResources(CheckedFields):
    """The requests of each task; None for the application's setting.

    Attributes:
        cpus: cores, as ``spark.task.cpus``.
        gpus: GPUs, as ``spark.task.resource.gpu.amount``; below 1, tasks share a GPU.
    """

    cpus: Count | None = None
    gpus: Positive | None = None

    def _check(self) -> None:
        if self.gpus is not None and self.gpus > 1 and self.gpus != int(self.gpus):
            raise InvalidInput(f"taskGpus is {self.gpus}; expected a whole number, or a fraction below 1.")

    @classmethod
    def of_training(cls, spark: SparkSession, device: str, *, cpus: int | None, gpus: float | None) -> TaskResources:
        """The requests of tasks that train; on GPUs, one GPU for each task if the executors have any.

        Raises:
            InvalidInput: GPUs are requested and the executors have none, or the master has no resource profiles.
        """
        requested, offered = cls(cpus, gpus), float(setting(spark, EXECUTOR_GPUS) or 0)
        if gpus is not None and gpus > offered:
            raise InvalidInput(
                f"taskGpus is {gpus:g}, and {EXECUTOR_GPUS} is {offered:g}; expected at least as many GPUs in each "
                "executor. conf/spark/gpu-standalone.conf has the settings of a cluster with GPUs."
            )
        master = session_of(spark).master()
        profiles = _has_profiles(master)
        if device == "cuda" and gpus is None and offered and profiles and float(setting(spark, TASK_GPUS) or 0) != 1:
            requested = cls(cpus, 1.0)
        own_cpus, own_gpus = setting(spark, "spark.task.cpus") or 1, setting(spark, TASK_GPUS) or 0
        if requested.cpus in (None, int(own_cpus)) and requested.gpus in (None, float(own_gpus)):
            return cls()
        if not profiles:
            raise InvalidInput(
                f"taskCpus is {cpus} and taskGpus is {gpus}, and the master is {master!r}, which has no resource "
                "profiles. Leave them out, or submit to a cluster."
            )
        return requested

    @classmethod
    def of_scoring(cls, spark: SparkSession, device: str) -> TaskResources:
        """The requests of tasks that score: on GPUs one each, if executors have some that no task requests."""
        offered, requested = (float(setting(spark, name) or 0) for name in (EXECUTOR_GPUS, TASK_GPUS))
        free = device == "cuda" and offered and not requested and _has_profiles(session_of(spark).master())
        return cls(gpus=1.0) if free else cls()

    @property
    def is_default(self) -> bool:
        """Whether the tasks request nothing of their own."""
        return self.cpus is None and self.gpus is None

    def profile(self, spark: SparkSession) -> ResourceProfile | None:
        """The resource profile of the stage, registered with Spark; None for the application's own."""
        return session_of(spark).profile(self.cpus, self.gpus)


def _has_profiles(master: str) -> bool:
    return not master.startswith("local") or master.startswith("local-cluster")


def assigned_gpus(context: TaskContext | None) -> tuple[str, ...] | None:
    """The addresses of the GPUs that Spark assigned to a task, from its context; None outside tasks, or without any."""
    gpus = None if context is None else context.resources().get(GPU)
    return None if gpus is None else tuple(gpus.addresses)


def turn_of(context: TaskContext | None) -> int | None:
    """A task's turn on the GPUs that Spark does not assign: the number of its partition; None outside tasks.

    By process IDs, which have gaps, two tasks would often share a GPU while another one is free.
    """
    return None if context is None else context.partitionId()
