"""Texts and tables of the report page, as plain text: the template escapes them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sparkdl.io.redaction import masked
from sparkdl.report.run_data import RunData
from sparkdl.report.style import is_numeric
from sparkdl.telemetry.bottlenecks import verdict

MOST_ROWS = 200
"""Most rows of a table; of a longer history, the last rows."""
_LONG = 40  # a cell of more characters is wide
_MOST_TEXT = 2_000  # characters of a setting or a message

_SIZES = {"shard": "shards", "member": "concurrent members", "trial": "concurrent trials"}
_LAST = ("valid_loss", "loss", "objective", "primal")


@dataclass(frozen=True)
class TableCell:
    """A table cell: plain text, and its style: ``number``, ``long`` or empty."""

    text: str
    kind: str

    @staticmethod
    def of(value: Any, *, number: bool = False) -> TableCell:
        """The cell of a value; ``number`` marks the head of a column of numbers."""
        text = "" if value is None else _number(value) if is_numeric(value) else str(value)
        return TableCell(text, "number" if number or is_numeric(value) else "long" if len(text) > _LONG else "")


@dataclass(frozen=True)
class Table:
    """A table: the head's cells, and the cells of each row. The page omits a table without rows."""

    head: list[TableCell]
    rows: list[list[TableCell]]

    @staticmethod
    def of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
        """The table of plain values."""
        numbers = [bool(rows) and all(is_numeric(row[place]) for row in rows) for place, _ in enumerate(names)]
        head = [TableCell.of(name, number=number) for name, number in zip(names, numbers, strict=True)]
        return Table(head, [[TableCell.of(value) for value in row] for row in rows])


def page_tables(runs: Sequence[RunData]) -> dict[str, Any]:
    """The template's variables for texts and tables."""
    first, *others = runs
    return {
        "names": " and ".join(filter(None, (", ".join(run.name for run in runs[:-1]), runs[-1].name))),
        "summaries": [_summary(run, named=bool(others)) for run in runs],
        "figures": {} if others else {key: value for key, value in _figures(first).items() if value is not None},
        "side_by_side": _side_by_side(runs if others else []),
        "attempts": None if others else _attempts(first),
        "startup": None if others else _startup(first),
        "differences": _configuration(runs, differing=True),
        "configuration": _configuration(runs),
        "environment": _environment(runs),
        "history": None if others else _history(first),
        "left_out": max(0, len(first.history) - MOST_ROWS),
        "messages": None if others else _messages(first),
    }


def _side_by_side(runs: Sequence[RunData]) -> Table:
    figures = [_figures(run) for run in runs]
    names = dict.fromkeys(name for run in figures for name, value in run.items() if value is not None)
    return Table.of(["", *(run.name for run in runs)], [[name, *(run.get(name) for run in figures)] for name in names])


def _attempts(run: RunData) -> Table | None:
    rows: list[list[Any]] = []
    hosts: set[str] = set()
    for event in run.of_kind("attempt", "started", "restart", "end"):
        if event.kind == "attempt":
            hosts = set()
            rows.append([event.attempt, event.payload["size"], "", round(run.since(event), 1), ""])
        elif not rows:
            continue
        elif event.kind == "started":
            hosts.add(event.host)
            rows[-1][2] = ", ".join(sorted(hosts))
        else:
            cause = str(event.payload.get("cause") or event.payload.get("error") or "")
            rows[-1][4] = masked(cause).partition("\n")[0][:_MOST_TEXT]
    return Table.of(["attempt", "workers", "hosts", "start, s", "end"], rows) if len(rows) > 1 else None


def _startup(run: RunData) -> Table:
    parts = run.report.get("startup", {})
    rows = [[name, spent, round(100 * spent / max(sum(parts.values()), 1e-9))] for name, spent in parts.items()]
    return Table.of(["phase", "seconds", "%"], rows)


def _history(run: RunData) -> Table:
    rows, mark = run.history[-MOST_ROWS:], {} if run.best is None else {run.best: f"best {run.unit}"}
    names = [*dict.fromkeys(name for row in rows for name in row), *mark.values()]
    marked = [{**row, **{name: "best" * (row.get(run.unit) == best) for best, name in mark.items()}} for row in rows]
    return Table.of(names, [[row.get(name, "") for name in names] for row in marked])


def _configuration(runs: Sequence[RunData], *, differing: bool = False) -> Table:
    names = dict.fromkeys(name for run in runs for name in run.configuration)
    rows = [[name, *(_setting(run.configuration.get(name)) for run in runs)] for name in names]
    return _by_run("setting", runs, [row for row in rows if not differing or len({*row[1:]}) > 1])


def _environment(runs: Sequence[RunData]) -> Table:
    environments: list[dict[str, Any]] = [
        next((event.payload.get("environment", {}) for event in reversed(run.of_kind("begin"))), {}) for run in runs
    ]
    names = dict.fromkeys(name for environment in environments for name in environment)
    rows = [[name, *(_setting(values[name]) if name in values else "" for values in environments)] for name in names]
    return _by_run("", runs, rows)


def _messages(run: RunData) -> Table:
    rows: list[list[Any]] = []
    for event in run.of_kind("warning", "log", "failed", "resized"):
        payload = event.payload
        message = payload.get("message") or f"{payload.get('size')} of {payload.get('of')} workers start"
        source = run.called(event.rank) if event.rank >= 0 else "driver"
        kind = str(payload.get("level", event.kind))
        rows.append([round(run.since(event), 1), source, kind, masked(str(message))[:_MOST_TEXT]])
    return Table.of(["time, s", "source", "kind", "message"], rows[-MOST_ROWS:])


def _by_run(head: str, runs: Sequence[RunData], rows: Sequence[Sequence[Any]]) -> Table:
    return Table.of([head, *([run.name for run in runs] if len(runs) > 1 else ["value"])], rows)


def _summary(run: RunData, *, named: bool) -> dict[str, str]:
    began = next((event.received for event in run.of_kind("begin") if event.received), None)
    facts = [str(run.configuration.get("class") or ""), f"started {_date(began)}" if began else ""]
    if run.state == "open":
        last = f"; last event {_date(run.last)}" if run.last else ""
        facts.append(f"unfinished: it still runs or was killed{last}")
    error, _, details = masked(run.error or "").partition("\n")
    return {
        "name": run.name if named else "",
        "about": " · ".join(filter(None, facts)),
        "error": error[:_MOST_TEXT],
        "rest": details.strip("\n"),
        "verdict": run.report.get("verdict") or _verdict(run),
    }


def _verdict(run: RunData) -> str:
    phases = run.phases()
    if run.noun == "rank":
        return verdict([*phases.values()], [run.hosts.get(rank, "") for rank in phases])
    total: Counter[str] = Counter()
    for seconds in phases.values():
        total.update(seconds)
    return verdict([total])


def _figures(run: RunData) -> dict[str, str | None]:
    last, report = (run.history[-1] if run.history else {}), run.report
    members = run.noun in ("member", "trial")  # which have no last row
    name = next((name for name in _LAST if isinstance(last.get(name), float) and not members), None)
    sizes = report.get("workers") or [event.payload["size"] for event in run.of_kind("attempt")]
    restarts = report.get("restarts", len(run.of_kind("restart")) if run.events else None)
    rates = [] if members else [event.payload.get("rows_per_second") for event in run.of_kind("progress")[-1:]]
    lost = report.get("events_dropped")
    return {
        f"{run.unit}s": f"{len(run.history):,}" if run.history else None,
        f"best {run.unit}": None if run.best is None else f"{run.best:,}",
        **{f"last {metric}": _number(last[metric]) if metric == name else None for metric in _LAST},
        "total time": _seconds(report.get("seconds", run.seconds if run.events else None)),
        "start-up": _seconds(report.get("startup_seconds")),
        "rows/s": _count(report.get("rows_per_second", rates[0] if rates else None)),
        "rows": _count(report.get("rows")),
        _SIZES.get(run.noun, "workers"): " → ".join(f"{size:,}" for size, _ in groupby(sizes)) or None,
        "restarts": _count(restarts),
        "exchanged": _bytes(report.get("bytes")),
        "events left out": _count(run.odd or None),
        "events lost": f"at least {lost:,}" if report.get("events_dropped_at_least") else _count(lost or None),
    }


def _setting(value: Any) -> str:
    text = masked(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " ..."


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _date(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{value:.1f} s"


def _bytes(value: float | None) -> str | None:
    if value is None:
        return None
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
