"""Protocol of algorithms that train in rounds: map, reduce, apply.

A round maps every shard with the same state, sums the updates, and applies the sum on the driver:

    U_k, memory_k' = map(S, shard_k, memory_k)       on the executors, one task per shard
    U              = U_1 + U_2 + ... + U_K           along a fixed tree over the shards' indices
    S'             = apply(S, U)                     on the driver

The tasks of a round need not run at the same time. An algorithm is a frozen dataclass of hyperparameters; only the
state and the local state of each shard (its memory) change. The driver saves the state after every round, and a local
state counts once its round is saved. So a task may run twice or on another host, and a killed driver resumes after the
last saved round. Each algorithm is one self-contained file; ``sparkdl.rounds.loop`` has the loop.

Weighted means of weights over shards, with ``p_k`` the share of shard k, are sums, too:

    sum_k p_k w_k / sum_k p_k                        ``scaled`` on shards, ``average`` on the driver
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.training.objective import Objective

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
    def uses_optimizer(self) -> bool:
        """Whether shards step the objective's optimizer; if not, optimizer and clipping are ignored."""

    def init(self, objective: Objective, seed: int) -> State:
        """The state before the first round."""

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Return a shard's update and its next local state.

        The result must depend on the arguments alone, so that repeated tasks are bit-identical. ``map`` must not change
        its arguments.
        """

    def reduce(self, one: Update, other: Update) -> Update:
        """Combine two updates elementwise, tensor by tensor; large updates are reduced in slices."""

    def apply(self, state: State, update: Update) -> State:
        """Return the state after the round; ``state``, the one before it, must stay unchanged."""

    def converged(self, state: State) -> bool:
        """Whether no further round is needed."""

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


def add(one: Update, other: Update) -> Update:
    """The elementwise sum of two updates, the ``reduce`` of most algorithms."""
    return {name: tensor + other[name] for name, tensor in one.items()}


def scaled(weights: Mapping[str, Tensor], share: float) -> Update:
    """Weights times the shard's share, and the share, as terms of the sums that ``average`` divides."""
    terms = {name: value if value.is_floating_point() else value.double() for name, value in weights.items()}
    return {**{f"weights/{name}": value * share for name, value in terms.items()}, **scalars(share=share)}


def average(update: Update, like: Mapping[str, Tensor]) -> Update:
    """The weighted mean of weights in the dtypes of ``like``, integers rounded; overwrites the sums.

    Tensors without an entry in ``update`` stay those of ``like``. Raises InvalidInput if the shares sum to 0.
    """
    share = positive(update["share"])
    # In place, since the driver may lack the memory for another copy of a large model.
    means = {name: update[f"weights/{name}"].div_(share) for name in like if f"weights/{name}" in update}
    rounded = {name: mean if like[name].is_floating_point() else mean.round() for name, mean in means.items()}
    return {name: rounded[name].to(tensor.dtype) if name in rounded else tensor for name, tensor in like.items()}


def positive(mass: Tensor) -> float:
    """The total mass of the rows; raises InvalidInput if it is 0."""
    if not float(mass):
        raise InvalidInput("no row weighs anything: all weights are 0, or all labels are ignored.")
    return float(mass)


def scalars(**values: Tensor | float) -> Update:
    """Numbers as float64 scalar tensors."""
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
