"""Checks of the session's settings and slots, by the rules that fits apply."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.spark.diagnosis.check import Check
from sparkdl.spark.diagnosis.executor_checks import counted
from sparkdl.spark.slots.capacity import (
    check_encryption,
    check_setting,
    check_slots,
    encrypted,
    executors,
    find_slots,
    wait_for_slots,
)


def dynamic_allocation_check(spark: SparkSession) -> Check:
    """Whether Spark runs barrier stages."""
    name = "dynamic allocation"
    try:
        check_setting(spark, allow_unencrypted=True)
    except ClusterUnavailable as error:
        return Check(name, "FAIL", f"{error.message} Only strategies in rounds, such as ParallelSGD, run with it.")
    return Check(name, "ok", "spark.dynamicAllocation.enabled is not true, so gangs can run")


def encryption_check(spark: SparkSession, *, allow_unencrypted: bool) -> Check:
    """Whether plain text is allowed, if Spark encrypts."""
    try:
        check_encryption(spark, allow_unencrypted=allow_unencrypted)
    except InvalidInput as error:
        return Check("encryption", "FAIL", f"{error.message} The doctor's argument is allow_unencrypted.")
    names = ", ".join(encrypted(spark))
    accepted = f"{names} is true, and allow_unencrypted accepts that sparkdl does not encrypt"
    return Check("encryption", "ok", accepted if names else "Spark encrypts neither connections nor files")


def slots_check(spark: SparkSession, num_workers: int | None, timeout: float) -> Check:
    """Whether the executors offer enough slots.

    Args:
        spark: the session.
        num_workers: the slots that are needed; None for all that are configured.
        timeout: seconds to wait for executors; 0 if Spark starts them on demand.
    """
    ever = find_slots(spark).ever
    size = num_workers or ever or 1
    try:
        check_slots(spark, size)
        if timeout:
            wait_for_slots(spark, size, timeout=timeout, report=lambda what, seconds: None)
    except ClusterUnavailable as error:
        if ever is not None and size > ever > 0:  # other checks need the executors
            slots_check(spark, ever, timeout)
        return Check("slots", "FAIL", error.message)
    now, number = find_slots(spark).now or 0, registered(spark)
    each, most = -(-now // number), "there is no limit" if ever is None else f"{ever} are configured"
    slots = f"{counted(now, 'task slot')} on {counted(number, 'executor')}, up to {each} on each; {most}"
    return Check("slots", "ok", f"{slots}; {counted(num_workers or now, 'worker')}")


def registered(spark: SparkSession) -> int:
    """The number of executors; in local mode the driver is the only one."""
    return max(1, len(executors(spark)) - 1)
