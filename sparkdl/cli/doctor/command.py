"""Verify an installation on the cluster of the Spark session, before any fit.

    spark-submit --properties-file conf/spark/standalone.conf jobs/doctor.py --num_workers 8

The command prints a line per check: ``ok``, ``FAIL`` with what to do about it, or ``skip`` if an earlier failure
leaves nothing to check. It exits with 0 if all checks are ok, else with 1. No check waits without a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.cli.doctor.diagnosis import Diagnosis
from sparkdl.cli.exit_codes import JobExit
from sparkdl.cli.session import stopped_session
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import Count, NonNegative, Positive, checked


def doctor(
    *,
    num_workers: int | None = None,
    allow_unencrypted: bool = False,
    run_dir: str | None = None,
    min_free_gb: float = 1.0,
    timeout: float = 20.0,
    resource_timeout: float = 120.0,
) -> None:
    """Verify an installation on a cluster, and say what to do about it.

    Args:
        num_workers: workers of the gangs that will run; default: all task slots.
        allow_unencrypted: accept that sparkdl encrypts neither gradients nor rows although Spark encrypts.
        run_dir: a runDir, which all hosts must share; default: not checked.
        min_free_gb: GB that must be free in each local directory of an executor.
        timeout: seconds until workers fail that do not answer each other.
        resource_timeout: seconds to wait for executors, and again until their Python has loaded torch.
    """
    checked(num_workers, Count | None, "num_workers")
    checked(min_free_gb, NonNegative, "min_free_gb")
    for name, seconds in {"timeout": timeout, "resource_timeout": resource_timeout}.items():
        checked(seconds, Positive, name)
    failed, count = [], 0
    with stopped_session() as spark, announced(run_dir) as run_directory:
        diagnosis = Diagnosis(
            spark,
            num_workers=num_workers,
            allow_unencrypted=allow_unencrypted,
            min_free_gb=min_free_gb,
            timeout=timeout,
            resource_timeout=resource_timeout,
            run_directory=run_directory,
        )
        for check in diagnosis.checks():
            print(check.line, flush=True)
            count += 1
            failed += [check.name] if check.status != "ok" else []
    if failed:
        raise JobExit(f"{len(failed)} of {count} checks are not ok: {', '.join(failed)}.")


@contextmanager
def announced(run_dir: str | None) -> Iterator[Callable[[], bool] | None]:
    """Write a file in the run directory, and yield the probe that other hosts see it."""
    if run_dir is None:
        yield None
        return
    shared = SharedDirectory(run_dir)
    try:
        shared.announce()
    except OSError as error:
        raise InvalidInput(f"the driver cannot write in the run_dir {run_dir}: {error}") from error
    try:
        yield shared.sees
    finally:
        shared.withdraw()
