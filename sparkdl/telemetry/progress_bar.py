"""Live progress line on the driver: a view of the events."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from threading import RLock
from typing import Any, TextIO

from tqdm.auto import tqdm

from sparkdl.telemetry.event import Event

# Fields of a history row that are no metrics.
_ASIDE = frozenset(("epoch", "step", "samples", "loss", "seconds", "rows_per_second"))


class Bar(tqdm):  # type: ignore[type-arg]
    """A bar with a lock of its own: after a stream's error, tqdm keeps the lock that all bars of the process share."""

    monitor_interval = 0  # its thread would wait for the lock

    def __del__(self) -> None:
        """Leave the bar as it is: ``close`` would wait for a lock that the thread of a failed stream keeps."""


class Progress:
    """A listener that shows a progress bar: epoch, step, loss, metrics, rows/s and time left, or round and its metrics.

    The bar also shows the number of workers alive and, after a failure, the attempt. Outside the bar, lines report the
    wait for resources, the tasks of a gang without workers' events, a changed number of workers, and a restart's cause.
    In a log, which keeps every line, the seconds of a wait have one digit. ``stream`` defaults to standard error.
    """

    def __init__(self, title: str = "fit", stream: TextIO | None = None) -> None:
        self._title, self._stream = title, stream or sys.stderr
        Bar.set_lock(RLock())
        self._bar: Any = None
        self._unit = ""  # the bar's unit: an ensemble's members have epochs of their own, which the bar does not show
        self._line = ""  # shown until the bar opens
        self._alive: set[int] = set()
        self._validated: dict[str, str] = {}  # the last epoch's metrics, shown until the next epoch ends

    def __call__(self, event: Event) -> None:
        """Show an event; irrelevant kinds are ignored."""
        payload = event.payload
        if event.kind == "started":
            self._alive.add(event.rank)
        elif event.kind in ("finished", "failed"):
            self._alive.discard(event.rank)
        elif event.kind == "progress" and event.clock is not None and event.rank == 0 and self._unit in ("", "step"):
            self._epochs = payload["epochs"]
            self._open("step", payload["steps"] * payload["epochs"])
            self._show(event, event.clock)
        elif event.kind == "epoch" and event.clock is not None and self._unit == "step":
            self._validated = {name: _number(value) for name, value in payload.items() if name not in _ASIDE}
            self._show(event, event.clock)
        elif event.kind == "round":
            self._open("round", payload["rounds"])
            metrics = {name: value for name, value in payload.items() if isinstance(value, float) and name != "seconds"}
            self._move(payload["round"], {name: f"{value:.4g}" for name, value in metrics.items()})
        elif event.kind == "members":
            self._open("member", 0)
            self._bar.total += payload["count"]
            self._bar.refresh()
        elif event.kind == "trials":
            self._open("trial", payload["of"])
        elif event.kind == "trial" and self._unit == "trial":
            self._move(payload["ended"], payload["progress"])
        elif event.kind == "member" and self._unit == "member":
            self._bar.update(1)
            self._bar.refresh()
        elif event.kind == "waiting" and self._bar is None:
            seconds = payload["seconds"] if self._stream.isatty() else float(f"{payload['seconds']:.1g}")
            self._rewrite(f"waiting for {payload['what']}, {seconds:.0f} s")
        elif event.kind == "tasks" and self._bar is None:
            self._rewrite(f"{payload['ended']} of {payload['of']} tasks have ended, {payload['running']} running")
        elif event.kind == "restart":
            self._alive.clear()
            when = f"in {payload['seconds']:g} s" if payload["seconds"] else "now"
            self._write_line(f"{payload['cause']}; restart {when}")
        elif event.kind == "end":
            self.close()
        elif event.kind == "resized":
            self._write_line(f"{payload['size']} of {payload['of']} workers start")

    def close(self) -> None:
        """Finish the line and leave it on the screen."""
        if self._line:
            self._write("\n")
            self._line = ""
        if self._bar is not None:
            self._bar.close()
            self._bar, self._unit = None, ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _rewrite(self, text: str) -> None:
        before, self._line = self._line, text
        if text != before:
            self._write(f"\r{self._title}: {text.ljust(len(before))}")

    def _write_line(self, text: str) -> None:
        self.close()  # the next attempt waits for slots and opens a new bar
        self._write(f"{self._title}: {text}\n")

    def _open(self, unit: str, total: int | None) -> None:
        if self._bar is None:
            self.close()
            self._unit = unit
            self._bar = Bar(total=total, desc=self._title, unit=unit, file=self._stream, dynamic_ncols=True)

    def _move(self, count: int, figures: Mapping[str, str]) -> None:
        self._bar.set_postfix(figures, refresh=False)
        self._bar.update(count - self._bar.n)
        self._bar.refresh()

    def _show(self, event: Event, clock: Mapping[str, int]) -> None:
        epoch, payload = min(clock["epoch"] + 1, self._epochs), event.payload
        attempt = f", attempt {event.attempt + 1}" if event.attempt else ""
        self._bar.set_description(f"{self._title}{attempt}: epoch {epoch}/{self._epochs}", refresh=False)
        figures = {"loss": _number(payload.get("loss")), **self._validated}
        figures |= {name: _number(value) for name, value in payload.items() if name.startswith("valid_")}
        figures["rows/s"] = f"{payload.get('rows_per_second') or 0:,.0f}"
        if self._alive:
            figures["workers"] = str(len(self._alive))
        self._move(clock["step"], figures)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else "-"
