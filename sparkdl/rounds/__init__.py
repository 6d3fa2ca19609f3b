"""How rounds agree: the second plane, of MapReduce jobs whose tasks need not be alive together.

A round maps every part with the same state, reduces what comes of it over the parts, and applies the result to the
state on the driver:

    U_k, memory_k' = map(S, part_k, memory_k)        on the executors, a task a part
    U              = U_1 + U_2 + ... + U_K           by a fixed tree over the parts' indices
    S'             = apply(S, U)                     on the driver

An algorithm is configuration, a frozen dataclass whose fields are its hyperparameters, and all that changes is outside
of it: in the state, which is saved after every round, and in the memory of each part, which counts once the round it
was written in does. So a task may run twice, or somewhere else, and a driver that is killed goes on with the round
after the last. Each algorithm is one file that reads alone; ``sparkdl.rounds.loop`` is the loop.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, Protocol, TypeGuard

from torch import Tensor

from sparkdl.data.shard import Part
from sparkdl.training.objective import Objective

State = dict[str, Any]
"""Plain data for ``sparkdl.io.serialization``; ``"weights"`` is the best ``state_dict`` so far, tied ones once."""

Update = dict[str, Tensor]
"""What a part gives to a round. Tensors of any shape; those of the same name have the same one for all parts."""

Memory = Any
"""What a part keeps for itself from round to round: plain data, or None for nothing."""


class Algorithm(Protocol):
    """How rounds agree: a frozen dataclass.

    It may have a method ``sent(state)`` besides: what ``map`` needs of the state, where that is less than all of it;
    and an attribute ``has_loss``, False where its rows have neither a ``loss`` nor an ``objective``.
    """

    @property
    def takes_steps(self) -> bool:
        """Whether parts take steps of the objective's own optimizer; if not, it and clipping are unused."""

    def init(self, objective: Objective, seed: int) -> State:
        """The state before the first round."""

    def map(self, objective: Objective, state: State, part: Part, memory: Memory) -> tuple[Update, Memory]:
        """What a part has to say to the state, and what it will remember.

        It depends on nothing but its arguments: a task that runs twice gives the same bits. It must not change them.
        """

    def reduce(self, one: Update, other: Update) -> Update:
        """Two updates as one, tensor by tensor and elementwise: a large update is reduced in pieces of its tensors."""

    def apply(self, state: State, update: Update) -> State:
        """The state after the round, from the one before it, which it leaves as it is, and all parts' updates."""

    def done(self, state: State) -> bool:
        """Whether there is no need of another round."""

    def row(self, state: State) -> dict[str, float | str]:
        """What the history says of the round that the state comes from; nothing of one that only prepared others."""


def is_algorithm(value: object) -> TypeGuard[Algorithm]:
    """Whether it is an algorithm of rounds: a dataclass, since its fields say which run is which, with all of it."""
    methods = ("init", "map", "reduce", "apply", "done", "row")
    whole = hasattr(value, "takes_steps") and all(callable(getattr(value, name, None)) for name in methods)
    return whole and is_dataclass(value) and not isinstance(value, type)


def to_send(algorithm: Algorithm, state: State) -> State:
    """What goes to the parts."""
    sent = getattr(algorithm, "sent", None)
    found: State = state if sent is None else sent(state)
    return found


def add(one: Update, other: Update) -> Update:
    """The sum of two updates, which is how most algorithms reduce."""
    return {name: tensor + other[name] for name, tensor in one.items()}
