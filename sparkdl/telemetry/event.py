"""Events: values and spans that happened on a worker, and the driver's listeners to them."""

from __future__ import annotations

import json
import logging
import numbers
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.protocol import MAX_FRAME, MAX_HELLO

__all__ = ["Event", "Listener", "plain"]

_ATOMS = frozenset((str, int, float, bool, type(None)))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """A value or a span that happened on a member.

    Attributes:
        kind: what it is, for example ``"span"``; receivers pass over the kinds they do not know.
        rank: the member's rank in the gang.
        attempt: the attempt the gang is in, from 0.
        time: when, in unix seconds of the member's own wall clock.
        clock: the member's ``Clock`` as ``{"epoch", "step", "samples"}``, or None.
        payload: JSON values by name.
        host: the member's host; empty where that is not known.
        received: when the driver heard of it, in unix seconds of the driver's clock; None before that.
        recorder: the id of the recorder that took it; empty for an event of the driver itself.
        number: its number among the events of that recorder, from 1; 0 for an event that is not counted.
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
        """Write the event as one line of ASCII JSON of at most 1 MiB; never raises.

        Floats that are not finite are written as ``NaN`` and ``Infinity``, as Python's ``json`` reads them. A value
        that JSON has no form for becomes ``{"unserialisable": its type}``. The payload of an event that is too
        large becomes ``{"truncated": bytes of the whole event}``.
        """
        try:
            text = _encode(vars(self))
        except Exception as error:  # whatever a payload's own objects raise, recording must not
            text = _encode(vars(replace(self, clock=None, payload=_complaint(error))))
        if len(text) <= MAX_FRAME:
            return text
        return _encode(vars(replace(self, kind=self.kind[:MAX_HELLO], payload={"truncated": len(text)})))

    @classmethod
    def from_json(cls, text: str | bytes) -> Event:
        """Read what ``to_json`` wrote; fields of a later version are passed over.

        Raises:
            InvalidInput: it is not an event.
        """
        try:
            found = json.loads(text)
            event = cls(
                **{name: found[name] for name in _TYPES}, **{name: found[name] for name in _LATER if name in found}
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidInput(f"expected an event as JSON, got {text[:80]!r}: {error!r}") from error
        for name, types in {**_TYPES, **_LATER}.items():
            if not isinstance(getattr(event, name), types):
                raise InvalidInput(f"an event's {name} cannot be {getattr(event, name)!r:.80}")
        return event


_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "rank": (int,),
    "attempt": (int,),
    "time": (int, float),
    "clock": (dict, type(None)),
    "payload": (dict,),
}
_LATER: dict[str, tuple[type, ...]] = {
    "host": (str,),
    "received": (int, float, type(None)),
    "recorder": (str,),
    "number": (int,),
}
"""Fields that events of earlier versions do not have."""


def plain(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Copy ``payload`` into JSON's own types, out of the reach of later changes to the original; never raises."""
    if all(type(value) in _ATOMS for value in payload.values()):
        return dict(payload)
    try:
        copy: dict[str, Any] = json.loads(_encode(payload))
        return copy
    except Exception as error:  # as in Event.to_json
        return _complaint(error)


def _substitute(value: object) -> object:
    if isinstance(value, numbers.Integral):  # NumPy's scalars among them
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return {"unserialisable": f"{type(value).__module__}.{type(value).__qualname__}"}


def _complaint(error: Exception) -> dict[str, Any]:
    return {"unserialisable": traceback.format_exception_only(error)[-1].strip()[:MAX_HELLO]}


_encode = json.JSONEncoder(separators=(",", ":"), default=_substitute).encode


class Listener:
    """Calls a function from many threads, one call at a time; logs the first exception and survives them all."""

    def __init__(self, call: Callable[[Event], None]) -> None:
        self._call = call
        self._lock = threading.RLock()
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Hand over one event."""
        with self._lock:
            try:
                self._call(event)
            except Exception:  # the listener's own fault must cost neither the channel nor the training
                if not self._failed:
                    logger.exception("the listener raised at an event %r; its later errors are not logged", event.kind)
                self._failed = True
