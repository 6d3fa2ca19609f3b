"""Pending reductions of one or two exchanges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.training.strategies.reducers import PendingReduce


@dataclass(frozen=True)
class FinishedReduce(PendingReduce):
    """A reduction in a group of one: the buffer already holds the sum."""

    def wait(self) -> None:
        """Return at once."""


@dataclass(frozen=True)
class OneExchange(PendingReduce):
    """Exchanges that all start at once.

    Attributes:
        exchanges: pending work of the group.
        finish: writes the sum into the buffer afterwards; None if the exchanges do.
    """

    exchanges: Sequence[Any]
    finish: Callable[[], object] | None = None

    def wait(self) -> None:
        """Wait for the exchanges and write the sum."""
        for exchange in self.exchanges:
            exchange.wait()
        if self.finish is not None:
            self.finish()


@dataclass
class TwoExchanges(PendingReduce):
    """An exchange, computation, and a second exchange.

    Workers finish their first exchanges at different times, and the backend matches collectives by their order.
    Therefore no callback starts a second exchange: the first ``wait`` starts those of all buckets, in bucket order.

    Attributes:
        started: reductions whose second exchange has not started; all buckets of a reducer share the queue.
        proceed: waits for the first exchange, starts the second, and returns the rest of the reduction.
    """

    started: deque[TwoExchanges]
    proceed: Callable[[], PendingReduce]
    _rest: PendingReduce = field(default_factory=FinishedReduce)

    def __post_init__(self) -> None:
        self.started.append(self)

    def wait(self) -> None:
        """Start the second exchange of every bucket, then wait for this bucket's and write the sum."""
        while self.started:
            bucket = self.started.popleft()
            bucket._rest = bucket.proceed()
        self._rest.wait()
