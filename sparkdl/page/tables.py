"""The words and tables of the report page, as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from sparkdl.page.run_data import RunData
from sparkdl.report import verdict

MOST_ROWS = 200
"""Rows of a table; of a longer history the last ones."""
_MOST_TEXT = 2_000  # characters of a setting


def heading(runs: Sequence[RunData]) -> str:
    """What the page is about."""
    names = " and ".join(run.name for run in runs)
    return "".join([f"<h1>{escape(names)}</h1>", *map(_told, runs)])


def figures(runs: Sequence[RunData]) -> str:
    """The figures of each run that are looked for first."""
    return "".join(_figures(run, named=len(runs) > 1) for run in runs)


def attempts(run: RunData) -> str:
    """Each attempt: how many members, on which hosts, and why it ended."""
    rows, causes = [], {event.attempt: event.payload.get("cause") for event in run.of_kind("restart")}
    hosts: dict[int, set[str]] = {}
    for event in run.of_kind("started"):
        hosts.setdefault(event.attempt, set()).add(event.host)
    for event in run.of_kind("attempt"):
        told = [event.attempt, event.payload["size"], ", ".join(sorted(hosts.get(event.attempt, ())))]
        rows.append([*told, round(event.time - run.start, 1), causes.get(event.attempt) or ""])
    names = ["attempt", "members", "hosts", "began after, s", "why it ended"]
    return _section("Attempts", _table(names, rows)) if len(rows) > 1 else ""


def history(run: RunData) -> str:
    """The history, or its last rows."""
    rows = list(run.history)[-MOST_ROWS:]
    names = [*dict.fromkeys(name for row in rows for name in row)]
    left_out = len(run.history) - len(rows)
    note = f"<p>The first {left_out} rows are left out.</p>" if left_out else ""
    return _folded("History", note + _table(names, [[row.get(name, "") for name in names] for row in rows]), rows)


def configuration(runs: Sequence[RunData]) -> str:
    """What the runs were asked to do; of several what differs first."""
    names = sorted({name for run in runs for name in run.configuration})
    told = {name: [_setting(run.configuration.get(name)) for run in runs] for name in names}
    titles = ["setting", *([run.name for run in runs] if len(runs) > 1 else ["value"])]
    apart = [name for name in names if len({*told[name]}) > 1]
    differences = _section("What differs", _table(titles, [[name, *told[name]] for name in apart])) if apart else ""
    return differences + _folded("Configuration", _table(titles, [[name, *told[name]] for name in names]), names)


def environment(runs: Sequence[RunData]) -> str:
    """Versions and machines."""
    found = {run.name: next((event.payload for event in reversed(run.of_kind("begin"))), {}) for run in runs}
    names = [*dict.fromkeys(name for each in found.values() for name in each.get("environment", {}))]
    titles = ["", *([run.name for run in runs] if len(runs) > 1 else ["value"])]
    rows = [[name, *(found[run.name].get("environment", {}).get(name, "") for run in runs)] for name in names]
    return _folded("Environment", _table(titles, rows), names)


def messages(run: RunData) -> str:
    """What members and the driver have warned of, and the last lines of members' logs."""
    rows = [
        [round(event.time - run.start, 1), _who(event.rank), event.payload.get("level", event.kind), _message(event)]
        for event in run.of_kind("warning", "log", "failed", "resized")
    ][-MOST_ROWS:]
    return _folded("Warnings and logs", _table(["after, s", "who", "what", "message"], rows), rows)


def _told(run: RunData) -> str:
    sentences = run.report.get("verdict") or verdict(list(run.phases().values()), list(run.hosts().values()))
    if run.error:
        return f'<p class="verdict failed">{escape(run.name)} failed: {escape(run.error)}</p>'
    state = "" if run.over else "It goes on, or was ended from outside. "
    return f'<p class="verdict">{escape(state + sentences)}</p>' if state or sentences else ""


def _figures(run: RunData, *, named: bool) -> str:
    last = run.history[-1] if run.history else {}
    loss = next((name for name in ("valid_loss", "loss", "objective") if isinstance(last.get(name), float)), None)
    report = run.report
    told = [
        (run.configuration.get("class"), "estimator" if not named else run.name),
        (len(run.history), _unit(run.history)),
        (_number(last[loss]) if loss else None, f"last {loss}"),
        (_seconds(report.get("seconds")), "in all"),
        (_count(report.get("rows_per_second")), "rows/s"),
        (_count(report.get("rows")), "rows"),
        (", ".join(map(str, report.get("workers", []))) or None, "members"),
        (report.get("restarts"), "restarts"),
        (_bytes(report.get("bytes")), "exchanged"),
        (report.get("events_dropped") or None, "events lost"),
    ]
    cells = [f"<div><b>{escape(str(value))}</b><span>{name}</span></div>" for value, name in told if value is not None]
    return f'<div class="figures">{"".join(cells)}</div>'


def _unit(rows: Sequence[dict[str, Any]]) -> str:
    return next((f"{name}s" for name in ("epoch", "round", "member") for row in rows[:1] if name in row), "rows")


def _who(rank: int) -> str:
    return "driver" if rank < 0 else f"rank {rank}"


def _message(event: Any) -> str:
    told = event.payload
    return str(told.get("message") or f"{told.get('size')} of {told.get('of')} members")[:_MOST_TEXT]


def _setting(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " ..."


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}"


def _folded(title: str, content: str, rows: Sequence[Any]) -> str:
    return f"<details><summary>{title}</summary>{content}</details>" if rows else ""


def _table(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number">{_number(value)}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{value:.1f} s"


def _bytes(value: float | None) -> str | None:
    if value is None:
        return None
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
