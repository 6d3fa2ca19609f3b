"""Training over slow links: two or four hosts on this machine, whose cables carry 1000, 100 or 10 Mbit/s.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurements import Measures, run_measurements
from benchmarks.pairs import Pairs, options
from benchmarks.slow_links.algorithms import ALGORITHMS, AllReduces
from benchmarks.slow_links.links import (
    Links,
    block_seconds,
    counted_per_step,
    links,
    reached,
    sent_per_step,
    spread,
)
from benchmarks.slow_links.strategies import BARS, BASELINE, CANDIDATES, LAYERED
from benchmarks.slow_links.training import MODEL, PARAMETERS, Steps

BAR = "at most 1"
RATES = (1000.0, 100.0, 10.0)  # Mbit/s
SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # bytes of an all-reduce
TRAFFIC = 200_000_000  # bytes that each worker sends, at least, to compare them with the bytes on the wire
HEADERS = 0.10  # largest share by which they may differ
MODEL_ERROR = 0.25  # largest share by which the cost model may miss the seconds of a step
PAYLOAD = 1448 / 1514  # of a packet; the rate of a cable includes headers
LATENCY = 5e-5  # seconds; the cables add no delay
ORDERS = {"host order": ("aabb", 0.70), "interleaved": ("abab", 0.36)}
"""Name -> the host of each rank, and the bar: bytes across the link in layers, as a share of flat all-reduce's."""


# ---- time to a target ------------------------------------------------------------------------------------------------


def measure_target(args: argparse.Namespace) -> float | None:
    """How many times faster each family reaches the accuracy than the baseline, as a share of its bar."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _chosen(args)}
    with links(args) as slow:
        slow.shape(args.mbit)
        for number in range(args.rounds):
            for name in [*found] if number % 2 == 0 else reversed(found):
                found[name].append(_to_target(slow, name, args))
    _print_targets(found, args)
    times = {}
    for name in found:
        rounds = [(a["seconds"], b["seconds"]) for a, b in zip(found[BASELINE], found[name], strict=True)]
        if name != BASELINE and all(all(pair) for pair in rounds):
            pairs = Pairs(BASELINE, name, rounds)
            times[name] = pairs.ratio
            print("", pairs.table("seconds"), sep="\n")
    shares = []
    for family, bar in BARS.items():
        if best := max((times[name] for name in times if CANDIDATES[name].family == family), default=0.0):
            print(f"best of {family}: {best:.3g} times faster than {BASELINE} (bar: at least {bar:g})")
            shares.append(bar / best)
    return max(shares, default=None)


def _to_target(slow: Links, name: str, args: argparse.Namespace) -> dict[str, Any]:
    work = Steps(CANDIDATES[name].strategy, str(slow.folder), args.steps, every=args.every)
    runs = slow.run(work)
    steps, seconds = reached(runs, args.target) or (None, None)
    figures = {
        "strategy": name,
        "mbit": args.mbit,
        "target": args.target,
        "steps": steps,
        "seconds": seconds,
        "bytes": None if steps is None else steps * runs[0].counted,
        "seconds_per_step": runs[0].ends[-1] / len(runs[0].ends),
        "accuracies": runs[0].accuracies,
    }
    _save(args, "target", figures)
    print(f"{name}: {seconds or 0:.4g} s to step {steps}", file=sys.stderr, flush=True)
    return figures


def _print_targets(found: Mapping[str, Sequence[Mapping[str, Any]]], args: argparse.Namespace) -> None:
    print(f"to an accuracy of {args.target:g} at {args.mbit:g} Mbit/s:")
    print(f"{'':<24}{'steps':>8}{'seconds':>10}{'MB a worker':>13}{'s a step':>10}")
    for name, rounds in found.items():
        for each in rounds:
            if each["steps"] is None:
                reached_by = f"{'not within':>18} {args.steps} steps"
            else:
                reached_by = f"{each['steps']:>8}{each['seconds']:>10.4g}{each['bytes'] / 1e6:>13.4g}"
            print(f"{name:<24}{reached_by}{each['seconds_per_step']:>10.4g}")


# ---- bytes -----------------------------------------------------------------------------------------------------------


def measure_wire(args: argparse.Namespace) -> float:
    """By which share the bytes on the wire differ from the counted ones, as a share of the bar."""
    shares = []
    with links(args) as slow:
        slow.shape(args.mbit)
        slow.single_packets()
        print(f"{'bytes':<24}{'counted':>16}{'on the wire':>16}{'idle, per s':>12}{'ratio':>8}")
        for name in _chosen(args):
            candidate = CANDIDATES[name]
            work = Steps(candidate.strategy, str(slow.folder), 1, 1, least=TRAFFIC, period=candidate.period, pause=5.0)
            runs = slow.run(work)
            steps, idle = len(runs[0].ends), sum({run.host: run.idle for run in runs}.values())
            counted, sent = steps * counted_per_step(runs), steps * sent_per_step(runs)
            print(f"{name:<24}{counted:>16,}{sent:>16,.0f}{idle:>12,.0f}{sent / counted:>8.4f}", flush=True)
            _save(args, "wire", {"strategy": name, "counted": counted, "sent": sent, "idle": idle})
            shares.append(abs(sent / counted - 1) / HEADERS)
    print(f"largest difference: {max(shares) * HEADERS:.3g} (bar: at most {HEADERS:g})")
    return max(shares)


def measure_layered(args: argparse.Namespace) -> float:
    """Bytes across the link between two hosts of two workers, in layers against flat, as a share of the bar."""
    if args.spark:
        sys.exit("layered needs an order of ranks, which Spark chooses itself: run it without --spark")
    shares = []
    with links(args) as slow:
        slow.shape(1000.0)
        for name, (order, bar) in ORDERS.items():
            flat = _across(slow, order, CANDIDATES[BASELINE].strategy)
            print(f"flat, ranks in {name} ({order}): {flat / 1e6:.4g} MB a step across the link, both directions")
            layers = _across(slow, order, LAYERED)
            print(f"in layers: {layers / 1e6:.4g} MB; ratio {layers / flat:.3g} (bar: at most {bar:g})")
            shares.append(layers / flat / bar)
    return max(shares)


def _across(slow: Links, order: str, strategy: Any) -> float:
    return sent_per_step(slow.run(Steps(strategy, str(slow.folder), 8, 1, pause=2.0), order))


# ---- seconds a step --------------------------------------------------------------------------------------------------


def measure_seconds(args: argparse.Namespace) -> float | None:
    """Seconds a step of every strategy at every rate, and the cost model's largest error as a share of its bar."""
    print(f"{'s a step':<24}{'Mbit/s':>8}{'gradients':>11}{'MB counted':>12}  median (least to most)")
    cells: dict[tuple[str, float], dict[str, Any]] = {}
    with links(args) as slow:
        for mbit in args.rates:
            slow.shape(mbit)
            for name in _chosen(args, orders=args.hosts == 2 and not args.spark):
                cells[name, mbit] = cell = _seconds(slow, name, mbit, args)
                _save(args, "seconds", cell)
                head = f"{name:<24}{mbit:>8g}{cell['gradients']:>11.3g}{cell['bytes_per_step'] / 1e6:>12.4g}"
                print(f"{head}  {spread(cell['blocks'])}", flush=True)
    return _compare_with_model(cells, args)


def _seconds(slow: Links, name: str, mbit: float, args: argparse.Namespace) -> dict[str, Any]:
    candidate = CANDIDATES[name]
    steps = max(candidate.period, 2 if mbit >= 100 else 1)  # alike at all rates: the time of TopK grows with training
    work = Steps(candidate.strategy, str(slow.folder), args.rounds * steps, candidate.period)
    runs = slow.run(work, candidate.order or "abcd")
    blocks = block_seconds(runs, steps)
    return {
        "strategy": name,
        "parameters": PARAMETERS,
        "mbit": mbit,
        "seconds_per_step": median(blocks),
        "blocks": blocks,
        "gradients": runs[0].gradients,
        "bytes_per_step": runs[0].counted,
    }


def _compare_with_model(cells: Mapping[tuple[str, float], Mapping[str, Any]], args: argparse.Namespace) -> float | None:
    """Predict the slower rates from the overhead at the fastest, and print the errors."""
    fastest, *slower = sorted(args.rates, reverse=True)
    if not slower:
        return None
    errors = []
    print(f"{'s a step':<24}{'Mbit/s':>8}{'measured':>10}{'predicted':>11}{'error':>8}")
    for name in dict.fromkeys(name for name, _ in cells):
        candidate = CANDIDATES[name]
        # Four workers on two cores compute longer; a reducer's encoding is no computation.
        compute = cells[name if candidate.order else BASELINE, fastest]["gradients"]
        hosts = [*candidate.order] or args.hosts
        explain = partial(candidate.strategy.explain, MODEL, hosts, latency=LATENCY, compute=compute)
        overhead = explain(PAYLOAD * fastest).overhead_of(cells[name, fastest]["seconds_per_step"])
        for mbit in slower:
            measured = cells[name, mbit]["seconds_per_step"]
            predicted = explain(PAYLOAD * mbit, overhead=overhead).seconds
            errors.append(abs(predicted / measured - 1))
            _save(args, "model", {"strategy": name, "mbit": mbit, "measured": measured, "predicted": predicted})
            print(f"{name:<24}{mbit:>8g}{measured:>10.4g}{predicted:>11.4g}{predicted / measured - 1:>+8.1%}")
    print(f"largest error of the cost model: {max(errors):.3g} (bar: at most {MODEL_ERROR:g})")
    return max(errors) / MODEL_ERROR


# ---- algorithms of all-reduce ----------------------------------------------------------------------------------------


def measure_algorithms(args: argparse.Namespace) -> None:
    """Seconds of an all-reduce by each algorithm, from 4 KB to 4 MB; it has no bar."""
    work = AllReduces(SIZES, args.rounds)
    print(f"{'seconds':<12}{'bytes':>12}" + "".join(f"{name:>34}" for name in ALGORITHMS))
    with links(args) as slow:
        for mbit in args.rates:
            slow.shape(mbit)
            ranks = slow.values(work)
            for size in SIZES:
                taken = {name: [*map(max, *(rank[size, name] for rank in ranks))] for name in ALGORITHMS}
                print(
                    f"{mbit:<12g}{size:>12,}" + "".join(f"{spread(taken[name]):>34}" for name in ALGORITHMS), flush=True
                )
                _save(args, "algorithms", {"mbit": mbit, "bytes": size, "seconds": taken})


# ---- the program -----------------------------------------------------------------------------------------------------


MEASURES: Measures = {
    "target": measure_target,
    "wire": measure_wire,
    "layered": measure_layered,
    "seconds": measure_seconds,
    "algorithms": measure_algorithms,
}


def _chosen(args: argparse.Namespace, *, orders: bool = False) -> Iterable[str]:
    """The baseline first, then the chosen strategies, in the table's order; with ``orders`` also of shared hosts."""
    names = [name for name in CANDIDATES if orders or not CANDIDATES[name].order]
    if without := [name for name in args.strategies or () if name not in names]:
        sys.exit(f"only seconds has {', '.join(without)}, with two hosts and without --spark")
    return [name for name in names if name == BASELINE or name in (args.strategies or CANDIDATES)]


def _save(args: argparse.Namespace, measurement: str, figures: Mapping[str, Any]) -> None:
    if args.output is not None:
        with args.output.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"measurement": measurement, "hosts": args.hosts, "spark": args.spark, **figures}) + "\n"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--strategies", nargs="+", choices=CANDIDATES, help="beside the baseline (default all)")
    parser.add_argument("--mbit", type=float, default=100.0, help="rate for target and wire (default %(default)g)")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="rates for seconds (default all three)")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy to reach (default %(default)s)")
    parser.add_argument("--steps", type=int, default=128, help="steps in which to reach it (default %(default)s)")
    parser.add_argument("--every", type=int, default=4, help="steps between two validations (default %(default)s)")
    parser.add_argument("--hosts", type=int, choices=(2, 4), default=2, help="with a worker each (default %(default)s)")
    parser.add_argument("--spark", action="store_true", help="gangs of a Spark standalone cluster on these hosts")
    parser.add_argument("--output", type=Path, help="append every figure to this file, as lines of JSON")
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
