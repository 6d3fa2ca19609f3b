"""The models that a Python worker holds across tasks, so that a task need not load them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparkdl.serving.batch_size import BUDGET, GPU_BUDGET
from sparkdl.training.layouts.arithmetic import autocast
from sparkdl.training.layouts.table import tables_of

CPU = torch.device("cpu")
LIMIT = 1 << 30  # bytes of weights that a worker holds for later tasks


@dataclass
class CachedModel:
    """A model in evaluation mode, ready to score rows.

    Attributes:
        module: on ``device``.
        rows: its batch size; None until it is measured.
        device: where it computes.
        precision: of the training; on GPUs the model scores under the same autocast.
        halved: whether the batch size was halved, after a GPU's memory did not suffice.
        draws: whether scoring draws from Python's, numpy's or torch's global generators; None until rows are scored.
    """

    module: nn.Module
    rows: int | None = None
    device: torch.device = CPU
    precision: str = "fp32"
    halved: bool = False
    draws: bool | None = None

    @staticmethod
    def on(device: torch.device, module: nn.Module, precision: str) -> CachedModel:
        """Move a module to a device."""
        return CachedModel(module.to(device), device=device, precision=precision)

    @property
    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast of the training on GPUs; nothing on CPUs, which score in full precision."""
        return autocast(self.precision if self.device.type == "cuda" else "fp32", self.device)

    @property
    def budget(self) -> int:
        """Bytes of the largest tensor of a batch."""
        return GPU_BUDGET if self.device.type == "cuda" else BUDGET

    @property
    def bytes(self) -> int:
        """Bytes of parameters and buffers, without mapped tables."""
        mapped = {id(table.weight) for table in tables_of(self.module).values() if table.mapped}
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(one.numel() * one.element_size() for one in tensors if id(one) not in mapped)

    @property
    def at_once(self) -> int:
        """The number of models that one call of the module evaluates, from its ``models_at_once``; default: 1."""
        return int(getattr(self.module, "models_at_once", 1))


class ModelCache:
    """The models of one or several queries, within a limit of bytes of weights.

    The cache drops the least recently used models first. A new model always fits, however large the model is.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._models: OrderedDict[str, CachedModel] = OrderedDict()

    def get(self, digest: str, size: int, load: Callable[[], CachedModel]) -> CachedModel:
        """Return the model with this digest, or make room for ``size`` bytes and load it."""
        if digest not in self._models:
            while self._models and sum(loaded.bytes for loaded in self._models.values()) > self._limit - size:
                self._models.popitem(last=False)
            self._models[digest] = load()
        self._models.move_to_end(digest)
        return self._models[digest]


MODEL_CACHE = ModelCache()
"""The models of this process."""
