"""Compressed sums in two exchanges, after uncompressed first steps: the frame of ``PowerSGD`` and ``OneBit``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.training.strategies.buckets import Bucket, views
from sparkdl.training.strategies.reducers import PendingReduce, Reducer, Reduction, sent_bytes
from sparkdl.training.strategies.reducers.exact import ring_bytes
from sparkdl.training.strategies.reducers.pending import FinishedReduce, OneExchange, TwoExchanges
from sparkdl.training.strategies.reducers.residuals import load_tensors


class TwoPhases(ABC):
    """The compressed sum of one bucket.

    Attributes:
        saved: name in a checkpoint -> attribute with a tensor that persists between steps.
        steps: number of sums so far, uncompressed ones included.
        exact: the gradients that travel uncompressed, and the counts of workers, flat.
        uncompressed: the buffer in which they travel.
        residual: of the gradients that shrink, flat; empty without any.
    """

    saved: ClassVar[Mapping[str, str]]
    uncompressed: Tensor
    residual: Tensor

    def __init__(self, warmup: int, exact: list[Tensor]) -> None:
        self._warmup, self.steps, self.exact = warmup, 0, exact

    @property
    def compresses(self) -> bool:
        """Whether the last sum, at first the next, compresses: after the warm-up, if a gradient shrinks."""
        return max(self.steps, 1) > self._warmup and len(self.residual) > 0

    @abstractmethod
    def begin(self, group: Group) -> Any:
        """Encode the gradients and start the first exchange; return its pending work."""

    @abstractmethod
    def proceed(self, group: Group) -> Sequence[Any]:
        """After the first exchange, start the second; return all pending work."""

    def finish(self) -> None:
        """After the second exchange, write the sums into the bucket; by default, the uncompressed gradients alone."""
        for exact, total in zip(self.exact, views(self.uncompressed, [one.shape for one in self.exact]), strict=True):
            exact.copy_(total)


class TwoPhaseReduction(Reduction):
    """Sums each bucket by its ``TwoPhases``, in the order of the buckets; ``kind`` is their class."""

    def __init__(
        self,
        reducer: Reducer,
        buckets: Sequence[Bucket],
        group: Group,
        kind: type[TwoPhases],
        phases: Sequence[TwoPhases],
    ) -> None:
        self._reducer, self._group, self._kind = reducer, group, kind
        self._phases = {bucket.index: one for bucket, one in zip(buckets, phases, strict=True)}
        self._started: deque[TwoExchanges] = deque()
        # Of each bucket, by whether the step compresses.
        self._bytes = {
            bucket.index: (ring_bytes(bucket.buffer.nbytes, group.size), sent_bytes(reducer, [bucket], group.size))
            for bucket in buckets
        }

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends in the step that started last; before the first step, in the first."""
        return sum(self._bytes[index][phases.compresses] for index, phases in self._phases.items())

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start to sum the bucket, in the first steps uncompressed."""
        if self._group.size == 1:
            return FinishedReduce()
        phases = self._phases[bucket.index]
        phases.steps += 1
        if not phases.compresses:
            return OneExchange([self._group.sum_(bucket.buffer, wait=False)])
        first = phases.begin(self._group)

        def proceed() -> PendingReduce:
            first.wait()
            return OneExchange(phases.proceed(self._group), phases.finish)

        return TwoExchanges(self._started, proceed)

    def state_dict(self) -> dict[str, Any]:
        """The saved tensors and the numbers of steps, by bucket."""
        return self._tensors() | {"steps": [phases.steps for phases in self._phases.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved tensors and the numbers of steps."""
        load_tensors(self._reducer, self._tensors(), state)
        for phases, steps in zip(self._phases.values(), state["steps"], strict=True):
            phases.steps = steps

    def _tensors(self) -> dict[str, Any]:
        return {
            name: [getattr(phases, attribute) for phases in self._phases.values()]
            for name, attribute in self._kind.saved.items()
        }
