"""Run the tests in several pytest processes at a time: ``python tests/parallel.py [--fast] [pytest options]``.

``--fast`` runs the fast tests in two processes: those on Spark, and all others. Without it every test that needs no GPU
runs, in lots, four at a time, because one test of Spark leaves most of two cores idle. A lot is printed when it ends.
``--oldest PYTHON`` adds a lot of the tests that depend most on Spark's version; that Python runs them.

Tests on real executors and tests that kill things depend on how the operating system shares a busy machine. Without
``--fast``, if one marked ``cluster`` or ``chaos`` fails, it is printed and runs once more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

AT_A_TIME = 4
_FAST = "not slow and not chaos and not gpu and not notebook"
STYLE = "--ignore=tests/style"  # make check runs it
OLDEST = (
    *("spark/test_cluster.py", "spark/test_columns.py", "spark/test_python_daemon.py"),
    *("ml/inference", "ml/persistence", "ml/test_estimator.py"),
)


@dataclass(frozen=True)
class Lot:
    """One pytest process.

    Attributes:
        selection: pytest's arguments.
        chances: how often a failed test runs.
        python: the interpreter that runs it and Spark's workers.
    """

    selection: tuple[str, ...]
    chances: int = 1
    python: str = sys.executable


def split(marker: str, *parts: str, chances: int = 1) -> Iterator[Lot]:
    """One lot for each part, and one for all other tests.

    Args:
        marker: that the tests have, as an expression.
        parts: folders and files below ``tests``, with spaces between; a test belongs to the first part that has it.
        chances: of each test.
    """
    earlier: list[Path] = []
    for part in (*parts, "."):
        places = [place for name in part.split() if (place := Path("tests", name)).exists()]
        nested = [f"--ignore={place}" for place in earlier if set(places) & set(place.parents)]
        if places:
            yield Lot((*map(str, places), *nested, STYLE, "-m", marker), chances)
        earlier += places


def fast_lots() -> list[Lot]:
    """The fast tests, those on Spark and all others."""
    return [Lot((STYLE, "-m", f"not cluster and {_FAST}")), Lot((STYLE, "-m", f"cluster and {_FAST}"))]


def all_lots() -> list[Lot]:
    """All tests that need no GPU; the longest lots come first, so that all end at about the same time."""
    on_spark = ("ensembles", "ml cli/pipeline", "hosts chaos notebooks", "docs", "spark")
    return [
        *split("(cluster or chaos) and not gpu", *on_spark, chances=2),
        *split("not cluster and not chaos and not gpu", "rounds training telemetry"),
    ]


def oldest_lot(python: str) -> Lot:
    """The fast tests that depend most on Spark's version, run by another interpreter."""
    places = (f"tests/{name}" for name in OLDEST)
    return Lot((*places, "-m", f"cluster and {_FAST}"), chances=2, python=os.path.abspath(python))


def run(lot: Lot, *arguments: str) -> int:
    """The exit code of a lot, negative if a signal ended it; its output is printed at its end."""
    command = (lot.python, "-m", "pytest", "--durations=20", "--durations-min=1", *arguments, *lot.selection)
    environment = {**os.environ, "PYSPARK_PYTHON": lot.python, "PYSPARK_DRIVER_PYTHON": lot.python}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    # One write, so that the lines of two lots do not mix.
    sys.stdout.write(ended.stdout.decode(errors="replace"))
    sys.stdout.flush()
    return ended.returncode


def second_chance(lot: Lot, code: int, cache: Path, arguments: Sequence[str]) -> int:
    """Run the failed tests of a lot again.

    Args:
        lot: that has run.
        code: its exit code.
        cache: its cache; without a record of failures if it was killed.
        arguments: of the run.
    """
    record = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []
    if lot.chances == 1 or code != pytest.ExitCode.TESTS_FAILED or not failed:
        return code
    for name in failed:
        print(f"RETRY: {name}", flush=True)
    return run(lot, *arguments, "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    """All lots, then the second chances; the exit code of the first lot that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="the fast tests, with one chance each")
    parser.add_argument("--oldest", metavar="PYTHON", help="an interpreter with the oldest pyspark")
    options, others = parser.parse_known_args(arguments)
    lots = fast_lots() if options.fast else all_lots()
    if options.oldest:
        lots.append(oldest_lot(options.oldest))
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder, str(number)) for number in range(len(lots))]
        extra = [(*others, "-o", f"cache_dir={cache}") for cache in caches]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            codes = list(pool.map(lambda lot, more: run(lot, *more), lots, extra))
        codes = list(map(second_chance, lots, codes, caches, extra))
    found = [code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return next(filter(None, found), 0 if found else pytest.ExitCode.NO_TESTS_COLLECTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
