"""A run's bottlenecks, in numbers and in words."""

from __future__ import annotations

import pytest

from sparkdl.telemetry.bottlenecks import spending, verdict

EVEN = {"feed": 1.0, "forward": 3.0, "backward": 4.0, "exchange": 1.0, "update": 1.0}


def test_spending_by_phase_and_rank() -> None:
    slow = EVEN | {"forward": 9.0, "exchange": 0.0}
    summary = spending([EVEN, EVEN, slow], ["a", "b", "c"])
    assert summary["phases"] == {"feed": 1.0, "forward": 5.0, "backward": 4.0, "exchange": 0.666667, "update": 1.0}
    assert summary["phases_by_rank"] == [EVEN, EVEN, slow]
    assert summary["skew_by_rank"] == [1.0, 1.0, pytest.approx(15 / 9, abs=1e-3)]
    assert summary["slowest_rank"] == 2
    assert summary["verdict"] == verdict([EVEN, EVEN, slow], ["a", "b", "c"])


def test_missing_phase_is_0() -> None:
    summary = spending([{"forward": 1.0}, {"forward": 1.0, "checkpoint": 0.5}])
    assert summary["phases_by_rank"] == [{"forward": 1.0, "checkpoint": 0.0}, {"forward": 1.0, "checkpoint": 0.5}]


@pytest.mark.parametrize(
    ("phases", "sentence"),
    [
        (
            [EVEN, EVEN],
            "Compute-bound: 80% of the time goes into the model, 10% into waiting for batches, 10% into the exchange.",
        ),
        ([{"feed": 6.0, "forward": 4.0}], "Feed-bound: 60% of the time is spent waiting for batches"),
        ([{"forward": 4.0, "exchange": 6.0}] * 2, "Exchange-bound: 60% of the time goes into the exchange even on"),
        ([{"forward": 4.0, "validate": 6.0}], "Bound by validation: 60% of the time."),
        ([{"forward": 8.0, "checkpoint": 2.0}], "20% goes into waiting for checkpoints to be copied."),
        ([{"forward": 8.0, "callbacks": 2.0}], "20% goes into callbacks."),
    ],
)
def test_verdict_names_bottleneck(phases, sentence) -> None:
    assert sentence in verdict(phases)


def test_wait_for_slowest_rank_is_not_exchange_bound() -> None:
    waiting = EVEN | {"exchange": 19.0}
    text = verdict([waiting, EVEN | {"feed": 19.0}, waiting], ["a", "b", "c"])
    assert "Exchange-bound" not in text
    assert "Feed-bound" in text
    assert "Rank 1 on b is the slowest, 3.0 times as busy as the median, most of it in feed" in text
    assert "others wait up to 64% of their time" in text


def test_no_phases_have_no_verdict() -> None:
    assert verdict([]) == verdict([{}, {}]) == ""
    assert "slowest" not in verdict([EVEN, EVEN | {"forward": 3.5}])
    summary = spending([])
    assert (summary["phases"], summary["slowest_rank"], summary["verdict"]) == ({}, None, "")
