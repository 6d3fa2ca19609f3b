"""Cost of events and the report page: rows/s with events and without, the page's size and time, the first line.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.events.browser import PROGRAMS, Browser
from benchmarks.events.gangs import NETWORKS, WORKERS, Gangs, first_lines, spread
from benchmarks.events.synthetic_run import count, write_run
from benchmarks.measurements import run_measurements
from benchmarks.pairs import Side, interleave, options, seconds
from sparkdl import LocalCluster
from sparkdl.report import RunData, make_page

BAR = "at most 1"

ROWS = 0.99  # share of the rows/s without events
OPENED, SIZE = 3.0, 6.0  # seconds, and MB
FIRST = 2.0  # seconds

PAGE_WORKERS = 8


def measure_rows(args: argparse.Namespace) -> float:
    """Rows per second of a gang with events and of one without, for two networks."""
    ratios = []
    with LocalCluster(WORKERS, threads=1) as cluster:
        for network in NETWORKS:
            gangs = Gangs(cluster, network, args.rows)
            pairs = interleave(Side("on", gangs.on), Side("off", gangs.off), rounds=args.rounds)
            ratios.append(pairs.ratio)
            print(pairs.table("rows/s"))
            result = f"{pairs.ratio:.3f} of the rate without, standard error {pairs.error:.3f} (bar: at least {ROWS})"
            print(f"{network} with {median(gangs.events):.0f} events: {result}\n", flush=True)
    return ROWS / min(ratios)


def measure_page(args: argparse.Namespace) -> float:
    """Size of the page of a long run of eight workers, and the time until a browser has drawn it."""
    browser = Browser.find()
    if browser is None:
        sys.exit(f"there is no {' and no '.join(PROGRAMS)}: see conf/chromium.sh, or leave the part page out")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        directory, page, empty = f"{folder}/run", Path(folder, "page.html"), Path(folder, "empty.html")
        write_run(directory, workers=PAGE_WORKERS, events=args.events)
        start = time.perf_counter()
        data = RunData.read(directory)
        read = time.perf_counter() - start
        written = seconds(lambda: page.write_text(make_page([data]), encoding="utf-8"))
        empty.write_text("<!doctype html><body><script>document.body.dataset.at = Date.now() / 1000</script></body>")
        drawn = browser.data(page).get("drawn", "").split()
        opened = [browser.seconds(page) for _ in range(2 * args.rounds + 1)]
        alone = [browser.seconds(empty) for _ in range(args.rounds)]
        size = page.stat().st_size / 1e6
        print(f"{count(directory):,} events of {PAGE_WORKERS} workers: {read:.3g} s to read, {written:.3g} s to write")
    print(f"{len(drawn)} charts drawn: {', '.join(drawn)}")
    print(f"size: {size:.3g} MB (bar: at most {SIZE:g})")
    print(f"opened and drawn: {spread(opened)} s, an empty page {spread(alone)} s (bar: at most {OPENED:g})")
    return max(size / SIZE, median(opened) / OPENED)


def measure_first(args: argparse.Namespace) -> float:
    """Seconds from the end of the first step to the first line of the progress bar."""
    found = first_lines(args.rows, args.rounds)
    print(f"first progress line: {spread(found)} s after the first step (bar: at most {FIRST:g})")
    return median(found) / FIRST


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "rows": measure_rows,
    "page": measure_page,
    "first": measure_first,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=7, rows=20_000)
    parser.add_argument("--events", type=int, default=100_000, help="events of the page's run (default %(default)s)")
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
