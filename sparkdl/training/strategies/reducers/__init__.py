"""How a bucket of gradients is summed over the workers.

A reducer is a frozen dataclass whose fields are its hyperparameters. ``open`` creates its ``Reduction``, which holds
the state and sums buckets. Each reducer is one self-contained file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput
from sparkdl.training.cost.traffic import Hosts, Traffic, one_per_host
from sparkdl.training.strategies.buckets import Bucket


class PendingReduce(Protocol):
    """A pending reduction of a bucket."""

    def wait(self) -> Any:
        """Wait until the bucket's buffer holds the sum; every worker waits in the order of the starts.

        A reducer may start further collectives here, also those of other buckets.
        """


class Reduction(Protocol):
    """An open reducer; a checkpoint includes its state."""

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends to the others to sum all buckets once, without the transport's headers.

        If they change over time, as after uncompressed first steps: of the step that started last.
        """

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start to sum a bucket's buffer in place; every worker starts the same buckets in the same order."""

    def state_dict(self) -> dict[str, Any]:
        """State that persists between steps, such as residuals; default: none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        return


class Reducer(Protocol):
    """How buckets are summed: a frozen dataclass."""

    @abstractmethod
    def open(self, buckets: Sequence[Bucket], group: Group) -> Reduction:
        """Open the reducer for these buckets."""

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """The exchanges of one sum of ``bucket``, from its shapes and dtype alone: it may be on the device ``meta``.

        The first one starts when the bucket is full, during the backward pass, and the others after it.

        Args:
            bucket: the bucket.
            hosts: the host of each worker, in rank order.

        Raises:
            InvalidInput: the reducer does not say; this is the default.
        """
        raise InvalidInput(f"{self} has no cost model; expected a reducer with the method traffic.")


def sent_bytes(reducer: Reducer, buckets: Sequence[Bucket], workers: int) -> int:
    """Bytes that a worker sends to sum all buckets once."""
    return round(sum(one.bytes for bucket in buckets for one in traffic_of(reducer, bucket, one_per_host(workers))))


def traffic_of(reducer: Reducer, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
    """The exchanges of one sum; raises InvalidInput if the reducer has no cost model."""
    return getattr(reducer, "traffic", partial(Reducer.traffic, reducer))(bucket, hosts)
