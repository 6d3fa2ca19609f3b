"""Calls the callbacks of one worker at the moments of a training, and compares the replicas after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.step_timer import enter_phase
from sparkdl.training.callbacks.callback import CallbackContext, CallbackRequests, merge_requests, on_every_rank
from sparkdl.training.layouts.replica_check import ReplicaCheck
from sparkdl.training.trainer_state import TrainerState


class CallbackCalls:
    """Calls the callbacks of ``state``, and fulfils what they request of its history and its stopping."""

    def __init__(self, state: TrainerState) -> None:
        self._state = state
        self._check = ReplicaCheck(state.replica, state.world, state.sync.replicated)

    def start(self) -> None:
        """Call ``on_start``, then start the clock of the first epoch."""
        self._call("on_start")
        self._state.start()

    def end_step(self) -> None:
        """Call ``on_step``, and compare the replicas if a check is due; at an epoch's end, validation compares them."""
        enter_phase("other")
        self._call("on_step")
        state, clock = self._state, self._state.world.clock
        interval = state.training.replica_check_interval
        if interval and state.sync.replicated and not clock.step % interval and state.position < state.rows.plan.steps:
            self._compare(f"after step {clock.step}")

    @contextmanager
    def around_validation(self, validate: Callable[[], float]) -> Iterator[float]:
        """Yield the value of ``validate``, between ``on_validation_start`` and ``on_validation_end``.

        After the block, the weights and buffers that callbacks changed around it return.
        """
        module, called = self._state.replica.module, self._state.callbacks.values()
        self._compare(f"after epoch {self._state.world.clock.epoch}", refresh=True)
        moments = ("on_validation_start", "on_validation_end")
        around = any(hasattr(one, name) for one in called if on_every_rank(one) for name in moments)
        with _restoring(module) if around else nullcontext():
            self._call("on_validation_start")
            yield validate()
            self._call("on_validation_end")

    def end_epoch(self) -> None:
        """Call ``on_epoch``, fulfil what callbacks requested in the epoch, and start the clock of the next one."""
        self._call("on_epoch")
        state = self._state
        if state.training.callbacks:
            row = state.history[-1]
            requests = merge_requests(state.group.gather(state.requests), row)
            row |= requests.logged
            state.stopping.reason = state.stopping.reason or requests.stop
            state.requests = CallbackRequests()
        state.start_epoch()

    def end(self) -> None:
        """Call ``on_end`` after the last epoch; raises InvalidInput if a callback stops or logs in it."""
        self._call("on_end")
        if self._state.requests != CallbackRequests():
            raise InvalidInput(
                "a callback called run.log or run.stop in on_end, after the last epoch; expected on_epoch."
            )

    def _call(self, moment: str) -> None:
        callbacks, compared = [*self._state.callbacks.values()], False
        for callback in reversed(callbacks) if moment == "on_validation_end" else callbacks:
            if not hasattr(callback, moment):
                continue
            enter_phase("callbacks")
            if on_every_rank(callback):
                compared = moment != "on_step"
                getattr(callback, moment)(self._context())
            else:
                with self._check.watch(callback, moment) as on_access:
                    getattr(callback, moment)(self._context(on_access=on_access))
            enter_phase("other")
        # Within a block of local steps, at which a run may resume, replicas differ.
        if compared and (moment != "on_start" or self._state.sync.replicated or not self._state.position):
            # After validation the training's weights return, and after on_end no step follows.
            self._compare(f"after {moment}", refresh=moment in ("on_start", "on_epoch"))

    def _compare(self, moment: str, *, refresh: bool = False) -> None:
        enter_phase("exchange")
        sync = self._state.sync
        if self._check(moment) and refresh and not sync.replicated:
            sync.load_state_dict(sync.state_dict())  # such as the weights that begin a block
        enter_phase("other")

    def _context(self, **options: Any) -> CallbackContext:
        state, world = self._state, self._state.world
        return CallbackContext(
            *(world.rank, world.size, world.clock, state.replica.module, state.replica.optimizer, world.device),
            *(state.training.epochs, state.rows.plan.steps, state.history, state.meter.local_mean, state.requests),
            **options,
        )


@contextmanager
def _restoring(module: nn.Module) -> Iterator[None]:
    """Restore parameters and buffers after the block, whether it overwrites or replaces them or their modules."""
    registries = [one for part in module.modules() for one in (part._parameters, part._buffers, part._modules)]
    names = [(registry, dict(registry)) for registry in registries]
    copies = [(value, value.data, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
    yield
    for registry, before in names:
        registry.update(before)  # type: ignore[arg-type]
    for value, data, copy in copies:
        value.data = data.copy_(copy)
