"""The models that a Python worker holds across tasks, so that a task need not load them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

LIMIT = 1 << 30  # bytes of weights that a worker holds for later tasks


@dataclass
class CachedModel:
    """A model in evaluation mode, ready to score rows; ``rows`` is its batch size, None until it is measured."""

    module: nn.Module
    rows: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of parameters and buffers."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def at_once(self) -> int:
        """The number of models that one call of the module evaluates, from its ``models_at_once``; default: 1."""
        return int(getattr(self.module, "models_at_once", 1))


class ModelCache:
    """Cache of models, least recently used out first.

    A new model always fits, however large. Queries with several models, and a worker that serves several queries, keep
    all of them within the limit, in bytes of weights.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._models: OrderedDict[str, CachedModel] = OrderedDict()

    def get(self, digest: str, size: int, load: Callable[[], nn.Module]) -> CachedModel:
        """Return the model with this digest, or make room for ``size`` bytes and load it."""
        if digest not in self._models:
            while self._models and sum(loaded.bytes for loaded in self._models.values()) > self._limit - size:
                self._models.popitem(last=False)
            self._models[digest] = CachedModel(load())
        self._models.move_to_end(digest)
        return self._models[digest]


SHELF = ModelCache()
"""The models of this process."""
