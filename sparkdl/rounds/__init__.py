"""Protocol of algorithms that train in rounds: map, reduce, apply.

A round maps every shard with the same state, sums the updates, and applies the sum on the driver:

    U_k, memory_k' = map(S, shard_k, memory_k)       on the executors, one task per shard
    U              = U_1 + U_2 + ... + U_K           along a fixed tree over the shards' indices
    S'             = apply(S, U)                     on the driver

The tasks of a round need not run at the same time. An algorithm is a frozen dataclass of hyperparameters; only the
state and the local state of each shard (its memory) change. The driver saves the state after every round, and a local
state counts once its round is saved. So a task may run twice or on another host, and a killed driver resumes after the
last saved round. Each algorithm is one self-contained file; ``sparkdl.rounds.loop`` has the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import is_dataclass
from typing import Any, Protocol, TypeGuard

from torch import Tensor

from sparkdl.data.shard import Shard
from sparkdl.training.objective.objective import Objective

State = dict[str, Any]
"""Plain data for ``sparkdl.io.serialization``; ``"weights"`` is the best ``state_dict`` so far, tied tensors once."""

Update = dict[str, Tensor]
"""Tensors that a shard contributes to a round; a name has the same shape for all shards."""

Memory = Any
"""Local state of a shard between rounds: plain data; None for none."""


class Algorithm(Protocol):
    """An algorithm of rounds: a frozen dataclass.

    Two further attributes are optional. ``broadcast_state(state)`` returns the entries of the state that ``map`` needs;
    default: all. ``reports_loss = False`` declares that rows of the history have neither ``loss`` nor ``objective``.
    """

    @property
    @abstractmethod
    def uses_optimizer(self) -> bool:
        """Whether shards step the objective's optimizer; if not, optimizer and clipping are ignored."""

    @abstractmethod
    def init(self, objective: Objective, seed: int) -> State:
        """The state before the first round."""

    @abstractmethod
    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Return a shard's update and its next local state.

        The result must depend on the arguments alone, so that repeated tasks are bit-identical. ``map`` must not change
        its arguments. It computes on ``objective.device``, which may be a GPU; the update's tensors are on the CPU.
        """

    @abstractmethod
    def reduce(self, left: Update, right: Update) -> Update:
        """Combine two updates elementwise, tensor by tensor; large updates are reduced in slices."""

    @abstractmethod
    def apply(self, state: State, update: Update) -> State:
        """Return the state after the round; ``state``, the one before it, must stay unchanged."""

    @abstractmethod
    def converged(self, state: State) -> bool:
        """Whether no further round is needed."""

    @abstractmethod
    def metrics(self, state: State) -> dict[str, float | str]:
        """The round's entries of the history; empty after a preparatory round."""


def is_algorithm(value: object) -> TypeGuard[Algorithm]:
    """Whether a value is a complete ``Algorithm``, and a dataclass, since its fields identify a run."""
    methods = ("init", "map", "reduce", "apply", "converged", "metrics")
    complete = hasattr(value, "uses_optimizer") and all(callable(getattr(value, name, None)) for name in methods)
    return complete and is_dataclass(value) and not isinstance(value, type)


def to_send(algorithm: Algorithm, state: State) -> State:
    """The state that the driver sends to the shards."""
    sent: State = getattr(algorithm, "broadcast_state", dict)(state)
    return sent


def add(left: Update, right: Update) -> Update:
    """The elementwise sum of two updates, the ``reduce`` of most algorithms."""
    return {name: tensor + right[name] for name, tensor in left.items()}
