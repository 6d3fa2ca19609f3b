"""Hosts behind slow cables, and the runs of their gangs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.hosts import Host
from benchmarks.slow_links.gangs import OnSpark, Processes
from benchmarks.slow_links.network import lacking, network, shape, single_packets
from benchmarks.slow_links.training import Run, Steps
from sparkdl.cluster.worker import Work

HEAD = "head"  # of the master and the driver
HOSTS = ("one", "two", "three", "four")


@dataclass(frozen=True)
class Links:
    """The hosts, and their gangs.

    Attributes:
        hosts: of the workers, without the host of a Spark driver.
        folder: a folder that they share.
        gang: runs ``work(world, None)`` on the host of each rank.
    """

    hosts: tuple[Host, ...]
    folder: Path
    gang: Callable[[Work, Sequence[Host]], list[Any]]

    def shape(self, mbit: float) -> None:
        """Limit both directions of the cables to so many megabits per second."""
        shape(self.hosts, mbit)

    def single_packets(self) -> None:
        """Let the hosts hand each packet of 1500 bytes to the cable by itself, so that all headers are counted."""
        single_packets(self.hosts)

    def run(self, work: Steps, order: str = "abcd") -> list[Run]:
        """The measurements of each rank, of which ``values`` has the arguments."""
        return [Run(**values) for values in self.values(work, order)]

    def values(self, work: Work, order: str = "abcd") -> list[Any]:
        """The values of each rank; ``order`` has a letter for the host of each rank, by default all in turn."""
        by_letter = dict(zip("abcd", self.hosts, strict=False))
        return self.gang(work, [by_letter[letter] for letter in order if letter in by_letter])


@contextmanager
def links(args: argparse.Namespace) -> Iterator[Links]:
    """Hosts for the block; without root or ``tc`` the program ends with the reason."""
    if (reason := lacking()) is not None:
        sys.exit(f"skipped: {reason}")
    names = HOSTS[: args.hosts]
    with network([*([HEAD] if args.spark else []), *names]) as hosts:
        gangs = OnSpark(hosts.folder, hosts[HEAD]) if args.spark else Processes(hosts.folder)
        yield Links(tuple(hosts[name] for name in names), hosts.folder, gangs.run)


# ---- what the runs of a gang's ranks say together --------------------------------------------------------------------


def block_seconds(runs: Sequence[Run], steps: int) -> list[float]:
    """Seconds per step of each block of ``steps`` steps; the slowest rank counts."""
    last = len(runs[0].ends)
    ends = [0.0, *(max(run.ends[step - 1] for run in runs) for step in range(steps, last + 1, steps))]
    return [(end - begin) / steps for begin, end in pairwise(ends)]


def reached(runs: Sequence[Run], target: float) -> tuple[int, float] | None:
    """The first step whose weights have the accuracy ``target``, and the seconds until then; None if there is none."""
    accuracies: Mapping[int, float] = runs[0].accuracies
    steps = [step for step, accuracy in sorted(accuracies.items()) if accuracy >= target]
    return (steps[0], max(run.ends[steps[0] - 1] for run in runs)) if steps else None


def sent_per_step(runs: Sequence[Run]) -> float:
    """Bytes per step that all hosts sent through their cables, with headers and without an idle gang's traffic."""
    hosts = {run.host: run for run in runs}  # the workers of a host count the same cable
    return sum(run.sent - run.idle * run.ends[-1] for run in hosts.values()) / len(runs[0].ends)


def counted_per_step(runs: Sequence[Run]) -> int:
    """Bytes per step that all workers count."""
    return sum(run.counted for run in runs)


def spread(figures: Sequence[float]) -> str:
    """Median, least and most, as text."""
    return f"{median(figures):.4g} ({min(figures):.4g} to {max(figures):.4g})"
