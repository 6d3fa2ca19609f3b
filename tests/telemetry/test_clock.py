"""The clock counts what the gang has done."""

from __future__ import annotations

import json

from sparkdl.telemetry.clock import Clock


def test_a_clock_starts_at_nothing() -> None:
    assert Clock() == Clock(epoch=0, step=0, samples=0)


def test_steps_samples_and_epochs() -> None:
    clock = Clock()
    for rows in (256, 256, 0, 17):
        clock.tick(rows)
    clock.end_epoch()
    assert clock == Clock(epoch=1, step=4, samples=529)


def test_the_state_is_plain_data_and_comes_back() -> None:
    clock = Clock(3, 1200, 2**60)
    state = clock.state_dict()
    assert json.loads(json.dumps(state)) == state == {"epoch": 3, "step": 1200, "samples": 2**60}
    other = Clock(9, 9, 9)
    other.load_state_dict(state)
    assert other == clock


def test_a_state_does_not_follow_its_clock() -> None:
    clock = Clock()
    state = clock.state_dict()
    clock.tick(5)
    assert state == {"epoch": 0, "step": 0, "samples": 0}
    other = Clock()
    other.load_state_dict(state)
    other.tick(1)
    assert state["step"] == 0
