"""What a checkpoint that is saved beside the training costs the step loop, on two processes of this machine.

One gang trains a large model. A hook takes down when each step ends, and the checkpoints' own events say when they
began and when they were in their place. Steps while a checkpoint is copied, packed, hashed and written are compared
with those before and after them, when nothing is saved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from torch import nn

from benchmarks.mlp import adam, mlp
from sparkdl import LocalCluster, Objective
from sparkdl.checkpoint import Checkpoints
from sparkdl.events import Event, record
from sparkdl.feed.columns import Column, Columns
from sparkdl.keeper import CheckpointKeeper, Every
from sparkdl.train import Training

MEMBERS = 2
BATCH = 256  # rows of each member's batch
WIDTHS = (128, *(2048,) * 7, 1)  # 25 444 353 parameters: 102 MB of weights and 204 MB of Adam's state
_WARM = 8  # steps at the beginning that do not count
_LEAST = 4  # steps to compare with
COLUMNS = Columns((Column("features"),), Column("label"))


class Times:
    """A hook that tells the driver, at the end, when each step ended: seconds since the epoch."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_step(self, run: Any) -> None:
        self._ends.append(time.time())

    def on_end(self, run: Any) -> None:
        record("times", ends=self._ends)


@dataclass
class Course:
    """A training as the driver heard of it.

    Attributes:
        ends: when each step ended, the first one at index 0; seconds since the epoch.
        saved: for the step after which a checkpoint began, when it was in its place.
    """

    ends: Sequence[float] = ()
    saved: dict[int, float] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if event.kind == "times":
            self.ends = event.payload["ends"]
        if event.kind == "checkpoint":
            if event.payload["trouble"]:
                raise RuntimeError(f"there is no checkpoint: {event.payload['trouble']}")
            assert event.clock is not None
            self.saved[event.clock["step"]] = event.time

    def seconds(self, step: int, count: int) -> float:
        """How long the ``count`` steps after this one took."""
        return self.ends[step + count - 1] - self.ends[step - 1]

    def beside(self, step: int) -> int:
        """The last step that began before the checkpoint after this step was in its place."""
        return next(
            (each for each in range(step + 1, len(self.ends)) if self.ends[each - 1] > self.saved[step]), len(self.ends)
        )

    def steps(self, begin: int, end: int) -> list[float]:
        """Seconds of each step after step ``begin``, up to step ``end``."""
        return [self.seconds(step, 1) for step in range(begin, end)]


def train(cluster: LocalCluster, steps: int, every: int | str | None) -> Course:
    """Train for so many steps, in one epoch."""
    rows = steps * BATCH * cluster.size
    numbers = np.random.default_rng(0)
    data = {"features": numbers.random((rows, WIDTHS[0]), np.float32), "label": numbers.random(rows, np.float32)}
    objective = Objective(partial(mlp, *WIDTHS), nn.MSELoss(), adam)
    course = Course()
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        keeper = None
        if every is not None:
            keeper = CheckpointKeeper(Checkpoints(folder, run="benchmark"), Every.of(every))
        training = Training(objective, BATCH * cluster.size, hooks=(Times(),), keeper=keeper)
        cluster.gang(training, data, COLUMNS, listener=course)
    return course


@dataclass(frozen=True)
class Lost:
    """What one checkpoint cost.

    Attributes:
        step: seconds of a step beside which nothing is saved, the mean of those before and after it.
        pause: seconds by which the first step after it was longer.
        lost: seconds by which all steps were longer that began before it was in its place.
        saved: seconds from its beginning until it was in its place.
        interval: seconds from its beginning to that of the next one.
    """

    step: float
    pause: float
    lost: float
    saved: float
    interval: float

    @staticmethod
    def of(course: Course, before: int, step: int, after: int) -> Lost:
        """The cost of the checkpoint after a step.

        Args:
            course: the training.
            before: the step from which on nothing was saved, until this checkpoint.
            step: of the checkpoint.
            after: of the next one.
        """
        until = course.beside(step)
        plain = [*course.steps(before, step), *course.steps(until, after)]
        if len(plain) < _LEAST:
            raise RuntimeError(f"only {len(plain)} steps around the checkpoint after step {step} had none beside them")
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
        """Throughput with a checkpoint in every interval, divided by that without."""
        return 1 - self.lost / self.interval


def stall(cluster: LocalCluster, *, rounds: int, every: int = 12) -> list[Lost]:
    """A checkpoint every few steps.

    Args:
        cluster: where.
        rounds: checkpoints that count; one comes before them.
        every: steps.
    """
    course = train(cluster, every * (rounds + 2), every)
    begun = range(every, every * (rounds + 3), every)
    return [
        Lost.of(course, course.beside(begun[each - 1]), begun[each], begun[each + 1]) for each in range(1, rounds + 1)
    ]


def throughput(cluster: LocalCluster, *, rounds: int, seconds: int = 30) -> list[Lost]:
    """A checkpoint every so many seconds, as rank 0's clock tells.

    Args:
        cluster: where.
        rounds: checkpoints that count.
        seconds: between two of them.
    """
    warm = train(cluster, 4 + _WARM, None)
    pace = fmean(warm.steps(_WARM, 4 + _WARM))
    course = train(cluster, int((rounds + 1.5) * seconds / pace), f"{seconds} seconds")
    begun = sorted(course.saved)[:-1]  # the last one is that of the end
    found, before = [], _WARM
    for step, after in pairwise(begun[: rounds + 1]):
        found.append(Lost.of(course, before, step, after))
        before = course.beside(step)
    return found
