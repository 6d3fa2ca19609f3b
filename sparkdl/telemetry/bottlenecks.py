"""A run's bottlenecks, in numbers and in words.

A worker is busy in every phase but the exchange, in which it waits for other workers. With ``b_r`` the busy seconds of
rank ``r``,

    skew_r = b_r / median(b)       the slowest rank has the largest b_r

The slowest rank waits for no other, so its exchange seconds are the cost of the exchange itself. Further exchange
seconds of another rank are its wait for the slowest.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.telemetry.downsampling import sound
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.step_timer import PHASES

__all__ = ["PhaseTotals", "spending", "verdict"]

SKEWED = 1.2
"""Multiple of the median busy seconds from which a rank counts as slow."""
BOUND = 0.3
"""Share of the time from which a phase counts as the bottleneck."""
NOTED = 0.1
"""Share of the time from which the verdict mentions checkpoints, validation, callbacks and other work."""

_COMPUTING = ("forward", "backward", "update")
_TOLD = {
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
    names = [name for name in PHASES if any(name in each for each in phases)]
    by_rank = [{name: round(each.get(name, 0.0), 6) for name in names} for each in phases]
    busy = [_busy(each) for each in by_rank]
    median = _median(busy)
    return {
        "phases": {name: round(statistics.fmean(each[name] for each in by_rank), 6) for name in names},
        "phases_by_rank": by_rank,
        "skew_by_rank": [round(each / median, 3) if median else 1.0 for each in busy],
        "slowest_rank": busy.index(max(busy)) if len(busy) > 1 and median else None,
        "verdict": verdict(by_rank, hosts, unit=unit),
    }


def verdict(phases: Sequence[Mapping[str, float]], hosts: Sequence[str] = (), *, unit: str = "Rank") -> str:
    """Name a run's bottleneck in a few sentences, from the arguments of ``spending``; empty without measurements."""
    totals = [sum(each.values()) for each in phases]
    if not any(totals):
        return ""
    busy = [_busy(each) for each in phases]
    slowest = busy.index(max(busy))
    shares = {name: seconds / totals[slowest] for name, seconds in phases[slowest].items()}
    told = [_bound(shares, len(phases))]
    if len(phases) > 1 and busy[slowest] >= SKEWED * _median(busy):
        where = f" on {hosts[slowest]}" if len(hosts) > slowest and hosts[slowest] else ""
        known, own = [each for each in phases if each], phases[slowest]
        typical = {name: _median([each.get(name, 0.0) for each in known]) for name in own if name != "exchange"}
        most = max(typical, key=lambda name: own[name] - typical[name])
        cost = own.get("exchange", 0.0)
        wait = max((each.get("exchange", 0.0) - cost) / max(sum(each.values()), 1e-9) for each in known)
        rest = f"; others wait up to {wait:.0%} of their time." if wait > 0 else "."
        busier = f"{busy[slowest] / max(_median(busy), 1e-9):.1f} times as busy as the median"
        told.append(f"{unit} {slowest}{where} is the slowest, {busier}, most of it in {most}{rest}")
    told += [
        f"{shares[name]:.0%} goes into {what}."
        for name, what in _TOLD.items()
        if NOTED <= shares.get(name, 0.0) < BOUND
    ]
    return " ".join(told)


def _bound(shares: Mapping[str, float], ranks: int) -> str:
    feed, exchange = shares.get("feed", 0.0), shares.get("exchange", 0.0)
    if feed >= BOUND and feed >= exchange:
        return (
            f"Feed-bound: {feed:.0%} of the time is spent waiting for batches; simplify collate and augment, or "
            "give a task more cores."
        )
    if exchange >= BOUND:
        return (
            f"Exchange-bound: {exchange:.0%} of the time goes into the exchange even on the rank that waits least; "
            "use larger batches or fewer workers."
        )
    rare = max(_TOLD, key=lambda name: shares.get(name, 0.0))
    if shares.get(rare, 0.0) >= BOUND:
        return f"Bound by {_TOLD[rare]}: {shares[rare]:.0%} of the time."
    computing = sum(shares.get(name, 0.0) for name in _COMPUTING)
    rest = f", {exchange:.0%} into the exchange" if ranks > 1 else ""
    return f"Compute-bound: {computing:.0%} of the time goes into the model, {feed:.0%} into waiting for batches{rest}."


def _busy(phases: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in phases.items() if name != "exchange")


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if value]
    return statistics.median(known) if known else 0.0


class PhaseTotals:
    """A listener that sums the step events of tasks, whose results carry no sums."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Counter[str]] = {}

    def __call__(self, event: Event) -> None:
        """Take an event; only step events count."""
        if event.kind == "step" and sound(event):
            self._by_rank.setdefault(event.rank, Counter()).update(event.payload["seconds"])

    def phases(self) -> list[dict[str, float]]:
        """Seconds by phase of every rank; empty for a rank without step events."""
        count = max(self._by_rank, default=-1) + 1
        return [dict(self._by_rank.get(rank, {})) for rank in range(count)]
