"""Rounds of which a process or the driver goes end as if nothing had been; one in a round that was kept is not missed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import InvalidInput
from tests.chaos.drivers import ends
from tests.faults import Fault, flip
from tests.faults.round_runs import (
    ALGORITHMS,
    PARTS,
    ROUNDS,
    assert_as_if_nothing_had_happened,
    checkpoints,
    locally,
    rows,
    run,
    saved,
)
from tests.faults.rounds import DRIVER, calls
from tests.sessions import ROOT, command

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

ADMM = "ConsensusADMM"
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture(scope="module")
def quiet(pair, tmp_path_factory):
    """What a run of an algorithm comes to when nothing happens."""
    found: dict[str, Any] = {}

    def of(name):
        if name not in found:
            folder = tmp_path_factory.mktemp("quiet")
            found[name] = run(pair, rows(), folder, name)
            assert_as_if_nothing_had_happened(found[name], found[name], folder, name)
            assert len(calls(folder)) == ROUNDS * PARTS
        return found[name]

    return of


def faults(folder: Path, how: str, *places: tuple[str, int, int]) -> list[Fault]:
    """Faults at some places: phase, number of the round, part."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    return [Fault(how, part, number, f"{folder}/marks/{phase}-{number}", phase) for phase, number, part in places]


def happened(folder: Path) -> set[str]:
    return {path.name for path in (folder / "marks").iterdir()}


# ---- processes -------------------------------------------------------------------------------------------------------


@each_algorithm
def test_processes_are_killed_in_several_rounds(pair, quiet, tmp_path, name):
    places = [("map", 0, 1), ("mapped", 2, 0), ("map", 5, 3)]
    found = run(pair, rows(), tmp_path, name, faults(tmp_path, "kill", *places))
    assert happened(tmp_path) == {"map-0", "mapped-2", "map-5"}
    assert_as_if_nothing_had_happened(found, quiet(name), tmp_path, name)
    assert len(calls(tmp_path)) == ROUNDS * PARTS + len(places)


def test_processes_are_killed_as_they_write_a_parts_memory(pair, quiet, tmp_path):
    """Half of one is left, and a whole one that nobody was told of; the round takes neither."""
    places = [("memory", 1, 0), ("remembered", 2, 3), ("memory", 5, 1)]
    found = run(pair, rows(), tmp_path, ADMM, faults(tmp_path, "kill", *places))
    assert happened(tmp_path) == {"memory-1", "remembered-2", "memory-5"}
    assert_as_if_nothing_had_happened(found, quiet(ADMM), tmp_path, ADMM)
    left = [path.name for path in (tmp_path / "memories").iterdir()]
    assert sum(name.endswith(".tmp") for name in left) == 2
    # The first round only weighs the rows.
    assert sum(not name.endswith(".tmp") for name in left) == (ROUNDS - 1) * PARTS + 1


def test_both_processes_at_once(pair, quiet, tmp_path):
    found = run(pair, rows(), tmp_path, ADMM, [Fault("kill", part, 3, f"{tmp_path}/{part}", "map") for part in (0, 1)])
    assert {"0", "1"} <= {path.name for path in tmp_path.iterdir()}
    assert_as_if_nothing_had_happened(found, quiet(ADMM), tmp_path, ADMM)


def test_a_disk_that_is_full_for_a_moment(pair, quiet, tmp_path):
    """What the operating system refuses once is tried again; an error of a program would not be."""
    found = run(pair, rows(), tmp_path, ADMM, faults(tmp_path, "full", ("memory", 2, 2)))
    assert happened(tmp_path) == {"memory-2"}
    assert_as_if_nothing_had_happened(found, quiet(ADMM), tmp_path, ADMM)


# ---- drivers ---------------------------------------------------------------------------------------------------------


@contextmanager
def driver(folder: Path, name: str, given: list[Fault]) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that runs; whatever is left of it and its processes is killed at the end of the block."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        command(locally, folder, name, [asdict(fault) for fault in given], timeout=100),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_driver_is_killed_again_and_again_and_the_same_command_goes_on(quiet, spool, tmp_path):
    """Before a round is saved, in the middle of that, between the memories and the commit, after it, and in a round."""
    given = faults(tmp_path, "kill", *[(phase, number, DRIVER) for number, phase in enumerate(KILLED)])
    given += faults(tmp_path, "orphan", ("map", 5, 2))
    for number, phase in enumerate([*KILLED, "map"]):
        with driver(tmp_path, ADMM, given) as killed:
            assert killed.wait() == -signal.SIGKILL
        assert happened(tmp_path) == {
            f"{phase}-{round_}" for round_, phase in enumerate([*KILLED, "map"][: number + 1])
        }
        assert len(saved(tmp_path, ADMM)["history"]) == number + (phase in ("renamed", "kept")) if number else True
        assert all(ends(call.pid) for call in calls(tmp_path))
        for left in spool.iterdir():  # the packed rows
            shutil.rmtree(left)
    with driver(tmp_path, ADMM, given) as again:
        told, _ = again.communicate()
    assert again.returncode == 0
    assert_as_if_nothing_had_happened(json.loads(told.splitlines()[-1]), quiet(ADMM), tmp_path, ADMM)
    # A round whose commit was done is not run again, though the driver did not live to see it.
    assert [len(calls(tmp_path, number)) for number in (KILLED.index("renamed"), KILLED.index("kept"))] == [PARTS] * 2


KILLED = ["apply", "shard", "rename", "renamed", "kept"]


@pytest.mark.slow
def test_a_zombie_that_wakes_up_keeps_no_round(pair, quiet, tmp_path):
    """A driver is stopped with its processes before a commit; another one goes on; in the middle of it the first wakes."""
    with driver(tmp_path, ADMM, faults(tmp_path, "freeze", ("rename", 2, DRIVER))) as zombie:
        assert os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT).si_status == signal.SIGSTOP

        def wake(row: dict[str, Any]) -> None:
            if row["round"] == 3:
                os.killpg(zombie.pid, signal.SIGCONT)
                assert ends(zombie.pid)

        found = run(pair, rows(), tmp_path, ADMM, listener=wake)
        _, told = zombie.communicate()
    assert zombie.returncode == 1
    assert b"Fenced: attempt 0 may not commit" in told
    assert_as_if_nothing_had_happened(found, quiet(ADMM), tmp_path, ADMM)
    assert [len(calls(tmp_path, number)) for number in range(ROUNDS)] == [PARTS] * 2 + [2 * PARTS] + [PARTS] * 3


# ---- what lies on the disk -------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(pair, tmp_path):
    """The folder of a run that has done half of its rounds, and the files of its memories."""
    run(pair, rows(), tmp_path, ADMM, max_rounds=ROUNDS // 2)
    return tmp_path, [tmp_path / "memories" / name for name in saved(tmp_path, ADMM)["memories"]]


def test_memories_that_no_round_names_are_not_missed(pair, quiet, stopped):
    folder, memories = stopped
    others = [path for path in (folder / "memories").iterdir() if path not in memories]
    assert len(others) == (ROUNDS // 2 - 2) * PARTS
    for path in others:
        path.unlink()
    assert_as_if_nothing_had_happened(run(pair, rows(), folder, ADMM), quiet(ADMM), folder, ADMM)


def test_a_memory_that_is_damaged_is_refused(pair, stopped):
    folder, memories = stopped
    flip(memories[2])
    with pytest.raises(InvalidInput, match=f"part 2 in round {ROUNDS // 2}: the saved state is damaged"):
        run(pair, rows(), folder, ADMM)


def test_a_round_that_is_damaged_is_run_again(pair, quiet, stopped):
    """The memories that the round before it names are still there."""
    folder, _ = stopped
    newest, _ = checkpoints(folder, ADMM).latest()
    flip(folder / "checkpoints" / newest / "rounds")
    with pytest.warns(RuntimeWarning, match="The one before it is taken"):
        found = run(pair, rows(), folder, ADMM)
    assert found == quiet(ADMM)
    assert [len(calls(folder, number)) for number in range(ROUNDS)] == [PARTS] * 2 + [2 * PARTS] + [PARTS] * 3


@pytest.mark.parametrize("parts", [PARTS - 1, PARTS + 1])
def test_a_run_goes_on_with_the_parts_that_it_began_with(pair, stopped, parts):
    folder, _ = stopped
    with pytest.raises(InvalidInput, match=f"were run on {PARTS} parts of 96 rows, and now there are {parts} of 96"):
        run(pair, rows(), folder, ADMM, parts=parts)
