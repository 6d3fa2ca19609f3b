"""Pipeline parallelism: each worker holds a stage of consecutive layers, and micro-batches pass through the stages.

With ``p`` stages and ``m`` micro-batches, a stage that takes ``t`` seconds for a micro-batch, forward and backward,
makes a step of at least

    (m + p - 1) t,        of which the share (p - 1) / (m + p - 1) is idle.

``"gpipe"`` runs all micro-batches forward, then all backward, and holds ``m`` activations: Y. Huang et al., GPipe,
2019, arXiv:1811.06965. ``"1f1b"`` alternates, and holds at most ``p``: D. Narayanan et al., PipeDream, 2019. With
``"interleaved"`` each worker has several stages, so that less time is idle: D. Narayanan et al., 2021,
arXiv:2104.04473. The schedules and their messages are torch's own, of ``torch.distributed.pipelining``.

A micro-batch has a fixed number of rows. Copies of a row stand for missing rows, and their outputs are dropped before
the loss, so that gradients are those of a single process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.mesh import grid, open_axes
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch, arguments
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Several, one_of
from sparkdl.io.weights import Slice, Slices
from sparkdl.telemetry.step_timer import enter_phase
from sparkdl.training.layouts import Layout, SentBytes, Workers
from sparkdl.training.layouts.arithmetic import slow_attention
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.initial_weights import InitialWeights, check_init, check_init_field
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.slice_checks import check_no_tables, check_settings, keeps_statistics
from sparkdl.training.layouts.stages.cut_model import children, is_sequence, stages_of
from sparkdl.training.layouts.stages.cuts import best_cuts, layer_seconds
from sparkdl.training.layouts.stages.schedule import SCHEDULES, StageSchedule
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Pipelined(CheckedFields, Layout):
    """Each worker holds some of the model's layers; ``microBatches`` is the number of the pipeline's micro-batches.

    Attributes:
        stages: workers of a replica, with consecutive ranks.
        schedule: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``.
        split: names of the modules at which the second stage and all later ones begin. By default, the model is an
            ``nn.Sequential``, and rank 0 times its children to find the cuts with the smallest slowest stage.
        chunks: stages of each worker; more than 1 with ``"interleaved"`` alone.
        max_bytes: the most bytes of a stage's weights, if ``split`` is not set; default: any.
        init: where the initial weights come from, as for ``Sharded``.
    """

    stages: Several
    schedule: Annotated[str, one_of(SCHEDULES)] = "1f1b"
    split: Any = None
    chunks: Count = 1
    max_bytes: Count | None = None
    init: Any = None

    def _check(self) -> None:
        check_init_field("Pipelined", self.init)
        if (self.schedule == "interleaved") != (self.chunks > 1):
            raise InvalidInput(
                f"schedule is {self.schedule!r}, and chunks is {self.chunks}; expected at least 2 chunks with "
                "'interleaved', and 1 with the others."
            )
        names = self.split
        listed = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        if names is not None and not (listed and len(names) == self.parts - 1):
            raise InvalidInput(
                f"split is {names!r}; expected {self.parts - 1} names of modules for {self.parts} stages."
            )

    @property
    def parts(self) -> int:
        """Stages of the model."""
        return self.stages * self.chunks

    def multiple(self, size: int) -> int:
        """The workers of a replica."""
        return self.stages

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        """Raise InvalidInput if the settings or the model do not fit."""
        check_init(module, objective, self.init)
        self.check_module(objective, module)

    def check_module(self, objective: Objective, module: nn.Module) -> None:
        """Raise InvalidInput as ``check`` does, except for ``init``."""
        check_settings(self, objective)
        check_no_tables(self, module)
        if self.chunks > 1 and objective.micro_batches > self.stages and objective.micro_batches % self.stages:
            raise InvalidInput(
                f"microBatches is {objective.micro_batches}, and schedule is 'interleaved' on {self.stages} stages; "
                "expected a multiple of the stages."
            )
        for name, part in module.named_modules():
            if keeps_statistics(part):
                raise InvalidInput(
                    f"layout is Pipelined, and {name} is batch normalisation, which would see copies of rows; expected "
                    "nn.GroupNorm or nn.LayerNorm."
                )
            if type(part).get_extra_state != nn.Module.get_extra_state:
                raise InvalidInput(f"layout is Pipelined, and {name or 'the model'} has extra state; expected buffers.")
        if self.split is not None:
            stages_of(module, self.split)
        elif not is_sequence(module):
            raise InvalidInput(
                f"layout is Pipelined, and the model is a {type(module).__name__}; expected an nn.Sequential, or names "
                "of modules in split."
            )

    def place(self, objective: Objective, world: World, feed: Feed) -> PipelinedReplica:
        """Build this worker's stages of the model."""
        open_axes(world, grid({"replica": world.size // self.stages, "stage": self.stages}, world.size))
        replicas = world.group("replica")
        weights = InitialWeights.of(objective, world, self.init)
        self.check_module(objective, weights.module)
        workers = Workers(replicas, replicas, world.group("stage"))
        return self.with_split(objective, weights, feed).build(objective, weights, {}, workers, feed)

    def with_split(self, objective: Objective, weights: InitialWeights, feed: Feed) -> Pipelined:
        """The layout with ``split``, which rank 0 finds if it is not set; a collective."""
        if self.split is not None:
            return self
        return replace(self, split=tuple(self._firsts(objective, weights.module, weights.world, feed)))

    def build(
        self, objective: Objective, weights: InitialWeights, inner: Slices, workers: Workers, feed: Feed
    ) -> PipelinedReplica:
        """This worker's stages of the model, with whole parameters, or the slices of a layout within this one.

        The layout has a ``split``.
        """
        module, group = weights.module, weights.world.group("stage")
        parts = stages_of(module, self.split)
        mine = {number: parts[number] for number in range(group.rank, self.parts, self.stages)}
        held = {id(value) for part in mine.values() for value in part.parameters()}
        slices: Slices = {
            name: inner.get(name) or Slice.whole(value.shape) if id(value) in held else _nothing_of(value.shape)
            for name, value in module.named_parameters(remove_duplicate=False)
            if id(value) in held or value.dim()
        }
        names = {name for name, value in module.named_parameters() if id(value) in held}
        weights.fill(weights.deal({name: one for name, one in slices.items() if name in names}))
        _forget_buffers(parts, mine)
        rows = self._rows(objective, feed.most_rows(workers.partners.ranks))
        pipeline = StageSchedule(self.schedule, self.parts, mine, group, rows)
        replica = PipelinedReplica(objective, module, workers, pipeline, slices)
        replica.layout_state = {"stages": [*self.split]}
        return replica

    def _rows(self, objective: Objective, most: int) -> int:
        """Rows of a micro-batch, if a step has up to ``most`` rows."""
        micro_batches = objective.micro_batches
        if most < micro_batches:
            raise InvalidInput(
                f"batchSize gives a pipeline {most} rows of a step, and microBatches is {micro_batches}; expected a "
                "row in each micro-batch."
            )
        return -(-most // micro_batches)

    def _firsts(self, objective: Objective, module: nn.Module, world: World, feed: Feed) -> list[str]:
        """The names of the first layers of the stages after the first one, as rank 0 finds them."""
        names = [name for name, _ in children(module)]
        saved = feed.saved().get("stages", []) if world.rank == 0 else []
        if len(firsts := world.group().gather(saved)[0]) == self.parts - 1 and {*firsts} <= {*names}:
            return [*firsts]  # a resume has the stages of the run
        batches, cuts = world.group().gather(feed.sample()), tuple[int, ...]()
        if world.rank == 0:
            batch = next(batch for batch in batches if batch.rows)
            layers = [child for _, child in children(module)]
            inputs = arguments(batch.to(world.device).inputs)
            sizes = [sum(value.nbytes for value in layer.parameters()) for layer in layers]
            trained = [any(value.requires_grad for value in layer.parameters()) for layer in layers]
            cuts = best_cuts(layer_seconds(layers, inputs), sizes, self.parts, self.max_bytes, trained)
        return [names[first] for first in world.group().gather(cuts)[0][1:]]


class PipelinedReplica(ModuleReplica):
    """This worker's stages of a replica; the worker with the last stage reports."""

    overlaps = False
    splits_batches = True
    has_all_modules = False

    def __init__(
        self, objective: Objective, module: nn.Module, workers: Workers, pipeline: StageSchedule, slices: Slices
    ) -> None:
        super().__init__(objective, module, workers)
        self.reports, self.slice_group = pipeline.is_last, workers.partners
        self.hold(slices)
        self._pipeline, self.sent = pipeline, SentBytes()
        own = [group["params"] for group in super().state_dict()["shared"]["optimizer"]["param_groups"]]
        groups = pipeline.group.gather(own)
        if len({*map(len, groups)}) > 1:
            raise InvalidInput(
                f"optimizer has {[*map(len, groups)]} parameter groups on the stages; expected equal numbers of them."
            )
        self._groups = [[name for part in names for name in part] for names in zip(*groups, strict=True)]

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Run forward and backward on all micro-batches of a batch; return the local mean loss."""
        self.output, micro_batches = None, self._objective.micro_batches
        loss = self.parameters[0].new_zeros(())
        if batch.weight:
            parts = [part for part, _ in batch.split(micro_batches)]
            outputs: dict[int, Tensor] = {}
            losses: list[Tensor] = []

            def weighted(output: Tensor, number: int) -> Tensor:
                part, outputs[number] = parts[number], output.detach()[: parts[number].rows]
                if not part.weight:
                    return output.sum() * 0.0
                losses.append(self._criterion(output[: part.rows], part) * part.micro_fraction)
                return losses[-1]

            self.sent.count = 0  # of exchanges within stages
            enter_phase("forward")
            self._pipeline.loss = weighted
            with self._autocast:
                self._pipeline.run(batch, micro_batches, backward=True)
            enter_phase("other")
            self.bytes_per_step = self._pipeline.sent(micro_batches) + self.sent.count
            if losses:
                loss = torch.stack([one.detach() for one in losses]).sum()
                self.output = torch.cat([outputs[number] for number in range(micro_batches)])
        self.deliver(batch.weight_fraction)
        return loss

    def evaluate(self, batch: Batch) -> Any:
        """The output for a batch on the worker that reports; None on the others, and if the batch's weight is 0."""
        if not batch.weight:
            return None
        outputs: dict[int, Tensor] = {}
        count = self._pipeline.passes(batch.rows)
        parts = [part for part, _ in batch.split(count)]

        def take(output: Tensor, number: int) -> Tensor:
            outputs[number] = output[: parts[number].rows]
            return output.new_zeros(())

        self._pipeline.loss = take
        with slow_attention():
            self._pipeline.run(batch, count, backward=False)
        return torch.cat([outputs[number] for number in range(count)]) if outputs else None

    def state_dict(self) -> dict[str, Any]:
        """Module, optimizer and scheduler; groups of the optimizer name the parameters of all stages."""
        state = super().state_dict()
        groups = zip(state["shared"]["optimizer"]["param_groups"], self._groups, strict=True)
        state["shared"]["optimizer"]["param_groups"] = [options | {"params": names} for options, names in groups]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of this worker's stages, from a state of these or of all parameters."""
        names, shared = dict(self.module.named_parameters(remove_duplicate=False)), dict(state["shared"])
        shared["parameters"] = {name: one for name, one in shared["parameters"].items() if name in names}
        groups = shared["optimizer"]["param_groups"]
        shared["optimizer"] = {
            **shared["optimizer"],
            "state": {name: one for name, one in shared["optimizer"]["state"].items() if name in names},
            "param_groups": [
                group | {"params": [name for name in group["params"] if name in names]} for group in groups
            ],
        }
        super().load_state_dict(state | {"shared": shared})


def _nothing_of(shape: Sequence[int]) -> Slice:
    return Slice(tuple(shape), (range(0), *map(range, shape[1:])))


def _forget_buffers(parts: Sequence[nn.Module], mine: Collection[int]) -> None:
    """Remove the buffers of other workers' stages, which would stay as they are here."""
    held = {id(one) for number in mine for one in parts[number].modules()}
    for part in (part for stage in parts for part in stage.modules() if id(part) not in held):
        part._buffers.update(dict.fromkeys(part._buffers))
