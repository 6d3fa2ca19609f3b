"""How many rows go through a model at a time: as many as measurement says, within memory.

Small pieces pay the cost of calling the model again and again, large ones leave the processor's caches. Where the best
lies between depends on the model and the machine, so it is looked for while rows are scored: sizes are powers of two,
and the search climbs or descends from one to the next as long as that gives more rows/s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

_TRIALS = 3  # pieces of a size before it is judged, by the best: whatever disturbs a measurement makes it slower
_GAIN = 1.03  # a larger size must be at least so much faster: of equals, the smaller one needs less memory
_NEAR = 2**0.5  # a piece counts for the size next to it
_AGAIN = 256  # pieces after which the sizes next to the best are tried again, since machines change


class Pace:
    """The size of the pieces that rows go through a model in.

    Args:
        first: rows of the first pieces.
        least: the fewest rows that are tried.
        most: the most rows that are tried.
        clock: seconds from some point on, increasing.

    Attributes:
        rows: the size that is used now.
        most: the most rows that are used.
    """

    def __init__(
        self, *, first: int = 512, least: int = 16, most: int = 1 << 16, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.rows = first
        self._least = least
        self.limit(most)
        self._clock = clock
        self._rates: dict[int, float] = {}  # rows/s of the sizes that have been judged
        self._trials: list[float] = []  # rows/s of pieces of the present size
        self._since = 0  # pieces since the search came to its end

    def limit(self, most: int) -> None:
        """Use at most ``most`` rows from now on; at least one."""
        self.most = max(1, most)
        self.rows = min(self.rows, self.most)

    def pieces(self, rows: int) -> Iterator[slice]:
        """Cut ``rows`` rows; the time between one piece and the next is what the piece took.

        Pieces of one batch are as equal as they can be, so that none is a small remainder.
        """
        first = 0
        while first < rows:
            left = rows - first
            count = max(round(left / self.rows), -(-left // self.most), 1)
            size = -(-left // count)
            start = self._clock()
            yield slice(first, first + size)
            self.note(size, self._clock() - start, batch=rows)
            first += size

    def note(self, rows: int, seconds: float, *, batch: int) -> None:
        """Take down what a piece of ``rows`` rows took, of a batch of ``batch`` rows."""
        if not self.rows * _NEAR >= rows >= self.rows / _NEAR or seconds <= 0:
            return  # nearer to another size than to the one that is to be judged, or beyond what the clock can tell
        if self._since:
            self._since -= 1
            if not self._since:
                self._rates = {}
            return
        self._trials.append(rows / seconds)
        if len(self._trials) == _TRIALS:
            self._rates[self.rows] = max(self._trials)
            self._trials = []
            self._step(batch)

    def _step(self, batch: int) -> None:
        """To a size next to the best one that has not been judged, else to the best, for a while."""
        best = self._best()
        larger = 2 * best <= min(self.most, batch * _NEAR) and 2 * best not in self._rates
        smaller = best // 2 >= self._least and best // 2 not in self._rates
        if larger or smaller:
            self.rows = 2 * best if larger else best // 2
        else:
            self.rows, self._since = best, _AGAIN

    def _best(self) -> int:
        best, *others = sorted(self._rates)
        for size in others:
            if self._rates[size] > self._rates[best] * _GAIN:
                best = size
        return best
