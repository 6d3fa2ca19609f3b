"""How a model gets to the Python workers: broadcast, once to an executor however many tasks and queries use it."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark import Broadcast
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkdl.ml.inference.model_cache import SHELF
from sparkdl.ml.inference.scorer import Scorer
from sparkdl.spark.python_worker import spare_imports


@dataclass(frozen=True)
class Shipped:
    """A scorer as a query carries it: all of it but the model, and where the model is.

    Attributes:
        scorer: without factory and weights.
        digest: tells models apart.
        size: bytes of factory and weights.
        packed: factory and weights, pickled; themselves or broadcast.
    """

    scorer: Scorer
    digest: str
    size: int
    packed: Broadcast[bytes] | bytes

    def scores(self, batches: Iterable[tuple[pa.Array, ...] | pa.Array]) -> Iterator[pa.Array]:
        """``Scorer.scores``, in a Python worker; the model is fetched only if the worker does not hold it."""
        spare_imports()
        return self.scorer.scores(batches, SHELF.get(self.digest, self.size, lambda: self._unpacked().module()))

    def _unpacked(self) -> Scorer:
        packed = self.packed.value if isinstance(self.packed, Broadcast) else self.packed
        factory, weights = cloudpickle.loads(packed)
        return replace(self.scorer, factory=factory, weights=weights)


class Shipment:
    """What a model has broadcast; its copies share it.

    Spark frees a broadcast, on the executors and on the driver, once neither a model nor a query refers to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # CrossValidator evaluates in threads
        self._packed: bytes | None = None
        self._digest = ""
        self._broadcast: Broadcast[bytes] | None = None
        self._context: Any = None

    def ship(self, scorer: Scorer, session: SparkSession) -> Shipped:
        """Make a scorer ready to travel.

        Args:
            scorer: the factory and weights must be the same in every call.
            session: the session of the data; on Spark Connect, which has no broadcasts, the model travels in the
                query, and a warning says so.
        """
        rest = replace(scorer, factory=_elsewhere, weights=b"")
        with self._lock:
            if self._packed is None:
                self._packed = cloudpickle.dumps((scorer.factory, scorer.weights))
                self._digest = hashlib.sha256(self._packed).hexdigest()
            return Shipped(rest, self._digest, len(self._packed), self._sent(self._packed, session))

    def _sent(self, packed: bytes, session: SparkSession) -> Broadcast[bytes] | bytes:
        try:
            context = session.sparkContext
        except (AttributeError, PySparkException):
            warnings.warn(
                f"this Spark session has no SparkContext to broadcast with: the model, {len(packed)} bytes, is sent "
                "with every task that uses it.",
                stacklevel=2,
            )
            return packed
        if self._broadcast is None or self._context is not context:  # an application that has ended took its own along
            self._broadcast, self._context = context.broadcast(packed), context
        return self._broadcast

    def __reduce__(self) -> Any:
        """A model that is pickled takes no broadcast along: it belongs to this application."""
        return Shipment, ()


def _elsewhere() -> Any:
    raise RuntimeError("this scorer has no model; expected the one that was shipped beside it")
