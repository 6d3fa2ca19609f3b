"""The passes of a module: forward and backward, clipping and the optimizer's step, the same for all layouts."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch, Input
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slices
from sparkdl.telemetry.step_timer import enter_phase
from sparkdl.training.layouts import GradientSink, Replica, Workers, arithmetic
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.optimizer_state import differences, load_by_name, state_by_name
from sparkdl.training.layouts.table import tables_of
from sparkdl.training.layouts.table_rows import TableRows
from sparkdl.training.objective.loss import forward, kept_buffers, shapes, trained
from sparkdl.training.objective.objective import Objective

_LISTED = 5  # differences that a message lists


class ModuleReplica(Replica):
    """A whole model, or in a derived class this worker's slices of one, on one device.

    Layouts that exchange tensors in a pass derive from it: they override ``run`` and ``gradients``, and set
    ``lockstep``, ``slices`` and ``slice_group``, the workers whose slices together make up the tensors. Norms of
    gradients cover these workers.

    Args:
        objective: the objective.
        module: the module that ``objective.build`` made.
        workers: the groups of workers.
        device: the device of the passes; default: the device of the parameters.
        feed: gives the spare row of a replica in lockstep; other replicas need none.
        tables: the rows of the module's tables, if it has any; with several workers the replica is in lockstep, unless
            a strategy serves the rows.

    Raises:
        InvalidInput: the module has tables that nobody trains.
    """

    overlaps = True  # whether the sink gets each gradient as soon as it is final

    def __init__(
        self,
        objective: Objective,
        module: nn.Module,
        workers: Workers,
        feed: Feed | None = None,
        *,
        device: torch.device | None = None,
        tables: TableRows | None = None,
    ) -> None:
        if tables is None and tables_of(module):
            raise InvalidInput("the model has a Table, which only gangs with Replicated() or Sharded() train.")
        self.module, self.workers, self._feed, self.tables = module.train(), workers, feed, tables
        named = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        self.parameters: Sequence[nn.Parameter] = [value for _, value in named]
        self._names = [name for name, _ in named]
        self._device = device = device or self.parameters[0].device
        self.output: Any = None
        self.slice_group = Group()
        self.copies: Mapping[str, int] = {}  # workers of the group that have the same values of a parameter, if several
        self.optimizer = objective.open_optimizer(named)
        self.scheduler: Any = None
        self._objective, self.max_grad_norm = objective, objective.max_grad_norm
        self._by_epoch = objective.scheduler_interval == "epoch"
        self._criterion = objective.criterion(device)
        self._autocast = arithmetic.autocast(objective.precision, device)
        self._scaler = arithmetic.LossScaler(device) if objective.precision == "fp16" else None
        self._sink: GradientSink | None = None
        self._receiver: GradientSink | None = None  # the sink, during a backward pass with communication
        self._hooked = False
        self._step_share = 0.0  # this worker's share of the step's rows
        # Tables follow the schedule of the group with the largest rate.
        rates = [float(group.get("lr", 0.0)) for group in self.optimizer.param_groups]
        self._leading, self._rate = max(enumerate(rates), key=lambda pair: pair[1])
        if tables is not None:
            self.lockstep, self.divided = tables.group.size > 1, frozenset(map(str, tables.slices))
            self.hold(tables.slices)

    @property
    def sink(self) -> GradientSink | None:
        """Receives the gradients of each step's last micro-batch; None without a strategy that wants them."""
        return self._sink

    @sink.setter
    def sink(self, sink: GradientSink | None) -> None:
        self._sink = sink
        # Rounds make many replicas of one module, without a sink.
        if sink is not None and self.overlaps and not self._hooked:
            self._hooked = True
            for index, parameter in enumerate(self.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]

    def schedule(self, steps: int, epochs: int) -> None:
        """Open the scheduler of a run of ``epochs`` with so many ``steps`` each."""
        self.scheduler = self._objective.for_run(steps, epochs).open_scheduler(self.optimizer)

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Run forward and backward on one batch; return the local mean loss."""
        self.output, self._receiver, self._step_share = None, self._sink if last else None, batch.weight_fraction
        if self._receiver is not None:
            self._receiver.begin(batch.weight_fraction)
        loss = self._pass(batch) if batch.weight else self._no_pass()
        if self._receiver is not None:
            self._receiver.finish()
        self._receiver = None
        enter_phase("other")
        return loss.detach()

    def hold(self, slices: Slices) -> None:
        """Set ``slices`` by name, and by index in ``parameters``."""
        by_index: Slices = {index: slices[name] for index, name in enumerate(self._names) if name in slices}
        self.slices = {**slices, **by_index}

    def deliver(self, share: float) -> None:
        """Give all gradients to the sink after the backward pass; ``share`` is this replica's share of the step."""
        if self._sink is not None:
            self._sink.begin(share)
            for index in reversed(range(len(self.parameters))):
                self._sink.ready(index)
            self._sink.finish()

    def run(self, inputs: Iterable[Input]) -> Any:
        """The forward pass."""
        return forward(self.module, inputs)

    def evaluate(self, batch: Batch) -> Any:
        """The output for a batch; None if its weight is 0."""
        if batch.weight:
            return self.run(batch.inputs)
        if self.lockstep:
            with kept_buffers(self.module):
                self.run(self._spare_row().inputs)
        return None

    def open_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Make a second optimizer by the objective's factory."""
        return self._objective.open_optimizer(named)

    def apply(
        self,
        step: Callable[[], None] | None = None,
        *,
        adjust: Callable[[Sequence[nn.Parameter]], None] | None = None,
    ) -> None:
        """Clip the gradients, call ``step`` or the optimizer's, step the scheduler, and clear the gradients.

        ``adjust`` is called with the parameters before clipping, when their gradients are not scaled any more. With
        fp16, no step is taken if a gradient is infinite or NaN.
        """
        enter_phase("update")
        if self._scaler is not None:
            if self.slice_group.size > 1:
                raise InvalidInput("precision is 'fp16', which no layout with slices takes; expected 'bf16'.")
            self._scaler.unscale(self.optimizer, self.parameters)
        if adjust is not None:
            adjust(self.parameters)
        if self.tables is not None:
            rate = self.optimizer.param_groups[self._leading].get("lr", 0.0)
            self.tables.factor = float(rate) / self._rate if self._rate else 1.0
            self.tables.collect(self._step_share)
        if self._objective.max_grad_norm is not None:
            self._clip(self._objective.max_grad_norm)
        if self._scaler is None:
            (step or self.optimizer.step)()
        else:
            self._scaler.step_and_update(self.optimizer, step)
        if self.tables is not None:
            self.tables.step()
            self.bytes_per_step, self.tables.sent.count = self.tables.sent.count, 0
        if self.scheduler is not None and not self._by_epoch:
            self.scheduler.step()
        for parameter in self.parameters:  # the optimizer may have only some of them
            parameter.grad = None

    def end_epoch(self, value: float) -> None:
        """Compare workers that draw alike, and step a scheduler of epochs; ``ReduceLROnPlateau`` gets ``value``."""
        if self.alike.size > 1:
            self._check_alike()
        if self.scheduler is not None and self._by_epoch:
            self.scheduler.step(*([value] if isinstance(self.scheduler, ReduceLROnPlateau) else []))

    def state_dict(self) -> dict[str, Any]:
        """Module, optimizer and scheduler between two steps."""
        if any(parameter.grad is not None for parameter in self.parameters):
            raise InvalidInput("a parameter has an unused gradient; request the state between two steps.")
        module, named = self.module.state_dict(), dict(self.module.named_parameters(remove_duplicate=False))
        state: dict[str, Any] = {
            "shared": {
                "parameters": {name: value for name, value in module.items() if name in named},
                "optimizer": state_by_name(self.optimizer, dict(self.module.named_parameters())),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "scaler": {} if self._scaler is None else self._scaler.state_dict(),
                "kinds": {"optimizer": kind_of(self.optimizer), "scheduler": kind_of(self.scheduler)},
            },
            "local": {
                "buffers": {name: value for name, value in module.items() if name not in named},
                # A step may depend on these buffers, though torch does not save them.
                "not persistent": {name: buffer for name, buffer in self.module.named_buffers() if name not in module},
            },
        }
        if self.tables is not None:
            state["shared"]["tables"] = self.tables.state_dict()
            state["shared"]["kinds"]["tables"] = self.tables.kinds
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        shared, local = state["shared"], state["local"]
        module = shared["parameters"] | local["buffers"]
        self._check_fit(shared | {"module": module})
        self.module.load_state_dict(module)
        for name, buffer in local["not persistent"].items():
            owner, _, last = name.rpartition(".")
            setattr(self.module.get_submodule(owner), last, buffer.to(self._device))
        load_by_name(self.optimizer, dict(self.module.named_parameters()), shared["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(shared["scheduler"])
        if self._scaler is not None:
            self._scaler.load_state_dict(shared["scaler"])
        if self.tables is not None:
            self.tables.load_state_dict(shared.get("tables", {}), shared["kinds"].get("tables", {}))

    def _check_fit(self, state: dict[str, Any]) -> None:
        # torch would load some mismatches silently.
        current = _tensors(self.module.state_dict(), state["module"])
        named = dict(self.module.named_parameters())
        kinds = _kinds(self.optimizer, self.scheduler, state)
        problems = [*current, *kinds, *differences(self.optimizer, named, state["optimizer"])]
        if problems:
            more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
            raise InvalidInput(
                f"the saved state is of another training: {'; '.join(problems[:_LISTED])}{more}. Resume with the "
                "model, optimizer and scheduler of the saved run, or start a new run elsewhere."
            )

    def _pass(self, batch: Batch) -> Tensor:
        enter_phase("forward")
        with self._autocast:
            inputs = arithmetic.in_channels_last(batch.inputs) if self._objective.channels_last else batch.inputs
            output = self.run(inputs)
            loss = trained(self._criterion(output, batch))
        enter_phase("backward")
        fraction = self._fraction(batch)
        part = loss if fraction == 1.0 else loss * fraction
        if self._scaler is not None:
            part = self._scaler.scale(part)
        part.backward()  # type: ignore[no-untyped-call]
        self.output = output.detach() if isinstance(output, Tensor) else output
        return loss

    def _fraction(self, batch: Batch) -> float:
        """The factor of a batch's loss; a layout that sums gradients itself includes this worker's share."""
        return batch.micro_fraction

    def _clip(self, max_norm: float) -> None:
        pairs = [
            (name, one.grad) for name, one in zip(self._names, self.parameters, strict=True) if one.grad is not None
        ]
        copies = [self.copies.get(name, 1 if name in self.slices else self.slice_group.size) for name, _ in pairs]
        gradients, group = [gradient for _, gradient in pairs], self.slice_group
        if self.tables is not None:
            rows = [one.gradients for one in self.tables.gradients.values()]
            holders = self.tables.group if self.tables.served is None else Group()
            copies = [count * holders.size // group.size for count in copies] + [1] * len(rows)
            gradients, group = [*gradients, *rows], holders
        arithmetic.clip(gradients, max_norm, group, copies)

    def _no_pass(self) -> Tensor:
        if self.needs_rows:
            raise InvalidInput(
                "this worker has no row of positive weight in a step, and the others wait for its statistics in "
                "SyncBatchNorm. Partition the rows evenly, raise batchSize, or set dropLast=True."
            )
        if self.lockstep:
            self._spare_pass()
        return self.parameters[0].new_zeros(())

    def _spare_pass(self) -> None:
        """Take part in the exchanges of a pass; buffers stay, and gradients that are not of slices."""
        gradients, receiver = [parameter.grad for parameter in self.parameters], self._receiver
        self._receiver, look_ups = None, [] if self.tables is None else [*self.tables.look_ups]
        for parameter in self.parameters:
            parameter.grad = None  # torch adds in place
        with kept_buffers(self.module):
            self._pass(self._spare_row())
        for name, parameter, before in zip(self._names, self.parameters, gradients, strict=True):
            if name not in self.slices or parameter.grad is None:
                parameter.grad = before
            elif before is not None:  # the pass may sum the gradients of the other workers' rows
                parameter.grad += before
        self.output, self._receiver = None, receiver
        if self.tables is not None:
            self.tables.look_ups = look_ups

    def _spare_row(self) -> Batch:
        if self._feed is None:
            raise InvalidInput(f"{type(self).__name__} is in lockstep without a feed; expected the one of place().")
        return self._feed.spare_row()

    def _check_alike(self) -> None:
        """Raise InvalidInput unless common parameters and random numbers are equal on all workers of ``alike``."""
        named = self.module.named_parameters()
        common = [value.detach() for name, value in named if name not in self.slices or name in self.copies]
        weights = math.fsum(value.double().sum().item() for value in common)
        if len({*self.alike.gather((weights, torch.get_rng_state().numpy().tobytes()))}) > 1:
            raise InvalidInput(
                "partners have other weights or random numbers. A callback or collate that draws random numbers, or "
                "changes weights, must do so alike on all ranks; workers of one replica need processors of one kind."
            )

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        # Weak: torch holds hooks outside of Python's garbage collector, and would never free the replica. Its sink
        # holds the process group, and peers in a collective wait until that is closed.
        weak = weakref.ref(self)

        def ready(parameter: Tensor) -> None:
            replica = weak()
            if replica is not None and replica._receiver is not None:
                replica._receiver.ready(index)

        return ready


def kind_of(value: object) -> str | None:
    """Class name of an optimizer or a scheduler; None without one."""
    return None if value is None else type(value).__qualname__


def _tensors(current: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    for name in {**current, **saved}:
        if name not in saved:
            yield f"it lacks the model's {name}"
        elif name not in current:
            yield f"it has {name}, which the model lacks"
        elif name.endswith("_extra_state"):
            continue  # its shape may change
        elif isinstance(current[name], Tensor) and shapes(current[name]) != shapes(saved[name]):
            yield f"its {name} is {shapes(saved[name])}, the model's is {shapes(current[name])}"


def _kinds(optimizer: torch.optim.Optimizer, scheduler: Any, state: dict[str, Any]) -> Iterator[str]:
    for name, kind in (("optimizer", kind_of(optimizer)), ("scheduler", kind_of(scheduler))):
        if state["kinds"][name] != kind:
            yield f"its {name} is {state['kinds'][name]}, this training's is {kind}"
