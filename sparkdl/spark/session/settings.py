"""Settings of a session, and the requests of tasks in them."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.resource import TaskResourceRequests
from pyspark.sql import SparkSession

GPU = "gpu"
TASK_GPUS = "spark.task.resource.gpu.amount"
EXECUTOR_GPUS = "spark.executor.resource.gpu.amount"


def setting(spark: SparkSession, name: str) -> str:
    """A setting of the session or application; empty if unset."""
    try:
        return spark.conf.get(name, None) or ""
    except PySparkException as error:
        if "CONFIG_NOT_AVAILABLE" in str(error):  # serverless compute hides most settings
            return ""
        raise


def task_requests(spark: SparkSession, cpus: int | None, gpus: float | None) -> TaskResourceRequests | None:
    """The requests of a resource profile; None if both are the application's."""
    if cpus is None and gpus is None:
        return None
    requests = TaskResourceRequests().cpus(cpus or int(setting(spark, "spark.task.cpus") or 1))
    if amount := gpus if gpus is not None else float(setting(spark, TASK_GPUS) or 0):
        requests.resource(GPU, amount)
    return requests
