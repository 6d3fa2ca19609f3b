"""Events: values and spans that workers record, and the driver's listeners."""

from __future__ import annotations

import json
import logging
import numbers
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import Count, fits, within
from sparkdl.io.threads import OBSERVING, BackgroundQueue, warn
from sparkdl.net.protocol import MAX_FRAME, MAX_HELLO

_ATOMS = frozenset((str, int, float, bool, type(None)))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """A value or span that a worker recorded.

    Attributes:
        kind: type of the event, for example ``"span"``; receivers ignore unknown kinds.
        rank: the worker's rank in the gang.
        attempt: the gang's attempt, from 0.
        time: time of the event, in unix seconds of the worker's clock.
        clock: the worker's ``Clock`` as ``{"epoch", "step", "samples"}``, or None.
        payload: JSON values by name.
        host: the worker's host; empty if unknown.
        received: time of arrival, in unix seconds of the driver's clock; None before.
        recorder: id of the recorder; empty for the driver's own events.
        number: number among the recorder's events, from 1; 0 for an uncounted event.
    """

    kind: str
    rank: int
    attempt: int
    time: float
    clock: dict[str, int] | None
    payload: dict[str, Any]
    host: str = ""
    received: float | None = field(default=None, compare=False)
    recorder: str = field(default="", compare=False)
    number: int = field(default=0, compare=False)

    def to_json(self) -> str:
        """Encode the event as one line of ASCII JSON of at most 1 MiB; never raises.

        Non-finite floats are written as ``NaN`` and ``Infinity``, which Python's ``json`` reads. A value without a JSON
        form becomes ``{"unserialisable": its type}``. If the event is too large, its payload becomes
        ``{"truncated": bytes of the whole event}``.
        """
        try:
            text = _encode(vars(self))
        except Exception as error:  # a payload's objects may raise anything, but recording must not raise
            text = _encode(vars(replace(self, clock=None, payload=_complaint(error))))
        if len(text) <= MAX_FRAME:
            return text
        return _encode(vars(replace(self, kind=self.kind[:MAX_HELLO], payload={"truncated": len(text)})))

    @classmethod
    def from_json(cls, text: str | bytes) -> Event:
        """Decode the output of ``to_json``, ignoring unknown fields; raises InvalidInput if it is not an event."""
        try:
            fields = json.loads(text)
            values = {name: fields[name] for name in _TYPES}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidInput(f"expected an event as JSON, got {text[:80]!r}: {error!r}") from error
        for name, kind in _TYPES.items():
            if not fits(values[name], kind):
                raise InvalidInput(f"an event's {name} cannot be {values[name]!r:.80}")
        return cls(**values)


_Time = Annotated[float, within(0.0, 1e11)]  # seconds, also unix seconds: a clock that went wrong is beyond them
_Whole = Annotated[int, within(0, 1 << 63)]
_TYPES: dict[str, Any] = {"kind": str, "rank": Annotated[int, within(-1, 1 << 31)], "attempt": _Whole, "time": _Time}
_TYPES |= {"received": _Time | None, "clock": dict[str, _Whole] | None, "payload": dict, "host": str}
_TYPES |= {"recorder": str, "number": _Whole}
_UNITS: dict[str, Any] = dict.fromkeys(("member", "candidate", "round", "epoch"), _Whole | None)
_STEP = dict.fromkeys(("steps", "rows", "bytes"), _Whole) | dict.fromkeys(("start", "end"), _Time)
_FIELDS: dict[str, dict[str, Any]] = {
    "step": {**_STEP, "marks": list[Any], "seconds": dict[str, _Time]},
    "span": {"name": str, "start": _Time, "seconds": _Time, "thread": str | None},
    "progress": {"steps": Count, "epochs": Count, "rows_per_second": float | None},
    **{unit: _UNITS | {unit: _Whole} for unit in _UNITS},
    "members": {"count": _Whole},
    "attempt": {"size": _Whole},
    "begin": {"environment": dict},
    "end": {"error": str | None},
}


def readable(event: Event) -> bool:
    """Whether an event has its kind's fields: a user's event may have the same kind and other fields."""
    payload, clock, kinds = event.payload, event.clock, _FIELDS.get(event.kind, {})
    marks = payload.get("marks") if "marks" in kinds else []
    return (
        (clock is None or clock.keys() >= {"epoch", "step"})
        and all(type(value) is not int or abs(value) < 1 << 64 for value in payload.values())
        and all(fits(payload.get(name), kind) for name, kind in kinds.items())
        and all(fits(mark, list) and len(mark) == 2 and all(map(fits, mark, (str, _Time))) for mark in marks or ())
    )


def to_json_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Deep copy of ``payload`` in JSON's own types; never raises."""
    if all(type(value) in _ATOMS for value in payload.values()):
        return dict(payload)
    try:
        return dict(json.loads(_encode(payload)))
    except Exception as error:  # as in Event.to_json
        return _complaint(error)


def _substitute(value: object) -> object:
    if isinstance(value, numbers.Integral):  # includes NumPy's scalars
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return {"unserialisable": f"{type(value).__module__}.{type(value).__qualname__}"}


def _complaint(error: Exception) -> dict[str, Any]:
    return {"unserialisable": traceback.format_exception_only(error)[-1].strip()[:MAX_HELLO]}


_encode = json.JSONEncoder(separators=(",", ":"), default=_substitute).encode


@contextmanager
def observed(*listeners: Callable[[Event], None] | None) -> Iterator[Callable[[Event], None]]:
    """A function that passes events to listeners in a thread, so that they neither fail nor delay a run.

    The block's end waits for the listeners, but not longer than ``OBSERVING`` seconds.
    """
    calls = [SafeCallback(listener) for listener in listeners if listener is not None]

    def call(event: Event) -> None:
        for observer in calls:
            observer(event)

    events = BackgroundQueue(call, ", ".join(observer.name for observer in calls), limit=OBSERVING)
    try:
        yield events.put
    finally:
        events.close()


class SafeCallback:
    """Serializes calls of a function from many threads; logs its first exception and suppresses all."""

    def __init__(self, call: Callable[[Event], None]) -> None:
        self.name = f"the listener {getattr(call, '__qualname__', type(call).__name__)}"
        self._call = call
        self._lock = threading.RLock()
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Pass on one event."""
        with self._lock:
            try:
                self._call(event)
            except Exception as error:  # a faulty listener must not stop the channel or the training
                if not self._failed:
                    self._failed = True
                    warn(f"{self.name} raised at an event {event.kind!r}; its later errors are not logged", error)
