"""What a checkpoint that is saved beside the training costs the step loop, on two processes of this machine.

One gang trains a large model. A hook takes down when each step ends, and the checkpoints' own events say when they
began and when they were in their place. Steps while a checkpoint is copied, packed, hashed and written are compared
with as many steps of the same run that follow, when nothing is saved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import fmean, median
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
        pause: seconds by which the first step after it was longer than a step.
        lost: seconds by which all steps that it was saved beside were longer.
        step: seconds of a step without one.
        saved: seconds from its beginning until it was in its place.
        share: throughput with it, divided by that without.
    """

    pause: float
    lost: float
    step: float
    saved: float
    share: float = 1.0


def stall(cluster: LocalCluster, *, rounds: int, window: int = 6) -> list[Lost]:
    """A checkpoint every two windows of steps; it has to be saved within the first one.

    Args:
        cluster: where.
        rounds: checkpoints that count; one comes before them.
        window: steps.
    """
    every = 2 * window
    course = train(cluster, every * (rounds + 2), every)
    found = []
    for step in range(2 * every, every * (rounds + 2), every):
        plain = course.seconds(step + window, window) / window
        pause = course.seconds(step, 1) - median(course.steps(step + window, step + every))
        lost = course.seconds(step, window) - window * plain
        found.append(Lost(pause, lost, plain, _saved(course, step, step + window)))
    return found


def throughput(cluster: LocalCluster, *, rounds: int, seconds: int = 30) -> list[Lost]:
    """A checkpoint every so many seconds; it has to be saved within half of them.

    From the beginning of a checkpoint to that of the next one, so many steps are taken. As long as they took, so many
    more could be taken at the pace of those in the second half, in which nothing is saved.

    Args:
        cluster: where.
        rounds: intervals that count; the time before the first checkpoint does not.
        seconds: between two checkpoints.
    """
    warm = train(cluster, 12, None)
    pace = fmean(warm.steps(4, 12))
    course = train(cluster, int((rounds + 1.5) * seconds / pace), f"{seconds} seconds")
    begun = sorted(course.saved)[:-1]  # the last one is that of the end
    found = []
    for step, after in pairwise(begun[: rounds + 1]):
        whole = course.seconds(step, after - step)
        half = next(each for each in range(step, after) if course.ends[each - 1] - course.ends[step - 1] > whole / 2)
        plain = fmean(course.steps(half, after))
        count = after - step
        pause = course.seconds(step, 1) - median(course.steps(half, after))
        found.append(Lost(pause, whole - count * plain, plain, _saved(course, step, half), count * plain / whole))
    return found


def _saved(course: Course, step: int, until: int) -> float:
    taken = course.saved[step] - course.ends[step - 1]
    if course.saved[step] > course.ends[until - 1]:
        raise RuntimeError(f"a checkpoint took {taken:.1f} s, and the steps it is compared with began before its end")
    return taken
