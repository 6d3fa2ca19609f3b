"""The distance between two checkpoints."""

from __future__ import annotations

import math

import pytest

from sparkdl.checkpoint.interval import CheckpointInterval, young_interval
from sparkdl.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (500, CheckpointInterval(500, "steps")),
        ("1 epoch", CheckpointInterval(1, "epochs")),
        ("3 epochs", CheckpointInterval(3, "epochs")),
        ("30 seconds", CheckpointInterval(30, "seconds")),
        ("auto", CheckpointInterval(1, "auto")),
    ],
)
def test_distances(given, expected):
    assert CheckpointInterval.of(given) == expected


@pytest.mark.parametrize("given", [0, -1, True, 2.5, "", "0 epochs", "2 days", "epochs", "2epochs", None])
def test_what_is_no_distance(given):
    with pytest.raises(InvalidInput, match=r"checkpointInterval is .*; expected a number of steps"):
        CheckpointInterval.of(given)


def test_youngs_interval():
    assert young_interval(2.0, 3600.0) == pytest.approx(120.0)
    assert young_interval(0.001, 60.0) == 5.0


@pytest.mark.parametrize(
    ("given", "cost", "attempt", "expected"),
    [
        (7, 1.0, 0, math.inf),
        ("2 epochs", 1.0, 0, math.inf),
        ("30 seconds", None, 0, 30.0),
        ("auto", None, 3, 60.0),
        ("auto", 2.0, 0, 240.0),
        ("auto", 2.0, 3, 120.0),  # three failures: four times as many a day
    ],
)
def test_seconds_between_checkpoints(given, cost, attempt, expected):
    assert CheckpointInterval.of(given).seconds(cost, attempt) == expected
