"""Run every test that needs no GPU: ``python tests/retry.py [pytest arguments]``, but for -m and -k, which are taken.

Tests on real executors and tests that kill things depend on how the operating system shares a busy machine, so those
marked ``cluster`` or ``chaos`` get a second chance when they fail. Each one that takes it is printed. All other tests
have one chance.

Four lots run at a time: those with one chance, and three of those with two. One test of Spark leaves most of two cores
idle, waiting for a process to start. What all but the first lot print comes when all have ended; then come the second
chances.
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
LOTS = (
    _MANY_JOBS,
    f"({_MANY_PROCESSES}) and not ({_MANY_JOBS})",
    f"not ({_MANY_PROCESSES}) and not ({_MANY_JOBS})",
)
"""What the names of tests with two chances have in them, their folders' among them: thirds by the time they take."""


def run(*arguments: str) -> int:
    """One pytest run in a process of its own; its exit code, negative where a signal ended it."""
    return subprocess.run([*_PYTEST, *arguments], check=False).returncode


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
    """All lots at a time, then the second chances; the exit code of the first lot that failed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        lots = [
            _Lot(Path(folder) / str(number), (*arguments, "-m", TWO_CHANCES, "-k", names), stack)
            for number, names in enumerate(LOTS)
        ]
        codes = [run(*arguments, "-m", ONE_CHANCE)]
        for lot in lots:
            lot.process.wait()
        codes += [lot.result() for lot in lots]
    return next((code for code in codes if code), 0)


class _Lot:
    """Tests with two chances, of which the first begins at once.

    Args:
        folder: a new one, of its own.
        arguments: of pytest.
        stack: at its end the run is waited for.

    Attributes:
        process: the run.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], stack: ExitStack) -> None:
        folder.mkdir()
        self._cache, self._log = folder / "cache", folder / "log"
        self._arguments = (*arguments, "-o", f"cache_dir={self._cache}")
        output = stack.enter_context(self._log.open("wb"))
        command = [*_PYTEST, *self._arguments]
        self.process = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))

    def result(self) -> int:
        """Print what the run has printed, and give what failed its second chance."""
        print(self._log.read_text(encoding="utf-8", errors="replace"), flush=True)
        return second_chance(self.process.wait(), self._cache, self._arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
