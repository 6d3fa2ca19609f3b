"""Checks of the session's settings and slots, by the rules that fits apply, and of the reports of ``examine``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cli.doctor.check_result import CheckResult, check_result
from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.net.protocol import Endpoint
from sparkdl.spark.session import session_of
from sparkdl.spark.slots.capacity import (
    check_encryption,
    check_setting,
    check_slots,
    encrypted,
    find_slots,
    wait_for_slots,
)

Reports = Sequence[Mapping[str, Any]]
"""The reports of ``examine``; an executor may have several."""

_GB = 1e9

BUSY = "Read the logs of these executors, and run the doctor while no other job holds task slots."
VERSIONS = "Install the driver's versions in the Python environment of every executor (spark.pyspark.python)."
GLOO = "Install a torch build with torch.distributed and gloo there, such as the wheels of `pip install torch`."
DISK = (
    "Free space there, or move the executors' local directories to a larger disk: spark.local.dir, on standalone "
    "clusters SPARK_LOCAL_DIRS, on YARN yarn.nodemanager.local-dirs."
)
CHANNEL = "Set spark.driver.host to an address of the driver that executors reach, and open its ports to them."
RUN_DIRECTORY = "Set runDir to a directory that all hosts share and may write, such as hdfs:// or s3://."


def executors_check(reports: Reports, errors: Sequence[str], registered: int) -> CheckResult:
    """Whether tasks ran on all executors, and without errors."""
    hosts = sorted({report["host"] for report in reports})
    text = f"Python tasks ran on {reached(reports)}: {', '.join(hosts) or 'none'}"
    findings = [error.rstrip(".") for error in errors]
    findings += [f"{text}, but {registered} are registered"] if len(distinct(reports)) < registered else []
    return check_result("executors", findings, BUSY, otherwise=text)


def versions_check(reports: Reports, driver: Mapping[str, tuple[str | None, str]]) -> CheckResult:
    """Whether all executors have the driver's versions; builds of one version, such as for CUDA, may differ."""
    findings = []
    for report in reports:
        texts = []
        for name, (version, error) in report["versions"].items():
            ours = driver[name][0] or ""
            if version is None:
                texts.append(f"no {name} ({error})")
            elif _release(version) != _release(ours):
                texts.append(f"{name} {version}, on the driver {ours or 'none'}")
        findings += [f"{report['host']} has {', '.join(texts)}"] if texts else []
    same = ", ".join(f"{name} {version}" for name, (version, _) in driver.items())
    return check_result("versions", findings, VERSIONS, otherwise=f"{same} on driver and executors")


def missing_modules(reports: Reports) -> list[str]:
    """The modules that some executor cannot import."""
    absent = [name for report in reports for name, (version, _) in report["versions"].items() if version is None]
    return [*dict.fromkeys(absent)]


def _release(version: str) -> str:
    return version.partition("+")[0]


def gloo_check(reports: Reports) -> CheckResult:
    """Whether torch has gloo on all executors."""
    findings = []
    for report in reports:
        has_gloo, error = report["probes"]["gloo"]
        if not has_gloo:
            version = report["versions"]["torch"][0] or "cannot be imported"
            findings.append(f"{report['host']}: {error or f'torch {version} has no gloo'}")
    return check_result("gloo", findings, GLOO, otherwise=f"torch has gloo on {reached(reports)}")


def disk_check(reports: Reports, min_free_gb: float) -> CheckResult:
    """Whether all local directories are writable and have space."""
    findings, free = [], []
    for report in reports:
        folders, error = report["probes"]["disk"]
        findings += [f"{report['host']}: {error}"] if error else []
        for folder, size, write_error in folders or ():
            place = f"{report['host']}:{folder}"
            free.append((size, place))
            if write_error or size < min_free_gb * _GB:
                expected = write_error or f"expected at least {min_free_gb:g} GB"
                findings.append(f"{place} has {size / _GB:.1f} GB free: {expected}")
    size, place = min(free, default=(0, "no folder"))
    least = f"the least free space is {size / _GB:.1f} GB in {place}"
    return check_result("disk", findings, DISK, otherwise=f"{reached(reports)} can write local files; {least}")


def channel_check(reports: Reports, endpoint: Endpoint | None, listen_error: str) -> CheckResult:
    """Whether all executors reach the driver's channel.

    If the driver cannot listen, ``endpoint`` is None, and ``listen_error`` has the reason.
    """
    if endpoint is None:
        return CheckResult("driver", "FAIL", f"the driver cannot listen for executors: {listen_error} {CHANNEL}")
    findings = []
    for report in reports:
        errors, error = report["probes"]["channel"]
        reasons = [error] if error else errors
        findings += [f"{report['host']} cannot connect to the driver, {'; '.join(reasons)}"] if reasons else []
    address = f"{endpoint.addresses[0]} port {endpoint.port}"
    connected = f"{reached(reports)} can connect to the driver at {address}"
    return check_result("driver", findings, CHANNEL, otherwise=connected)


def run_directory_check(reports: Reports) -> CheckResult:
    """Whether all executors see a file that the driver wrote."""
    findings = []
    for report in reports:
        shared, error = report["probes"]["run directory"]
        if not shared:
            reason = f" ({error})" if error else ""
            findings.append(f"{report['host']} does not see what the driver wrote there{reason}")
    seen = f"shared by the driver and {reached(reports)}"
    return check_result("run directory", findings, RUN_DIRECTORY, otherwise=seen)


def distinct(reports: Reports) -> set[tuple[str, str]]:
    """The executors of the reports."""
    return {(report["host"], report["executor"]) for report in reports}


def reached(reports: Reports) -> str:
    """The number of executors of the reports."""
    return counted(len(distinct(reports)), "executor")


def counted(number: int, noun: str) -> str:
    """The number with its noun, ``1 executor`` or ``2 executors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def dynamic_allocation_check(spark: SparkSession) -> CheckResult:
    """Whether Spark runs barrier stages."""
    name = "dynamic allocation"
    try:
        check_setting(spark, allow_unencrypted=True)
    except ClusterUnavailable as error:
        text = f"{error.message} Only strategies in rounds, such as ParallelSGD, run with it."
        return CheckResult(name, "FAIL", text)
    return CheckResult(name, "ok", "spark.dynamicAllocation.enabled is not true, so gangs can run")


def encryption_check(spark: SparkSession, *, allow_unencrypted: bool) -> CheckResult:
    """Whether plain text is allowed, if Spark encrypts."""
    try:
        check_encryption(spark, allow_unencrypted=allow_unencrypted)
    except InvalidInput as error:
        return CheckResult("encryption", "FAIL", f"{error.message} The doctor's argument is allow_unencrypted.")
    names = ", ".join(encrypted(spark))
    accepted = f"{names} is true, and allow_unencrypted accepts that sparkdl does not encrypt"
    return CheckResult("encryption", "ok", accepted if names else "Spark encrypts neither connections nor files")


def slots_check(spark: SparkSession, num_workers: int | None, timeout: float) -> CheckResult:
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
        return CheckResult("slots", "FAIL", error.message)
    now, number = find_slots(spark).now or 0, registered(spark)
    slots_each, most = -(-now // number), "there is no limit" if ever is None else f"{ever} are configured"
    slots = f"{counted(now, 'task slot')} on {counted(number, 'executor')}, up to {slots_each} on each; {most}"
    return CheckResult("slots", "ok", f"{slots}; {counted(num_workers or now, 'worker')}")


def registered(spark: SparkSession) -> int:
    """The number of executors; in local mode the driver is the only one."""
    return max(1, len(session_of(spark).executors()) - 1)
