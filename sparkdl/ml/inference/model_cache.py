"""The models that a Python worker holds: workers outlive tasks, and loading a model again would cost each task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

LIMIT = 1 << 30  # bytes of weights that a worker keeps for tasks to come


@dataclass
class Loaded:
    """A model that is ready to score rows.

    Attributes:
        module: in evaluation mode.
        rows: how many go through it at a time; None until the first rows have been measured.
    """

    module: nn.Module
    rows: int | None = None

    @property
    def bytes(self) -> int:
        """What the weights and buffers take."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def at_once(self) -> int:
        """How many models the module puts a batch through at the same time; it says so where they are several."""
        return int(getattr(self.module, "models_at_once", 1))


class Shelf:
    """The models that were used last, as many as fit.

    The one in use always fits, however large; the others make room for it, the one unused for longest first. A plan
    with several models, or a worker that Spark hands from one to the other, keeps all of them.

    Args:
        limit: bytes of weights that are kept.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._models: OrderedDict[str, Loaded] = OrderedDict()

    def get(self, digest: str, size: int, load: Callable[[], nn.Module]) -> Loaded:
        """The model with this digest, loaded if it is not here.

        Args:
            digest: tells models apart.
            size: bytes that it will take, so that there is room before it is loaded.
            load: makes the module.
        """
        if digest not in self._models:
            self._make_room(self._limit - size)
            self._models[digest] = Loaded(load())
        self._models.move_to_end(digest)
        return self._models[digest]

    def _make_room(self, limit: int) -> None:
        while self._models and sum(loaded.bytes for loaded in self._models.values()) > limit:
            self._models.popitem(last=False)

    def __contains__(self, digest: str) -> bool:
        return digest in self._models

    def __len__(self) -> int:
        return len(self._models)


SHELF = Shelf()
"""The models of this process."""
