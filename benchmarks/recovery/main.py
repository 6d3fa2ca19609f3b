"""What recovery costs: a killed executor, the detection of a failure, and checkpoints beside the training.

Each part measures both of its sides in one run, and has a bar of its own. The result is how much of its bar the worst
part takes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.pairs import options
from benchmarks.parts import run_parts
from benchmarks.recovery.detection import detect
from benchmarks.recovery.executor import PARTS, Recovery, recover
from benchmarks.recovery.saving import Lost, stall, throughput
from benchmarks.recovery.standalone import standalone
from sparkdl import LocalCluster

BAR = "at most 1"

MEMBERS = 2
KILLED, STOPPED = 2.0, 5.0  # seconds until that is known, of a stopped one beyond the heartbeat limit
STALL = 1.5  # steps
THROUGHPUT = 0.97  # of that without checkpoints


def measure_stall(given: argparse.Namespace) -> float:
    """Steps that an asynchronous checkpoint costs."""
    with LocalCluster(MEMBERS, threads=1) as cluster:
        found = stall(cluster, rounds=2 * given.rounds)
    _print("stall", found, "steps lost", [each.lost / each.step for each in found])
    figure = median(each.lost / each.step for each in found)
    print(f"stall: {figure:.3g} steps (bar: at most {STALL})")
    return figure / STALL


def measure_throughput(given: argparse.Namespace) -> float:
    """Throughput with a checkpoint every 30 s, divided by that without."""
    with LocalCluster(MEMBERS, threads=1) as cluster:
        found = throughput(cluster, rounds=given.rounds)
    _print("throughput", found, "throughput", [each.share for each in found])
    figure = median(each.share for each in found)
    print(f"throughput with a checkpoint every 30 s: {figure:.3f} of that without (bar: at least {THROUGHPUT})")
    return THROUGHPUT / figure


def measure_detection(given: argparse.Namespace) -> float:
    """Seconds until the supervisor knows that a member was killed, and that one was stopped."""
    found: dict[int, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
    with LocalCluster(MEMBERS, threads=1) as cluster:
        for number in range(given.rounds):
            for kind in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                found[kind].append(detect(cluster, kind, (number + len(found[kind])) % MEMBERS, given.limit))
                print(f"{kind.name}: {found[kind][-1]:.3g} s", file=sys.stderr, flush=True)
    killed, stopped = (median(found[kind]) for kind in (signal.SIGKILL, signal.SIGSTOP))
    print(f"a killed member: {_spread(found[signal.SIGKILL])} s (bar: at most {KILLED:g})")
    bar = f"at most {given.limit:g}, the limit, + {STOPPED:g}"
    print(f"a stopped member: {_spread(found[signal.SIGSTOP])} s (bar: {bar})")
    return max(killed / KILLED, (stopped - given.limit) / STOPPED)


def measure_executor(given: argparse.Namespace) -> float:
    """Seconds from the SIGKILL of an executor to the first step after it, divided by what it may take."""
    found: list[Recovery] = []
    print(f"{'seconds':<20}{'whole':>9}", *(f"{name:>9}" for name in PARTS), sep="")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder, standalone(folder) as url:
        for number in range(given.rounds + 1):
            found.append(recover(url, number % MEMBERS))
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
    cold = [median(each.cold for each in found), *(median(each.cold_parts[name] for each in found) for name in PARTS)]
    again = [median(each.recovery for each in found), *(median(each.parts[name] for each in found) for name in PARTS)]
    for name, figures in ((f"{title}, cold fit", cold), (f"{title}, recovery", again)):
        print(f"{name:<20}", *(f"{figure:>9.3g}" for figure in figures), sep="", flush=True)


def _spread(figures: Sequence[float]) -> str:
    return f"{median(figures):.3g} ({min(figures):.3g} to {max(figures):.3g})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts that are asked for."""
    parser = options(__doc__, rounds=3)
    parser.add_argument(
        "--limit", type=float, default=5.0, help="the supervisor's heartbeat_timeout, in seconds (default %(default)s)"
    )
    run_parts(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
