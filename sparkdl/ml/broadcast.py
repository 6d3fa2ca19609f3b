"""Sends models to Python workers by a broadcast, once per executor for all its tasks and queries."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa
import torch
from pyspark import TaskContext
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.cluster.group.devices import task_device
from sparkdl.errors import InvalidInput
from sparkdl.io.files import local_path
from sparkdl.io.redaction import public
from sparkdl.io.weights_file import WeightsFile, copy_to
from sparkdl.serving.model_cache import MODEL_CACHE, CachedModel
from sparkdl.serving.scorer import Scorer
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.spark.session import SharedBytes, session_of, shared
from sparkdl.spark.slots.task_resources import assigned_gpus, turn_of


@dataclass(frozen=True)
class BroadcastScorer:
    """A scorer without factory and weights, and their pickle or its broadcast, with its hash and its bytes."""

    scorer: Scorer
    digest: str
    size: int
    packed: SharedBytes

    def scores(self, batches: Iterable[tuple[pa.Array, ...] | pa.Array]) -> Iterator[pa.Array]:
        """Run ``Scorer.scores`` in a Python worker, and load the model unless the worker holds it.

        At the end, also an early one or an error, the worker returns the GPU's unused memory.
        """
        freeze_imports()
        context = TaskContext.get()
        if context is not None:
            torch.set_num_threads(context.cpus())
        device = _device(self.scorer)
        try:
            loaded = MODEL_CACHE.get(f"{self.digest} on {device}", self.size, partial(self._loaded, device))
            yield from self.scorer.scores(batches, loaded)
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()  # the worker keeps the model, and other processes may need the rest

    def _loaded(self, device: torch.device) -> CachedModel:
        copy_to(local_directory(0))  # for all workers of the executor
        factory, weights = cloudpickle.loads(shared(self.packed))
        module = replace(self.scorer, factory=factory, weights=weights).module()
        return CachedModel.on(device, module, self.scorer.precision)


@dataclass(frozen=True)
class MappedFactory:
    """Makes the module of a scorer in tasks, which map the rows of tables from one copy of an executor."""

    scorer: Scorer

    def __call__(self) -> nn.Module:
        """The module."""
        copy_to(local_directory(0))
        return self.scorer.module()


def _device(scorer: Scorer) -> torch.device:
    context = TaskContext.get()  # in a Python worker, also of a user's own UDF
    return task_device(scorer.device, assigned_gpus(context), turn=turn_of(context))


class ModelBroadcast:
    """The broadcast of a model, shared by the model's copies.

    Spark frees a broadcast on executors and driver once no model and no query refers to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # CrossValidator evaluates in threads
        self._packed: bytes | None = None
        self._digest = ""
        self._broadcast: SharedBytes | None = None
        self._application = ""
        self._local: CachedModel | None = None

    def local(self, scorer: Scorer) -> CachedModel:
        """The model in this process; the first call for the scorer's device makes it. Scorers as for ``ship``."""
        with self._lock:
            if self._local is None or self._local.device.type != scorer.device:
                self._local = CachedModel.on(_device(scorer), scorer.module(), scorer.precision)
            return self._local

    def ship(self, scorer: Scorer, session: SparkSession) -> BroadcastScorer:
        """Prepare a scorer for a query; every call must have the same factory and weights."""
        without_model = replace(scorer, factory=nn.Module, weights=b"")
        with self._lock:
            if self._packed is None:
                weights, kind = scorer.weights, session_of(session)
                seen = kind.query_limit() is not None or kind.master().startswith("local")  # bytes would not fit
                if isinstance(weights, WeightsFile) and local_path(weights.uri) is not None and not seen:
                    if weights.tables:
                        raise InvalidInput(
                            f"the model's tables are in {public(weights.uri)}'s folder, on this host's disk; expected "
                            "a directory that executors read, such as hdfs:// or s3://. Save the model there, and load "
                            "it."
                        )
                    weights = weights.read()
                self._packed = cloudpickle.dumps((scorer.factory, weights))
                self._digest = hashlib.sha256(self._packed).hexdigest()
            packed = self._broadcast_or_bytes(self._packed, session)
            size = scorer.weights.size if isinstance(scorer.weights, WeightsFile) else len(self._packed)
            return BroadcastScorer(without_model, self._digest, size, packed)

    def _broadcast_or_bytes(self, packed: bytes, session: SparkSession) -> SharedBytes:
        application = session_of(session).application()
        if self._broadcast is None or self._application != application:  # the end of one ends its broadcasts
            self._broadcast, self._application = session_of(session).share(packed), application
        return self._broadcast

    def __reduce__(self) -> Any:
        """Pickle the model without its broadcast, which belongs to this application."""
        return ModelBroadcast, ()
