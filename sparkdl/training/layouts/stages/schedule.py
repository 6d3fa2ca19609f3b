"""torch's schedules over this worker's stages, with micro-batches of a fixed number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from sparkdl.cluster.group.peers import reaching_peers
from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch, Ragged, arguments
from sparkdl.errors import InvalidInput, SparkdlError, WorkerFailed
from sparkdl.training.objective.loss import kept_buffers, shapes
from sparkdl.training.rng import forked

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class StageSchedule:
    """torch's schedule over this worker's stages, opened by the first batch, whose rows tell the shapes.

    Args:
        kind: one of ``SCHEDULES``.
        count: stages of the model; with ``"interleaved"`` more than workers.
        parts: this worker's stages, by number.
        group: the workers of the stages, one of each.
        rows: of a micro-batch.
    """

    def __init__(self, kind: str, count: int, parts: Mapping[int, nn.Module], group: Group, rows: int) -> None:
        self._kind, self._count, self.group, self.rows = kind, count, group, rows
        self._parts = {number: _Stage(part) for number, part in parts.items()}
        self.is_first, self.is_last = 0 in parts, count - 1 in parts
        self._schedules: dict[tuple[int, bool], Any] = {}
        self._stages: dict[tuple[int, bool], list[Any]] = {}
        self._metas: dict[bool, list[tuple[Tensor, ...]]] = {}  # of training, under autocast, and of evaluation
        self.loss: Callable[[Tensor, int], Tensor] = _no_loss

    def run(self, batch: Batch, micro_batches: int, *, backward: bool) -> None:
        """Run the schedule on micro-batches of the batch's rows, with ``loss(output, micro-batch)`` on the last stage.

        Raises InvalidInput if the shape of a row differs from earlier batches.
        """
        if any(isinstance(column, Ragged) and column.padding is None for column in batch.inputs):
            raise InvalidInput(
                "an input column has rows of several lengths, and a pipeline takes rows of one shape. Set a padding in "
                "columnSpecs, or let collate pad all batches to one length."
            )
        inputs = [_filled(value, micro_batches, self.rows) for value in arguments(batch.inputs)]
        if backward not in self._metas:
            self._metas[backward] = self._shapes([value[: self.rows] for value in inputs])
        expected = self._metas[backward][0]
        if [value.shape[1:] for value in inputs] != [meta.shape[1:] for meta in expected]:
            raise InvalidInput(
                f"a batch has rows of {shapes(inputs)}, and earlier ones had {shapes([*expected])}; a pipeline takes "
                "rows of one shape. Let collate pad all batches to one length."
            )
        key = micro_batches, backward
        if key not in self._schedules:
            self._stages[key], self._schedules[key] = self._schedule(micro_batches, self._metas[backward])
        schedule = self._schedules[key]
        target = torch.arange(micro_batches) if self.is_last else None
        call = schedule.step if backward else schedule.eval
        with reaching_peers(), _first_cause(), nullcontext() if backward else torch.no_grad():
            call(*(inputs if self.is_first else ()), target=target, losses=[] if self.is_last else None)
        self.loss = _no_loss  # it holds the batch
        for stage in self._stages[key]:
            stage.clear_runtime_states()  # activations

    def passes(self, rows: int) -> int:
        """Micro-batches that so many rows need in evaluation."""
        count, workers = -(-rows // self.rows), self.group.size
        return -(-count // workers) * workers if self._kind == "interleaved" else count

    def sent(self, micro_batches: int) -> int:
        """Bytes that this worker sends in a step: outputs forward, and gradients of inputs backward."""
        last, sent, metas = self._count - 1, 0, self._metas[True]
        for number in self._parts:
            sent += sum(one.nbytes for one in metas[number + 1]) if number < last else 0
            sent += sum(one.nbytes for one in metas[number]) if number else 0
        return micro_batches * sent

    def _schedule(self, micro_batches: int, metas: Sequence[tuple[Tensor, ...]]) -> tuple[list[Any], Any]:
        device = next(next(iter(self._parts.values())).parameters()).device
        stages: list[Any] = [
            PipelineStage(
                *(part, number, self._count, device, metas[number], metas[number + 1]), group=self.group.handle
            )
            for number, part in self._parts.items()
        ]
        options: dict[str, Any] = {
            "loss_fn": lambda output, number: self.loss(output, int(number)),
            "scale_grads": False,
        }
        if self._kind == "interleaved":
            return stages, ScheduleInterleaved1F1B(stages, micro_batches, **options)
        # Below as many micro-batches as stages, both schedules are the same, and torch takes the first one alone.
        alike = self._kind == "gpipe" or micro_batches < self.group.size
        return stages, (ScheduleGPipe if alike else Schedule1F1B)(stages[0], micro_batches, **options)

    def _shapes(self, inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The inputs of each stage and the outputs of the last one, without values; the partners run on these rows."""
        values, metas = tuple(inputs), [_meta(inputs)]
        for number in range(self._count):
            output = None
            if number in self._parts:
                with torch.no_grad(), kept_buffers(self._parts[number]), forked(inputs[0].device):
                    output = self._parts[number](*values)
            output = self.group.gather(output)[number % self.group.size]
            if not isinstance(output, Tensor):
                raise InvalidInput(f"stage {number} returned {shapes(output)}; expected one tensor [rows, ...].")
            values = (output.to(inputs[0].device),)
            metas.append((_meta(values)[0].requires_grad_(),))  # torch sends gradients of such tensors alone
        return metas


class _Stage(nn.Module):
    """A stage as torch's schedules need it: torch receives into leaf tensors, and sends contiguous ones."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self._in_place = any(getattr(one, "inplace", False) for one in part.modules())

    def forward(self, *inputs: Tensor) -> Any:
        output = self.part(*(value.clone() if self._in_place else value for value in inputs))
        return output.contiguous() if isinstance(output, Tensor) else output


@contextmanager
def _first_cause() -> Iterator[None]:
    """Raise the error of a stage's module, of which torch's own error has only the shapes."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__
        if cause is None or isinstance(error, SparkdlError):
            raise
        if isinstance(cause, SparkdlError):
            raise cause from None
        text = str(cause).rstrip(".")
        raise WorkerFailed(f"forward() or backward() of a stage raised {type(cause).__name__}: {text}.") from cause


def _filled(value: Tensor, micro_batches: int, rows: int) -> Tensor:
    """The rows of each micro-batch, as ``Batch.split`` makes them, and copies of the first row up to ``rows`` rows."""
    ends = [number * len(value) // micro_batches for number in range(micro_batches + 1)]
    parts = []
    for first, end in pairwise(ends):
        parts += [value[first:end], value[:1].expand(rows - end + first, *value.shape[1:])]
    return torch.cat(parts)


def _meta(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(value, device="meta") for value in values)


def _no_loss(output: Tensor, number: int) -> Tensor:
    return output.new_zeros(())
