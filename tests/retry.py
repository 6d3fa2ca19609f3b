"""Run every test that needs no GPU: ``python tests/retry.py [pytest arguments]``, without -m and -k.

Tests on real executors and tests that kill things depend on how the operating system shares a busy machine. If one
marked ``cluster`` or ``chaos`` fails, it is printed and runs once more. All other tests have one chance.

Four lots run at a time: the tests with one chance, and three lots of those with two, because one test of Spark leaves
most of two cores idle. The output of those three comes when all lots have ended; then come the second chances.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

_PYTEST = (sys.executable, "-m", "pytest", "--durations=20", "--durations-min=1")
ONE_CHANCE = "not cluster and not chaos and not gpu"
TWO_CHANCES = "(cluster or chaos) and not gpu"
_MANY_JOBS = "ensemble or pipeline"
_MANY_PROCESSES = "docs or notebooks or chaos"
LOTS = (_MANY_JOBS, f"({_MANY_PROCESSES}) and not ({_MANY_JOBS})", f"not ({_MANY_PROCESSES}) and not ({_MANY_JOBS})")
"""Parts of the names, folders included, of tests with two chances: thirds of their time."""


def run(*arguments: str) -> int:
    """One pytest run in its own process; its exit code, negative if a signal ended it."""
    return subprocess.run([*_PYTEST, *arguments], check=False).returncode


def second_chance(code: int, cache: Path, arguments: Sequence[str]) -> int:
    """Run the failed tests again. A lot may have no tests, but not the second time.

    Args:
        code: the exit code of the run.
        cache: its cache; without a record of failures if it was killed.
        arguments: of the run.
    """
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return 0
    record = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        return code
    for name in failed:
        print(f"RETRY: {name}", flush=True)
    return run(*arguments, "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    """All lots at a time, then the second chances; the exit code of the first lot that failed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        lots = []
        for number, names in enumerate(LOTS):
            cache, log = Path(folder, f"cache-{number}"), Path(folder, f"log-{number}")
            options = (*arguments, "-m", TWO_CHANCES, "-k", names, "-o", f"cache_dir={cache}")
            output = stack.enter_context(log.open("wb"))
            process = stack.enter_context(subprocess.Popen([*_PYTEST, *options], stdout=output, stderr=output))
            lots.append((process, log, cache, options))
        codes = [run(*arguments, "-m", ONE_CHANCE)]
        for process, *_ in lots:
            process.wait()
        for process, log, cache, options in lots:
            print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
            codes.append(second_chance(process.returncode, cache, options))
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
