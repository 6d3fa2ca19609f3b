"""Run the tests in several pytest processes at a time: ``python tests/parallel.py [--fast] [pytest arguments]``.

``--fast`` runs the fast tests in two processes: those on Spark, and all others. Without it every test that needs no GPU
runs in four, because one test of Spark leaves most of two cores idle: the tests with one chance, and three lots of
those with two. The first lot prints as it runs, and the others print when all have ended.

Tests on real executors and tests that kill things depend on how the operating system shares a busy machine. Without
``--fast``, if one marked ``cluster`` or ``chaos`` fails, it is printed and runs once more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

_PYTEST = (sys.executable, "-m", "pytest", "--durations=20", "--durations-min=1")
_FAST = "not slow and not chaos and not gpu and not notebook"
FAST_LOTS = (("-m", f"not cluster and {_FAST}"), ("-m", f"cluster and {_FAST}"))

_TWO_CHANCES = ("-m", "(cluster or chaos) and not gpu", "-k")
_MANY_JOBS = "ensemble or pipeline"
_MANY_PROCESSES = "docs or notebooks or chaos"
# Tests with two chances are split into thirds of their time, by parts of their names, folders included.
LOTS = (
    ("-m", "not cluster and not chaos and not gpu"),
    (*_TWO_CHANCES, _MANY_JOBS),
    (*_TWO_CHANCES, f"({_MANY_PROCESSES}) and not ({_MANY_JOBS})"),
    (*_TWO_CHANCES, f"not ({_MANY_PROCESSES}) and not ({_MANY_JOBS})"),
)


def run(*arguments: str) -> int:
    """One pytest run in its own process; its exit code, negative if a signal ended it."""
    return subprocess.run([*_PYTEST, *arguments], check=False).returncode


def second_chance(code: int, cache: Path, arguments: Sequence[str]) -> int:
    """Run the failed tests again.

    Args:
        code: the exit code of the run.
        cache: its cache; without a record of failures if it was killed.
        arguments: of the run.
    """
    record = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        return code
    for name in failed:
        print(f"RETRY: {name}", flush=True)
    return run(*arguments, "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    """All lots at a time, then the second chances; the exit code of the first lot that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="the fast tests, with one chance each")
    options, others = parser.parse_known_args(arguments)
    (first, *rest) = FAST_LOTS if options.fast else LOTS
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        started = []
        for number, lot in enumerate(rest):
            cache, log = Path(folder, f"cache-{number}"), Path(folder, f"log-{number}")
            selection = (*others, *lot, "-o", f"cache_dir={cache}")
            output = stack.enter_context(log.open("wb"))
            process = stack.enter_context(subprocess.Popen([*_PYTEST, *selection], stdout=output, stderr=output))
            started.append((process, log, cache, selection))
        codes = [run(*others, *first)]
        for process, *_ in started:
            process.wait()
        for process, log, cache, selection in started:
            print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
            code = process.returncode
            if code != pytest.ExitCode.NO_TESTS_COLLECTED:  # only the first lot needs tests
                codes.append(code if options.fast else second_chance(code, cache, selection))
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
