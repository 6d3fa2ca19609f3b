"""Cost of recovery: a killed executor, the detection of a failure, and asynchronous checkpoints.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.measurements import run_measurements
from benchmarks.pairs import options
from benchmarks.recovery.detection import detect
from benchmarks.recovery.executor import PHASES, Recovery, recover
from benchmarks.recovery.saving import Lost, stall, throughput
from benchmarks.recovery.standalone import standalone
from sparkdl import LocalCluster

BAR = "at most 1"

WORKERS = 2
KILLED, STOPPED = 2.0, 5.0  # seconds until detection; for a stopped worker, beyond the heartbeat limit
STALL = 1.5  # steps
THROUGHPUT = 0.97  # relative to a training without checkpoints


def measure_stall(args: argparse.Namespace) -> float:
    """Steps that an asynchronous checkpoint costs."""
    with LocalCluster(WORKERS, threads=1) as cluster:
        found = stall(cluster, rounds=2 * args.rounds)
    _print("stall", found, "steps lost", [each.lost / each.step for each in found])
    figure = median(each.lost / each.step for each in found)
    print(f"stall: {figure:.3g} steps (bar: at most {STALL})")
    return figure / STALL


def measure_throughput(args: argparse.Namespace) -> float:
    """Throughput with a checkpoint every 30 s, relative to none."""
    with LocalCluster(WORKERS, threads=1) as cluster:
        found = throughput(cluster, rounds=args.rounds)
    _print("throughput", found, "throughput", [each.share for each in found])
    figure = median(each.share for each in found)
    print(f"throughput with a checkpoint every 30 s: {figure:.3f} of that without (bar: at least {THROUGHPUT})")
    return THROUGHPUT / figure


def measure_detection(args: argparse.Namespace) -> float:
    """Seconds until the supervisor knows that a worker was killed or stopped."""
    found: dict[int, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
    with LocalCluster(WORKERS, threads=1) as cluster:
        for number in range(args.rounds):
            for kind in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                found[kind].append(detect(cluster, kind, (number + len(found[kind])) % WORKERS, args.limit))
                print(f"{kind.name}: {found[kind][-1]:.3g} s", file=sys.stderr, flush=True)
    killed, stopped = (median(found[kind]) for kind in (signal.SIGKILL, signal.SIGSTOP))
    print(f"a killed worker: {_spread(found[signal.SIGKILL])} s (bar: at most {KILLED:g})")
    bar = f"at most {args.limit:g}, the limit, + {STOPPED:g}"
    print(f"a stopped worker: {_spread(found[signal.SIGSTOP])} s (bar: {bar})")
    return max(killed / KILLED, (stopped - args.limit) / STOPPED)


def measure_executor(args: argparse.Namespace) -> float:
    """Seconds from an executor's SIGKILL to the first step after it, as a share of the limit."""
    found: list[Recovery] = []
    print(f"{'seconds':<20}{'whole':>9}", *(f"{name:>9}" for name in PHASES), sep="")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder, standalone(folder) as url:
        for number in range(args.rounds + 1):
            found.append(recover(url, number % WORKERS))
            _print_recovery(f"round {number}" if number else "warm-up", found[-1:])
    counted = found[1:]
    _print_recovery("median", counted)
    figure = median(each.recovery / each.allowed for each in counted)
    print(f"a killed executor: {figure:.3g} of 1.5 cold fits + 3 s (bar: at most 1)")
    return figure


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "executor": measure_executor,
    "detection": measure_detection,
    "stall": measure_stall,
    "throughput": measure_throughput,
}


def _print(title: str, found: Sequence[Lost], name: str, figures: Sequence[float]) -> None:
    print(f"{title:<12}{'s a step':>10}{'pause, s':>10}{'lost, s':>10}{'saved, s':>10}{name:>12}")
    for number, (each, figure) in enumerate(zip(found, figures, strict=True), start=1):
        row = f"{each.step:>10.3g}{each.pause:>10.3g}{each.lost:>10.3g}{each.saved:>10.3g}{figure:>12.3f}"
        print(f"{f'round {number}':<12}{row}")


def _print_recovery(title: str, found: Sequence[Recovery]) -> None:
    cold = [median(each.cold for each in found), *(median(each.cold_phases[name] for each in found) for name in PHASES)]
    again = [median(each.recovery for each in found), *(median(each.phases[name] for each in found) for name in PHASES)]
    for name, figures in ((f"{title}, cold fit", cold), (f"{title}, recovery", again)):
        print(f"{name:<20}", *(f"{figure:>9.3g}" for figure in figures), sep="", flush=True)


def _spread(figures: Sequence[float]) -> str:
    return f"{median(figures):.3g} ({min(figures):.3g} to {max(figures):.3g})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=3)
    parser.add_argument(
        "--limit", type=float, default=5.0, help="the supervisor's heartbeat_timeout, in seconds (default %(default)s)"
    )
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
