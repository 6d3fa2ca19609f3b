"""A run's bottlenecks, in numbers and in words.

A worker is busy in every phase but the exchange, in which it waits for other workers. With ``b_r`` the busy seconds of
rank ``r``,

    skew_r = b_r / median(b)       the slowest rank has the largest b_r

The slowest rank waits for no other, so its exchange seconds are the cost of the exchange itself. Further exchange
seconds of another rank are its wait for the slowest.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.telemetry.event import Event, readable
from sparkdl.telemetry.step_timer import PHASES

SKEWED = 1.2
"""Multiple of the median busy seconds from which a rank counts as slow."""
BOUND = 0.3
"""Share of the time from which a phase counts as the bottleneck."""
NOTED = 0.1
"""Share of the time from which the verdict mentions checkpoints, validation, callbacks and other work."""

_DAEMON = "load PyTorch beside other work, by spark.python.daemon.module=sparkdl.spark.python_daemon and warm_up()"
STARTUP = {
    "session": "reuse the Spark session, whose executors have started",
    "workers": f"persist the rows that Spark shuffles before workers start, and {_DAEMON}",
    "imports": _DAEMON,
    "feed": "store the features as one array column",
    "other": "train longer, or several models in one session",
}
"""What shortens each phase of a gang's start-up: the driver prepares the fit; tasks start; they import PyTorch; they
write their rows to disk; and the rest, such as restarts, and the weights on their way back."""

_COMPUTING = ("forward", "backward", "update")
_PHRASES = {
    "validate": "validation",
    "checkpoint": "waiting for checkpoints to be copied",
    "callbacks": "callbacks",
    "other": "work between the phases",
}


def spending(phases: Sequence[Mapping[str, float]], hosts: Sequence[str] = (), *, unit: str = "Rank") -> dict[str, Any]:
    """Summarise workers' time by phase.

    Args:
        phases: seconds by phase of every rank; empty for a rank without measurements.
        hosts: host of every rank; default: unknown.
        unit: the verdict's noun for a rank; a round's ranks are its shards.

    Returns:
        ``phases``, the mean over ranks; ``phases_by_rank``; ``skew_by_rank``; ``slowest_rank``, None with one rank or
        without measurements; ``verdict``, in words.
    """
    names = [name for name in PHASES if any(name in seconds for seconds in phases)]
    by_rank = [{name: round(seconds.get(name, 0.0), 6) for name in names} for seconds in phases]
    busy = [_busy(seconds) for seconds in by_rank]
    median = _median(busy)
    return {
        "phases": {name: round(statistics.fmean(seconds[name] for seconds in by_rank), 6) for name in names},
        "phases_by_rank": by_rank,
        "skew_by_rank": [round(seconds / median, 3) if median else 1.0 for seconds in busy],
        "slowest_rank": busy.index(max(busy)) if len(busy) > 1 and median else None,
        "verdict": verdict(by_rank, hosts, unit=unit),
    }


def verdict(phases: Sequence[Mapping[str, float]], hosts: Sequence[str] = (), *, unit: str = "Rank") -> str:
    """Name a run's bottleneck in a few sentences, from the arguments of ``spending``; empty without measurements."""
    totals = [sum(seconds.values()) for seconds in phases]
    if not any(totals):
        return ""
    busy = [_busy(seconds) for seconds in phases]
    slowest, median = busy.index(max(busy)), _median(busy)
    shares = {name: seconds / totals[slowest] for name, seconds in phases[slowest].items()}
    sentences = [_bound(shares, len(phases))]
    if len(phases) > 1 and busy[slowest] >= SKEWED * median:
        where = f" on {hosts[slowest]}" if len(hosts) > slowest and hosts[slowest] else ""
        measured = [seconds for seconds in phases if seconds]
        spent = dict(phases[slowest])
        cost = spent.pop("exchange", 0.0)
        excess = {
            name: taken - _median([seconds.get(name, 0.0) for seconds in measured]) for name, taken in spent.items()
        }
        wait = max((seconds.get("exchange", 0.0) - cost) / max(sum(seconds.values()), 1e-9) for seconds in measured)
        waiting = f"; others wait up to {wait:.0%} of their time." if wait > 0 else "."
        busier = f"{busy[slowest] / max(median, 1e-9):.1f} times as busy as the median"
        most = max(excess, key=excess.__getitem__)
        sentences.append(f"{unit} {slowest}{where} is the slowest, {busier}, most of it in {most}{waiting}")
    rare = [(name, phrase) for name, phrase in _PHRASES.items() if NOTED <= shares.get(name, 0.0) < BOUND]
    return " ".join([*sentences, *(f"{shares[name]:.0%} goes into {phrase}." for name, phrase in rare)])


def with_startup(report: Mapping[str, Any], parts: Mapping[str, float]) -> dict[str, Any]:
    """A gang's report with ``startup_seconds``, in which no worker took steps; the verdict names a large share.

    They are the ``seconds`` of the fit without those of the busiest rank's steps. ``startup`` has them by phase: those
    of ``parts``, and ``other``.
    """
    phases, seconds = report.get("phases_by_rank"), report["seconds"]
    if not phases:
        return dict(report)
    startup = max(0.0, seconds - max(sum(spent.values()) for spent in phases))
    by_phase = {**parts, "other": max(0.0, round(startup - sum(parts.values()), 3))}
    share, words, most = startup / max(seconds, 1e-9), report["verdict"], max(by_phase, key=by_phase.__getitem__)
    if share >= BOUND:
        steps = f" In the steps: {words}" if share < 0.5 else ""  # else faster steps hardly matter
        words = f"Start-up takes {share:.0%} of this fit's {seconds:.1f} s, most of it {most}: {STARTUP[most]}.{steps}"
    return {**report, "startup_seconds": startup, "startup": by_phase, "verdict": words}


def _bound(shares: Mapping[str, float], ranks: int) -> str:
    feed, exchange = shares.get("feed", 0.0), shares.get("exchange", 0.0)
    if feed >= BOUND and feed >= exchange:
        advice = "simplify collate and augment, or give a task more cores."
        return f"Feed-bound: {feed:.0%} of the time is spent waiting for batches; {advice}"
    if exchange >= BOUND:
        where = "into the exchange even on the rank that waits least; use larger batches or fewer workers."
        return f"Exchange-bound: {exchange:.0%} of the time goes {where}"
    rare = max(_PHRASES, key=lambda name: shares.get(name, 0.0))
    if shares.get(rare, 0.0) >= BOUND:
        return f"Bound by {_PHRASES[rare]}: {shares[rare]:.0%} of the time."
    computing = sum(shares.get(name, 0.0) for name in _COMPUTING)
    also = f", {exchange:.0%} into the exchange" if ranks > 1 else ""
    return f"Compute-bound: {computing:.0%} of the time goes into the model, {feed:.0%} into waiting for batches{also}."


def _busy(phases: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in phases.items() if name != "exchange")


def _median(values: Sequence[float]) -> float:
    return statistics.median([value for value in values if value] or [0.0])


class PhaseTotals:
    """A listener that sums the step events of tasks, whose results carry no sums, and a gang's start-up by phase."""

    def __init__(self) -> None:
        self.start = time.time()  # of the fit
        self._begun: dict[int, float] = {}  # each attempt
        self._by_rank: dict[int, Counter[str]] = {}
        self._startup: defaultdict[tuple[str, int], dict[int, float]] = defaultdict(dict)  # by phase and attempt

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.kind == "step" and readable(event):
            self._by_rank.setdefault(event.rank, Counter()).update(event.payload["seconds"])
        at, phase, rank = event.received or event.time, event.payload.get("name"), event.rank
        if event.kind == "attempt":
            self._begun[event.attempt] = at
        elif event.kind == "started":  # after imports
            before = self._startup["imports", event.attempt].get(rank, 0.0)
            self._startup["workers", event.attempt][rank] = at - self._begun.get(event.attempt, at) - before
        elif event.kind == "span" and phase in STARTUP and readable(event):
            spent = self._startup[phase, event.attempt]
            spent[rank] = spent.get(rank, 0.0) + event.payload["seconds"]

    def phases(self) -> list[dict[str, float]]:
        """Seconds by phase of every rank; empty for a rank without step events."""
        count = max(self._by_rank, default=-1) + 1
        return [dict(self._by_rank.get(rank, {})) for rank in range(count)]

    def startup(self) -> dict[str, float]:
        """Seconds of each phase of the start-up but ``other``, summed over attempts; the slowest rank counts."""
        sums = dict.fromkeys(STARTUP, 0.0) | {"session": min(self._begun.values(), default=self.start) - self.start}
        for (phase, _), seconds in self._startup.items():
            sums[phase] += max(seconds.values(), default=0.0)
        return {phase: max(0.0, round(spent, 3)) for phase, spent in sums.items() if phase != "other"}
