"""One parameter shard: rows of the weights, their optimizer, and the clocks of all workers. No network.

A worker pushes the gradients of its clock ``c`` and pulls the weights for its next step. With ``N`` workers and ``p_i``
the share of worker ``i`` in the rows of the global batch:

* ``staleness=0``: the shard adds ``p_i g_i`` of a clock in rank order, then takes one optimizer step. A pull at clock
  ``c`` waits for the step of ``c``. This is bulk synchronous (BSP).
* ``backup=b``: the first ``N - b`` pushes ``S`` of a clock make the step on ``sum_S p_i g_i / sum_S p_i``; later ones
  are dropped (J. Chen et al., Revisiting distributed synchronous SGD, 2016, arXiv:1604.00981). A push has the clock
  after the one of the worker's last pull, the lowest of all shards, not the worker's number of steps: a worker that
  was late once would stay behind for good.
* ``staleness=s``: each push is a step. A pull at clock ``c`` waits until every worker has pushed ``c - s``: stale
  synchronous (Q. Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS
  2013). With ``math.inf`` nobody waits: asynchronous (J. Dean et al., Large scale distributed deep networks, NIPS
  2012).

Rows of tables (``sparkdl.training.layouts.table_rows``) that lie beside the shard take their step with it: a push has
their gradients, which follow the same rules.

Nobody waits for a worker that has settled. Once all have settled, all get the same weights, clocks begin again at 0,
and the shard takes no push until its owner opens it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparkdl.errors import PeerLost
from sparkdl.training.layouts.table_rows import RowSums, TableRows
from sparkdl.training.strategies.parameter_server.placement import Portion


@dataclass(frozen=True)
class RowPush:
    """Gradients of rows: a message of ``TableRows.dealt``, its numbers, and the factor of the tables' rates."""

    ids: Tensor
    numbers: Tensor
    factor: float


@dataclass(frozen=True)
class Push:
    """What worker ``rank`` says of its gradients, which are multiplied by the ``share`` of its rows.

    ``unused`` tensors have no gradient. ``options`` are of the optimizer's groups; empty leaves them as they are.
    ``rows`` are the gradients of the shard's rows of tables, if there are tables.
    """

    rank: int
    clock: int
    share: float = 1.0
    unused: Collection[int] = ()
    options: Sequence[Mapping[str, Any]] = ()
    rows: RowPush | None = None


class ParameterShard:
    """The weights of one portion, for ``workers``; any thread may call any method.

    Args:
        portion: the rows.
        optimizer: makes the optimizer of the rows, one parameter for each tensor.
        timeout: seconds that a call waits while no worker does anything.
        source: returns the weights before each step, since callbacks may change them; default: they are here.
        held: whether the sums of a clock wait for a call of ``step()``.
        opened: whether pushes are taken before the first ``open()``.
        tables: whose rows are beside the shard.

    Attributes:
        parameters: the rows of each tensor, which the optimizer has.
        clock: steps since all settled, with staleness 0.
        distances: number of pulls by their distance, the clocks by which a worker was ahead of the slowest.
        dropped: number of pushes that came too late.
    """

    def __init__(
        self,
        portion: Portion,
        optimizer: Callable[[Sequence[nn.Parameter]], Optimizer],
        workers: int,
        *,
        staleness: float = 0,
        backup: int = 0,
        timeout: float = 600.0,
        source: Callable[[], Sequence[Tensor]] = tuple,
        held: bool = False,
        opened: bool = True,
        tables: TableRows | None = None,
    ) -> None:
        self.portion, self.tables = portion, tables
        self._row_sums: dict[str, RowSums] = {}  # of the next step
        self._buffer = portion.allocate()
        self.parameters = [nn.Parameter(view) for view in portion.views(self._buffer)]
        self.optimizer = optimizer(self.parameters)
        self.clock, self.dropped, self.distances = 0, 0, Counter[int]()
        self._workers, self._staleness, self._backup, self._timeout = workers, staleness, backup, timeout
        self._source, self._held, self._opened, self._summed = source, held, opened, False
        self._pushed = [0] * workers  # clocks with staleness
        self._waiting: dict[int, tuple[Push, Sequence[Tensor]]] = {}  # pushes of the next clock, by rank
        self._settled: set[int] = set()
        self._snapshot, self._snapshots = self._buffer, 0  # the weights when all had settled, and how often they had
        self._turn = threading.Condition()
        self._calls = 0  # of workers; while their number grows, nobody is lost
        self._trouble: Exception | None = None

    def push(self, push: Push, gradients: Sequence[Tensor]) -> None:
        """Take gradients, which must not change before the worker's next pull has returned.

        Raises PeerLost if a worker was lost; every method raises it.
        """
        with self._turn:
            self._calls += 1
            self._wait(lambda: self._opened)
            if self._staleness:
                self._pushed[push.rank] = push.clock
                self._waiting[push.rank] = push, gradients
                self._sum()
                self.step()
            elif push.clock <= self.clock:
                self.dropped += 1
            else:
                self._waiting[push.rank] = push, gradients
                self._complete()
            self._turn.notify_all()

    def pull(self, clock: int) -> tuple[int, Tensor]:
        """The shard's clock and its weights, as a buffer of the portion, for a worker that has pushed ``clock``."""
        with self._turn:
            if not self._staleness:
                self._wait(lambda: self.clock >= clock)
                return self.clock, self._buffer.clone() if self._backup else self._buffer
            self._wait(lambda: self._slowest(clock) >= clock - self._staleness)
            self.distances[clock - self._slowest(clock)] += 1
            return clock, self._buffer.clone()

    def look_up(self, table: str, ids: Tensor) -> Tensor:
        """Rows ``[ids, d]`` of a table beside the shard."""
        with self._turn:
            self._wait(lambda: True)
            assert self.tables is not None
            return self.tables.rows(table, ids)

    def settle(self, rank: int) -> tuple[int, Tensor]:
        """Wait until all workers have settled; the clock 0, and weights that are the same for all."""
        with self._turn:
            number = self._snapshots
            self._calls += 1
            self._settled.add(rank)
            self._complete()
            if len(self._settled) == self._workers:
                self.clock, self._pushed, self._snapshots = 0, [0] * self._workers, number + 1
                self._settled, self._opened, self._snapshot = set(), False, self._buffer.clone()
            self._turn.notify_all()
            self._wait(lambda: self._snapshots > number)
            return 0, self._snapshot

    def open(self, weights: Sequence[Tensor]) -> None:
        """Begin with these rows of each tensor, and take pushes."""
        with self._turn:
            self._fill(weights)
            self._opened, self._calls = True, self._calls + 1
            self._turn.notify_all()

    def gradients(self) -> list[Tensor]:
        """Of a held shard: the sums of a clock, once they are complete; the optimizer steps on them."""
        with self._turn:
            self._wait(lambda: self._summed)
            rows = [one.gradients for one in self._row_sums.values()]
            return [*(one.grad for one in self.parameters if one.grad is not None), *rows]

    def step(self) -> None:
        """Take a step on the sums."""
        with self._turn:
            try:
                self._fill(self._source())
                push = next(iter(self._waiting.values()))[0]
                for group, options in zip(self.optimizer.param_groups, push.options, strict=bool(push.options)):
                    group.update({name: tuple(one) if isinstance(one, list) else one for name, one in options.items()})
                self.optimizer.step()
                if self.tables is not None and push.rows is not None:
                    self.tables.take_step(self._row_sums, push.rows.factor)
            except Exception as error:
                self.fail(error)
                raise
            for parameter in self.parameters:
                parameter.grad = None
            self._waiting, self._row_sums, self._summed, self.clock = {}, {}, False, self.clock + 1
            self._turn.notify_all()

    def fail(self, error: Exception) -> None:
        """Let all calls that wait, and all later ones, raise an error; the first one counts."""
        with self._turn:
            self._trouble = self._trouble or error
            self._turn.notify_all()

    def first_cause(self, lost: PeerLost) -> Exception:
        """The error that this worker raises after it has lost another one: an error of this shard may be the reason."""
        with self._turn:
            return lost if self._trouble is None or isinstance(self._trouble, PeerLost) else self._trouble

    def _wait(self, ready: Callable[[], bool]) -> None:
        calls = -1
        while self._trouble is None and not ready():
            if calls == self._calls:
                raise PeerLost(f"no other worker pushed within {self._timeout:g} s.")
            calls = self._calls
            self._turn.wait_for(lambda: self._trouble is not None or ready(), self._timeout)
        if self._trouble is not None:
            raise self._trouble

    def _slowest(self, clock: int) -> int:
        """The lowest clock of the workers that have not settled, and of a worker at ``clock``."""
        return min([clock, *(one for rank, one in enumerate(self._pushed) if rank not in self._settled)])

    def _complete(self) -> None:
        able = {*range(self._workers)} - self._settled | self._waiting.keys()
        if self._waiting and len(self._waiting) >= min(self._workers - self._backup, len(able)) and not self._summed:
            self._sum()
            self._summed = True
            if not self._held:
                self.step()

    @torch.no_grad()
    def _sum(self) -> None:
        """Set gradients to the sums of the waiting pushes, in rank order; a tensor that nobody used has none."""
        self._waiting = dict(sorted(self._waiting.items()))
        share = sum(push.share for push, _ in self._waiting.values()) if self._backup else 1.0
        for index, parameter in enumerate(self.parameters):
            terms = [gradients[index] for push, gradients in self._waiting.values() if index not in push.unused]
            if not terms or not share:
                continue
            for term in terms[1:]:
                terms[0].add_(term)
            parameter.grad = terms[0] if share == 1 else terms[0].div_(share)
        if self.tables is not None:
            rows = [push.rows for push, _ in self._waiting.values() if push.rows is not None]
            messages = [one.ids for one in rows], [one.numbers for one in rows]
            # With backup, shards drop other pushes than each other: all step on all tables.
            self._row_sums = self.tables.received(*messages, unused=self._backup > 0)
            for one in self._row_sums.values():
                one.gradients.div_(share or 1.0)

    @torch.no_grad()
    def _fill(self, weights: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, weights, strict=bool(weights)):
            parameter.copy_(value)
