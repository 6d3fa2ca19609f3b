"""User callbacks that run on the workers during training.

A callback is an object with at least one of these methods:

    on_start(run)              before the first step, or before the first step after a resume
    on_step(run)               after each optimizer step
    on_validation_start(run)   after an epoch's last step, before its weights are validated and, if the best, kept
    on_validation_end(run)     after that, in reverse order of the callbacks; then the loop restores the weights and
                               buffers of before on_validation_start
    on_epoch(run)              after each epoch, once the history has its row
    on_end(run)                after the last epoch

The workers get pickled copies of a callback, so its changes stay on them. Every rank calls it, and it may use
collectives; it uploads or prints if ``run.rank == 0``. If it changes weights or optimizer, it does so alike on every
rank: after the calls of each moment but ``on_step``, and at each epoch's end, the loop compares the replicas. If its
class sets ``every_rank = False``, rank 0 alone calls it, and a call that changes weights or optimizer raises. An error
in a callback fails the run.

If it has ``state_dict()`` and ``load_state_dict(state)``, checkpoints hold its state, as plain data and tensors. With
the attribute ``replicated``, its states are equal on all ranks, and a checkpoint holds one. With ``changes_result``,
a run resumes only with an equal callback.

Trackers, which run on the driver, are in ``sparkdl.ml.tracking.tracker``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput

MOMENTS = ("on_start", "on_step", "on_validation_start", "on_validation_end", "on_epoch", "on_end")


@dataclass
class CallbackRequests:
    """The requests of one worker's callbacks in the current epoch.

    Attributes:
        stop: the reason to stop after this epoch; None to train on.
        logged: the last value by name.
    """

    stop: str | None = None
    logged: dict[str, float] = field(default_factory=dict)


@dataclass
class CallbackContext:
    """The run as a callback sees it on one worker. Its objects are live, not copies.

    Attributes:
        rank: rank of the worker.
        size: number of workers.
        clock: epoch, step and samples so far.
        module: the module in training.
        optimizer: of this worker.
        device: device of the module.
        epochs: number of epochs that the user asked for.
        steps: steps per epoch.
        history: one row per finished epoch.
        local_mean: reads the mean loss of this worker in the current epoch; see ``loss``.
        on_access: is called before the callback gets ``module`` or ``optimizer``.
    """

    rank: int
    size: int
    clock: Clock
    module: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    epochs: int
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    local_mean: Callable[[], float | None] = field(default=lambda: None, repr=False)
    requests: CallbackRequests = field(default_factory=CallbackRequests, repr=False)
    on_access: Callable[[], None] = field(default=lambda: None, repr=False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("module", "optimizer"):
            super().__getattribute__("on_access")()
        return super().__getattribute__(name)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name: whole ones, or this worker's slices of them if the layout has slices."""
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    @property
    def loss(self) -> float | None:
        """Mean loss of this worker in the current epoch; None before its first row. Reading it waits for a GPU."""
        return self.local_mean()

    def stop(self, reason: str) -> None:
        """End training after the current epoch, on all workers; the report's ``stop_reason`` has the reason.

        If several callbacks do so in an epoch, the first reason of the lowest rank counts.
        """
        self.requests.stop = self.requests.stop or str(reason)

    def log(self, **values: Any) -> None:
        """Add numbers to the epoch's row of the history, which trackers log.

        The last value of an epoch counts. If several ranks log a name, the row has the mean of their values.

        Args:
            values: numbers, or tensors with one element, by name.

        Raises:
            InvalidInput: a value is no number.
        """
        for name, value in values.items():
            try:
                self.requests.logged[name] = float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise InvalidInput(f"run.log got {name}={value!r}; expected a number.") from error


def merge_requests(requests: Sequence[CallbackRequests], columns: Mapping[str, Any]) -> CallbackRequests:
    """The requests of all workers, by rank, as one; raises InvalidInput if the row's ``columns`` have a logged name."""
    logged: dict[str, list[float]] = {}
    for worker in requests:
        for name, value in worker.logged.items():
            logged.setdefault(name, []).append(value)
    if taken := [name for name in logged if name in columns]:
        raise InvalidInput(f"run.log got {', '.join(taken)}, which each row of the history has; expected other names.")
    # The mean of equal values may round.
    means = {
        name: values[0] if len({*values}) == 1 else math.fsum(values) / len(values) for name, values in logged.items()
    }
    return CallbackRequests(next((worker.stop for worker in requests if worker.stop), None), means)


def on_every_rank(callback: Any) -> bool:
    """Whether every rank calls a callback, not rank 0 alone."""
    return bool(getattr(callback, "every_rank", True))


def called_on(callbacks: Sequence[Any], rank: int) -> dict[str, Any]:
    """The callbacks that the worker of this ``rank`` calls, in the user's order, by class and number in the class."""
    seen: Counter[str] = Counter()
    called = {}
    for callback in callbacks:
        name = type(callback).__qualname__
        seen[name] += 1
        if rank == 0 or on_every_rank(callback):
            called[f"{name} {seen[name]}"] = callback
    return called


def states_of(callbacks: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a worker's callbacks by name: of those whose states are equal on all ranks, and of the others."""
    states: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, callback in callbacks.items():
        if hasattr(callback, "state_dict"):
            states[not getattr(callback, "replicated", False)][name] = callback.state_dict()
    return states


def load_states(callbacks: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Restore states by name; a callback without a saved one keeps its own.

    Raises InvalidInput if a state has no callback, or a callback that ``changes_result`` has no state.
    """
    missing = [name for name in states if not hasattr(callbacks.get(name), "load_state_dict")]
    added = [name for name in callbacks.keys() - states if hasattr(callbacks[name], "state_dict")]
    added = [name for name in sorted(added) if getattr(callbacks[name], "changes_result", False)]
    for names, which, expected in ((missing, "with", "them in"), (added, "without", "none of them in")):
        if names:
            raise InvalidInput(
                f"the saved state is of a run {which} the callbacks {', '.join(names)}; expected {expected} callbacks, "
                "or a new run elsewhere."
            )
    for name, state in states.items():
        callbacks[name].load_state_dict(state)


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise InvalidInput if an object has none of the methods, or a method ``prepare``, as trackers have."""
    for callback in callbacks:
        if hasattr(callback, "prepare"):
            raise InvalidInput(f"callbacks holds {callback!r}, a tracker of the driver; pass it as trackers=[...].")
    check_methods("callbacks", callbacks)


def check_methods(param: str, callbacks: Sequence[Any]) -> None:
    """Raise InvalidInput if an object in this ``param`` has none of the methods."""
    for callback in callbacks:
        if not any(callable(getattr(callback, name, None)) for name in MOMENTS):
            raise InvalidInput(
                f"{param} holds {callback!r}, which has none of the methods {', '.join(MOMENTS)}; expected one or more."
            )
