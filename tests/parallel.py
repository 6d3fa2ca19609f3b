"""Run the tests in several pytest processes at a time: ``python tests/parallel.py [--fast] [pytest options]``.

``--fast`` runs the fast tests in two processes: those on Spark, and all others. Without it every test that needs no GPU
runs, in lots, three at a time: one test of Spark leaves some of two cores idle, and four wait for each other. Lots have
equal shares of the durations in durations.json; a run of all tests writes its own into build/. A lot is printed when it
ends.
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
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

AT_A_TIME = 3
_FAST = "not slow and not chaos and not gpu and not notebook"
ON_SPARK, ALONE = "(cluster or chaos) and not gpu", "not cluster and not chaos and not gpu"
STYLE = ("--ignore=tests/style", "--ignore=tests/references")  # make check and make references run them
DURATIONS = Path(__file__).with_name("durations.json")  # seconds by marker and place
# Barrier stages, Python's daemon, UDFs, pyspark.ml's readers and writers, and Connect differ between versions of Spark.
OLDEST = (
    *("spark/test_cluster.py", "spark/test_python_daemon.py"),
    *("ml/test_udf.py", "ml/persistence/test_reader_writer.py", "ml/persistence/test_metadata_files.py"),
    "connect/test_commands.py",
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


def files(folder: Path = Path("tests")) -> Iterator[tuple[str, ...]]:
    """The groups of places below ``tests`` that one process runs: files, and folders whose tests share a cluster."""
    shared = [(folder / "spark",), (folder / "connect",), (folder / "hosts", folder / "chaos")]
    for group in shared:
        yield tuple(str(place) for place in group if place.exists())
    apart = {place for group in shared for place in group} | {folder / "gpu", folder / "style", folder / "references"}
    for path in sorted(folder.rglob("test_*.py")):
        if not apart & set(path.parents):
            yield (str(path),)


def scheduled(marker: str, number: int, chances: int = 1) -> list[Lot]:
    """At most ``number`` lots of a marker's tests, of about equal recorded durations; the longest comes first."""
    recorded = json.loads(DURATIONS.read_text(encoding="utf-8")).get(marker, {})
    seconds = {group: sum(recorded.get(place, 1.0) for place in group) for group in files() if group}
    shares: list[tuple[float, tuple[str, ...]]] = [(0.0, ())] * number
    for group in sorted(seconds, key=lambda group: -seconds[group]):
        least = min(range(number), key=lambda index: shares[index][0])
        shares[least] = (shares[least][0] + seconds[group], shares[least][1] + group)
    return [Lot((*places, "-m", marker), chances) for _, places in sorted(shares, reverse=True) if places]


def lots_of(*, fast: bool, oldest: str | None) -> list[Lot]:
    """The fast tests, those on Spark and all others, or all tests; ``oldest`` is a further lot's interpreter."""
    if fast:
        lots = [Lot((*STYLE, "-m", f"{prefix}cluster and {_FAST}")) for prefix in ("not ", "")]
    else:
        lots = [*scheduled(ON_SPARK, 6, chances=2), *scheduled(ALONE, 2)]
    if oldest:
        places = (f"tests/{name}" for name in OLDEST)
        lots.append(Lot((*places, "-m", f"cluster and {_FAST}"), chances=2, python=os.path.abspath(oldest)))
    return lots


def run(lot: Lot, *arguments: str) -> int:
    """The exit code of a lot, negative if a signal ended it; its output is printed at its end."""
    command = (lot.python, "-m", "pytest", "--durations=20", "--durations-min=1", *arguments, *lot.selection)
    environment = {**os.environ, "PYSPARK_PYTHON": lot.python, "PYSPARK_DRIVER_PYTHON": lot.python}
    environment.setdefault("OMP_NUM_THREADS", "1")  # more threads would wait for cores that other lots use
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    # One write, so that the lines of two lots do not mix.
    sys.stdout.write(ended.stdout.decode(errors="replace"))
    sys.stdout.flush()
    return ended.returncode


def second_chance(lot: Lot, code: int, cache: Path, arguments: Sequence[str]) -> int:
    """Run the failed tests of a lot again, which ended with ``code``; the cache of a killed one records none."""
    record = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []
    if lot.chances == 1 or code != pytest.ExitCode.TESTS_FAILED or not failed:
        return code
    for name in failed:
        print(f"RETRY: {name}", flush=True)
    return run(lot, *arguments, "--last-failed", "--last-failed-no-failures", "none")


def reported(cache: Path) -> tuple[str, ...]:
    """The options for a report with the durations of tests, beside a cache."""
    return ("-o", "junit_family=xunit1", f"--junit-xml={cache.with_suffix('.xml')}")


def record(lots: Sequence[Lot], caches: Sequence[Path]) -> None:
    """Write the seconds of each file or shared folder in the reports, by marker."""
    seconds: dict[str, Counter[str]] = {ON_SPARK: Counter(), ALONE: Counter()}
    for lot, cache in zip(lots, caches, strict=True):
        report = cache.with_suffix(".xml")  # missing if the lot was killed
        for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            place = next((place for place in lot.selection if case.attrib["file"].startswith(place)), None)
            if place is not None and lot.selection[-1] in seconds:
                seconds[lot.selection[-1]][place] += float(case.attrib["time"])
    rounded = {marker: {place: round(spent, 1) for place, spent in every.items()} for marker, every in seconds.items()}
    Path("build").mkdir(exist_ok=True)
    Path("build", DURATIONS.name).write_text(json.dumps(rounded, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """All lots, then the second chances; the exit code of the first lot that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="the fast tests, with one chance each")
    parser.add_argument("--oldest", metavar="PYTHON", help="an interpreter with the oldest pyspark")
    options, others = parser.parse_known_args(arguments)
    lots = lots_of(fast=options.fast, oldest=options.oldest)
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder, str(number)) for number in range(len(lots))]
        extra = [(*others, "-o", f"cache_dir={cache}", *reported(cache)) for cache in caches]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            codes = list(pool.map(lambda lot, more: run(lot, *more), lots, extra))
        if not options.fast:
            record(lots, caches)
        codes = list(map(second_chance, lots, codes, caches, extra))
    found = [code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return next(filter(None, found), 0 if found else pytest.ExitCode.NO_TESTS_COLLECTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
