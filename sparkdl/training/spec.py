"""A training run as data: its settings, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.data.transforms import Augment, Collate
from sparkdl.errors import InvalidInput
from sparkdl.training.callbacks import check_hooks
from sparkdl.training.labels import Classes
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective import Objective
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce


@dataclass(frozen=True)
class TrainingSpec:
    """Settings of a run, the same on every member.

    Attributes:
        objective: what is minimised.
        batch_size: rows of the GLOBAL batch.
        epochs: passes over the data.
        seed: seed of the weights, of the permutations and of the members' random numbers.
        strategy: how replicas agree.
        layout: how a replica lies on members.
        accumulate: into how many pieces a member cuts its rows of a step, to save memory; the step stays the same.
        shuffle: False takes the rows in row-id order.
        patience: epochs without a smaller loss after which training ends with the best epoch's weights; None for all.
        hooks: the user's own objects, called on the way; see ``sparkdl.training.callbacks``.
        classes: what the labels are checked for; None where they are no class indices.
        collate: ``collate(inputs, target)``, of every batch; None for none.
        augment: ``augment(inputs, target, generator)``, of training batches, before ``collate``; None for none.
        keeper: the ``CheckpointKeeper`` that saves the members' states and restores them in a later attempt; None for
            none.
        measured: whether members tell how far they are, and what their steps spend their time on.
    """

    objective: Objective
    batch_size: int
    epochs: int = 1
    seed: int = 0
    strategy: Strategy = field(default_factory=AllReduce)
    layout: Layout = field(default_factory=Replicated)
    accumulate: int = 1
    shuffle: bool = True
    patience: int | None = None
    hooks: Sequence[Any] = ()
    classes: Classes | None = None
    collate: Collate | None = None
    augment: Augment | None = None
    keeper: Any = None  # a CheckpointKeeper; untyped, so that the loop does not load what writes checkpoints
    measured: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected at least 1.")
        if self.patience is not None and self.patience < 1:
            raise InvalidInput(f"patience is {self.patience}; expected at least 1 epoch, or None.")
        check_hooks(self.hooks)

    def title(self) -> str:
        """What an attempt that begins now has to do, as the Spark UI shows it."""
        done = 0 if self.keeper is None else self.keeper.epoch()
        return f"epochs {min(done + 1, self.epochs)} to {self.epochs}"


@dataclass(frozen=True)
class Trained:
    """What a member brings back.

    Attributes:
        weights: safetensors bytes of the module, from rank 0; empty from the others.
        history: a row per epoch; the same on every member.
        report: seconds, rows and bytes of this member.
    """

    weights: bytes
    history: list[dict[str, Any]]
    report: dict[str, Any]
