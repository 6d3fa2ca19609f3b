"""Cost of an asynchronous checkpoint for the step loop, with two processes on this machine.

One gang trains a large model. A callback records the end of each step; events say when each checkpoint began and was
committed. Steps during a checkpoint are compared with the steps before and after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from torch import nn

from benchmarks.mlp import adam, mlp
from sparkdl import LocalCluster, Objective
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import Stopped
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.event import Event
from sparkdl.training.loop import Training

WORKERS = 2
BATCH = 256  # rows of each worker's batch
WIDTHS = (128, *(2048,) * 7, 1)  # 25 444 353 parameters: 102 MB of weights and 204 MB of Adam's state
_WARM = 8  # first steps, which do not count
_LEAST = 4  # fewest steps to compare with
COLUMNS = Columns((InputColumn("features"),), InputColumn("label"))


class Steps:
    """A callback that records the end of each step."""

    every_rank = False

    def on_step(self, run: Any) -> None:
        record("stepped", clock=run.clock)


@dataclass
class CheckpointWatch:
    """A training by its events.

    Attributes:
        ends: end of each step, Unix seconds.
        saved: step at which a checkpoint began -> time of its commit.
        enough: number of checkpoints after which ``stop`` is called.
        trouble: errors of checkpoints.
    """

    ends: list[float] = field(default_factory=list)
    saved: dict[int, float] = field(default_factory=dict)
    enough: int = 0
    stop: Callable[[], None] | None = None
    trouble: list[str] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if event.kind == "stepped":
            self.ends.append(event.time)
        if event.kind == "checkpoint":
            assert event.clock is not None
            self.trouble += event.payload["trouble"]
            self.saved[event.clock["step"]] = event.time
            if self.stop is not None and len(self.saved) == self.enough:
                self.stop()

    def seconds(self, step: int, count: int) -> float:
        """Seconds of the ``count`` steps after this one."""
        return self.ends[step + count - 1] - self.ends[step - 1]

    def beside(self, step: int) -> int:
        """The last step that began before the commit of the checkpoint after this step."""
        return next(
            (each for each in range(step + 1, len(self.ends)) if self.ends[each - 1] > self.saved[step]), len(self.ends)
        )

    def steps(self, begin: int, end: int) -> list[float]:
        """Seconds of each step after step ``begin``, up to step ``end``."""
        return [self.seconds(step, 1) for step in range(begin, end)]


def train(cluster: LocalCluster, steps: int, every: int | str | None, *, enough: int = 0) -> CheckpointWatch:
    """Train one epoch of this many steps.

    Args:
        cluster: the workers.
        steps: number of steps.
        every: interval of checkpoints; None: no checkpoints.
        enough: checkpoints after which the training stops; 0: never.
    """
    rows = steps * BATCH * cluster.size
    numbers = np.random.default_rng(0)
    data = {"features": numbers.random((rows, WIDTHS[0]), np.float32), "label": numbers.random(rows, np.float32)}
    objective = Objective(partial(mlp, *WIDTHS), nn.MSELoss(), adam)
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder, suppress(Stopped):
        checkpoints = Checkpoints(folder, run="benchmark")
        course = CheckpointWatch(enough=enough, stop=partial(checkpoints.attempts.ask_to_stop, 0))
        checkpointer = None if every is None else Checkpointer(checkpoints, CheckpointInterval.of(every))
        training = Training(objective, BATCH * cluster.size, callbacks=(Steps(),), checkpointer=checkpointer)
        cluster.gang(training, data, COLUMNS, listener=course)
    if course.trouble:
        raise RuntimeError(f"there is no checkpoint: {course.trouble[0]}")
    return course


@dataclass(frozen=True)
class Lost:
    """Cost of one checkpoint.

    Attributes:
        step: mean seconds of a step without a checkpoint, before and after it.
        pause: extra seconds of the first step after its start.
        lost: extra seconds of all steps that began before its commit.
        saved: seconds from its start to its commit.
        interval: seconds from its start to the start of the next.
    """

    step: float
    pause: float
    lost: float
    saved: float
    interval: float

    @staticmethod
    def of(course: CheckpointWatch, before: int, step: int, after: int) -> Lost:
        """The cost of the checkpoint after a step.

        Args:
            course: the training.
            before: first step without a checkpoint before this one.
            step: of the checkpoint.
            after: step of the next checkpoint.
        """
        until = course.beside(step)
        plain = [*course.steps(before, step), *course.steps(until, after)]
        if len(plain) < _LEAST:
            raise RuntimeError(
                f"only {len(plain)} steps around the checkpoint after step {step} had no checkpoint beside them"
            )
        pace, pause = fmean(plain), course.seconds(step, 1)
        return Lost(
            pace,
            pause - pace,
            course.seconds(step, until - step) - (until - step) * pace,
            course.saved[step] - course.ends[step - 1],
            course.seconds(step, after - step),
        )

    @property
    def share(self) -> float:
        """Throughput with a checkpoint per interval, relative to none."""
        return 1 - self.lost / self.interval


def stall(cluster: LocalCluster, *, rounds: int, every: int = 12) -> list[Lost]:
    """A checkpoint every few steps.

    Args:
        cluster: the workers.
        rounds: checkpoints that count; one more comes first.
        every: steps between two checkpoints.
    """
    course = train(cluster, every * (rounds + 2), every)
    begun = range(every, every * (rounds + 3), every)
    return [
        Lost.of(course, course.beside(begun[each - 1]), begun[each], begun[each + 1]) for each in range(1, rounds + 1)
    ]


def throughput(cluster: LocalCluster, *, rounds: int, seconds: int = 30) -> list[Lost]:
    """A checkpoint every so many seconds of rank 0's clock.

    Args:
        cluster: the workers.
        rounds: checkpoints that count.
        seconds: between two checkpoints.
    """
    warm = train(cluster, 4 + _WARM, None)
    pace = fmean(warm.steps(_WARM, 4 + _WARM))
    # Three times the expected steps leave room for other work of the machine.
    most = int(3 * (rounds + 1.5) * seconds / pace)
    course = train(cluster, most, f"{seconds} seconds", enough=rounds + 1)
    begun = sorted(course.saved)
    if len(begun) <= rounds:
        raise RuntimeError(f"there were {len(begun)} checkpoints in {most} steps; expected {rounds + 1}")
    found, before = [], _WARM
    for step, after in pairwise(begun[: rounds + 1]):
        found.append(Lost.of(course, before, step, after))
        before = course.beside(step)
    return found
