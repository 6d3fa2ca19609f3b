"""The words and tables of the report page, as HTML."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from sparkdl.io.redaction import masked
from sparkdl.telemetry.bottlenecks import verdict
from sparkdl.telemetry.emit import Event
from sparkdl.telemetry.html.run_data import RunData

MOST_ROWS = 200
"""Rows of a table; of a longer history the last ones."""
_LONG = 40  # characters from which on a cell is a wide one
_MOST_TEXT = 2_000  # characters of a setting or a message

_SIZES = {"part": "parts", "member": "members at a time"}
_LAST = ("valid_loss", "loss", "objective", "primal")


def heading(runs: Sequence[RunData]) -> str:
    """What the page is about, and how it went."""
    names = " and ".join(filter(None, (", ".join(run.name for run in runs[:-1]), runs[-1].name)))
    return "".join([f"<h1>{escape(names)}</h1>", *(_told(run, named=len(runs) > 1) for run in runs)])


def figures(runs: Sequence[RunData]) -> str:
    """The figures of each run that are looked for first."""
    told = [_figures(run) for run in runs]
    names = [*dict.fromkeys(name for each in told for name, value in each.items() if value is not None)]
    if len(runs) > 1:
        rows = [[name, *(each.get(name) for each in told)] for name in names]
        return _section("Side by side", _table(["", *(run.name for run in runs)], rows))
    cells = [f"<div><b>{escape(told[0][name] or '')}</b><span>{escape(name)}</span></div>" for name in names]
    return f'<div class="figures">{"".join(cells)}</div>'


def attempts(run: RunData) -> str:
    """Each attempt: how many members, on which hosts, and why it ended; empty where there was one alone."""
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
            rows[-1][4] = _first_line(str(event.payload.get("cause") or event.payload.get("error") or ""))
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
    names = [*dict.fromkeys(name for run in runs for name in run.configuration)]
    told = {name: [_setting(run.configuration.get(name)) for run in runs] for name in names}
    titles = ["setting", *([run.name for run in runs] if len(runs) > 1 else ["value"])]
    apart = [name for name in names if len({*told[name]}) > 1]
    differences = _section("What differs", _table(titles, [[name, *told[name]] for name in apart])) if apart else ""
    return differences + _folded("Configuration", _table(titles, [[name, *told[name]] for name in names]), names)


def environment(runs: Sequence[RunData]) -> str:
    """Versions and machines, as of when each run was last begun."""
    begun = [run.of_kind("begin")[-1:] for run in runs]
    found: list[dict[str, Any]] = [each[0].payload.get("environment", {}) if each else {} for each in begun]
    names = [*dict.fromkeys(name for each in found for name in each)]
    titles = ["", *([run.name for run in runs] if len(runs) > 1 else ["value"])]
    rows = [[name, *(_setting(each[name]) if name in each else "" for each in found)] for name in names]
    return _folded("Environment", _table(titles, rows), names)


def messages(run: RunData) -> str:
    """What members and the driver have warned of, and the last lines of members' logs."""
    rows = [
        [round(run.since(event), 1), run.called(event.rank) if event.rank >= 0 else "driver", *_message(event)]
        for event in run.of_kind("warning", "log", "failed", "resized")
    ][-MOST_ROWS:]
    return _folded("Warnings and logs", _table(["after, s", "who", "what", "message"], rows), rows)


def _told(run: RunData, *, named: bool) -> str:
    name = f"<b>{escape(run.name)}</b>: " if named else ""
    began = next((event.received for event in run.of_kind("begin") if event.received), None)
    facts = [str(run.configuration.get("class") or ""), f"begun {_date(began)}" if began else ""]
    if run.state == "open":
        last = f", of which the last sign is of {_date(run.last)}" if run.last else ""
        facts.append(f"goes on, or was ended from outside{last}")
    about = " · ".join(filter(None, facts))
    said = run.report.get("verdict") or _verdict(run)
    return "".join(
        [
            f'<p class="about">{name}{escape(about)}</p>' if about or name else "",
            _failure(run.error) if run.error else "",
            f'<p class="verdict">{escape(said)}</p>' if said else "",
        ]
    )


def _verdict(run: RunData) -> str:
    """What a run is bound by: a gang, of which one may be slow, or tasks that do not wait for one another."""
    phases = run.phases()
    if run.noun == "rank":
        return verdict([*phases.values()], [run.hosts.get(rank, "") for rank in phases])
    names = dict.fromkeys(name for each in phases.values() for name in each)
    return verdict([{name: sum(each.get(name, 0.0) for each in phases.values()) for name in names}])


def _failure(error: str) -> str:
    """Why a run failed, with the rest of what the error says folded away."""
    rest = masked(error).partition("\n")[2].strip("\n")
    more = f"<details><summary>What else it says</summary><pre>{escape(rest)}</pre></details>" if rest else ""
    return f'<div class="verdict failed">Failed: {escape(_first_line(error))}{more}</div>'


def _figures(run: RunData) -> dict[str, str | None]:
    """What is looked for first, by name; None of what is not known."""
    last, report = (run.history[-1] if run.history else {}), run.report
    apart = run.noun == "member"  # there is no last one of an ensemble's
    name = next((each for each in _LAST if isinstance(last.get(each), float) and not apart), None)
    told = {each: _number(last[each]) if each == name else None for each in _LAST}
    sizes = report.get("workers") or [event.payload["size"] for event in run.of_kind("attempt")]
    restarts = report.get("restarts", len(run.of_kind("restart")) if run.events else None)
    latest = [] if apart else run.of_kind("progress")[-1:]
    rates = [event.payload.get("rows_per_second") for event in latest]
    return {
        f"{run.unit}s": f"{len(run.history):,}" if run.history else None,
        **{f"last {each}": value for each, value in told.items()},
        "in all": _seconds(report.get("seconds", run.seconds if run.events else None)),
        "rows/s": _count(report.get("rows_per_second", rates[0] if rates else None)),
        "rows": _count(report.get("rows")),
        _SIZES.get(run.noun, "members"): " → ".join(f"{size:,}" for size, _ in groupby(sizes)) or None,
        "restarts": _count(restarts),
        "exchanged": _bytes(report.get("bytes")),
        "events lost": _count(report.get("events_dropped") or None),
    }


def _first_line(text: str) -> str:
    return masked(text).partition("\n")[0][:_MOST_TEXT]


def _message(event: Event) -> tuple[str, str]:
    """What an event is, and what it says."""
    told = event.payload
    said = told.get("message") or f"{told.get('size')} of {told.get('of')} members begin"
    return str(told.get("level", event.kind)), masked(str(said))[:_MOST_TEXT]


def _setting(value: Any) -> str:
    text = masked(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " ..."


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}"


def _folded(title: str, content: str, rows: Sequence[Any]) -> str:
    return f"<details><summary>{title}</summary>{content}</details>" if rows else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numbers = [bool(rows) and all(_is_number(row[place]) for row in rows) for place, _ in enumerate(names)]
    head = "".join(_cell(name, "th", number=number) for name, number in zip(names, numbers, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any, tag: str = "td", *, number: bool = False) -> str:
    text = "" if value is None else _number(value) if _is_number(value) else str(value)
    kind = "number" if number or _is_number(value) else "long" if len(text) > _LONG else ""
    return f"<{tag}{f' class={kind}' if kind else ''}>{escape(text)}</{tag}>"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
