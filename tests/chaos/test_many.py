"""Fifty kills of one run, at random places of random members: it ends as if there had been none."""

from __future__ import annotations

import os
import random
import resource

import pytest

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerLost
from tests.chaos.leavings import descriptors
from tests.chaos.runs import STEPS, check_checkpoints, check_rows, fit, undisturbed
from tests.faults import Fault
from tests.training.test_resume import assert_alike

KILLS, EPOCHS = 50, 8
IN_A_STEP = ("feed", "backward", "reduce", "step")
IN_A_CHECKPOINT = ("shard", "written", "manifest", "rename", "renamed")


def plan(folder, seed=20):
    """Faults whose places are all different; each is reached, for attempts pass every step that is not done."""
    draw = random.Random(seed)
    last = STEPS * EPOCHS
    places: set[tuple[str, int, int]] = set()
    while len(places) < KILLS:
        phase = draw.choice([*IN_A_STEP, *IN_A_STEP, *IN_A_CHECKPOINT, "validation", "joined"])
        rank = 0 if phase in ("manifest", "rename", "renamed") else draw.randrange(2)
        step = draw.randrange(1, last + 1)
        if phase in IN_A_CHECKPOINT:
            step = 2 * draw.randrange(1, last // 2 + 1)
        elif phase == "validation":
            step = STEPS * draw.randrange(1, EPOCHS + 1)
        elif phase == "joined":
            step = draw.randrange(KILLS // 2)
        places.add((phase, rank, step))
    return [Fault("kill", rank, step, f"{folder}/{phase}-{rank}-{step}", phase) for phase, rank, step in sorted(places)]


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills(pair, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    whole = undisturbed(pair, epochs=EPOCHS)
    supervisor = Supervisor(pair, back_off=0, max_restarts=KILLS + 10)
    seen = []

    def listener(event):
        if event.kind == "restart":
            seen.append((len(descriptors(os.getpid())), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    found = fit(supervisor, tmp_path, *plan(marks), epochs=EPOCHS, listener=listener)
    assert_alike(found, whole)
    check_rows(tmp_path, epochs=EPOCHS)
    check_checkpoints(tmp_path, STEPS * EPOCHS)
    assert len(list(marks.iterdir())) == KILLS
    assert {type(failure) for failure in supervisor.failures} == {WorkerLost}
    assert KILLS / 2 < len(supervisor.failures) <= KILLS  # two may come to their places at once
    opened, memory = zip(*seen, strict=True)
    assert max(opened[5:]) <= max(opened[:5])  # descriptors of the driver, as each attempt ends
    assert memory[-1] - memory[4] < 64 << 10  # KiB
