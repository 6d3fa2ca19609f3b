"""Run every test that needs no GPU: ``python tests/retry.py [pytest arguments]``.

Tests on real executors and tests that kill things depend on how the operating system shares a busy machine, so those
marked ``cluster`` or ``chaos`` get a second chance when they fail. Each one that takes it is printed. All other tests
have one chance.

Both kinds run at a time: one test of Spark leaves most of two cores idle, waiting for a process to start. What those
with two chances print comes when all have ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ONE_CHANCE = "not cluster and not chaos and not gpu"
TWO_CHANCES = "(cluster or chaos) and not gpu"


def run(*arguments: str) -> int:
    """One pytest run in a process of its own; its exit code, negative where a signal ended it."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failures(cache: Path) -> list[str]:
    """What failed in the last run that kept its cache in ``cache``; empty where that run did not live to say."""
    record = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []


def second_chance(code: int, cache: Path, arguments: Sequence[str]) -> int:
    """Run what failed once more. To have found no tests at all is fine, but not the second time.

    Args:
        code: how the run ended.
        cache: what it kept of it.
        arguments: of the run.
    """
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return 0
    failed = failures(cache)
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        return code
    for name in failed:
        print(f"RETRY: {name}", flush=True)
    return run(*arguments, "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    """Both halves at a time, the second chance alone; the exit code of the first half that failed."""
    with tempfile.TemporaryDirectory() as folder:
        cache, log = Path(folder) / "cache", Path(folder) / "log"
        marked = (*arguments, "-m", TWO_CHANCES, "-o", f"cache_dir={cache}")
        with (
            log.open("wb") as output,
            subprocess.Popen([sys.executable, "-m", "pytest", *marked], stdout=output, stderr=output) as beside,
        ):
            others = run(*arguments, "-m", ONE_CHANCE)
        print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
        codes = others, second_chance(beside.returncode, cache, marked)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
