"""Rounds of which a process or the driver goes, at every place, end as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import InvalidInput
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
from tests.hosts.hosts import LONG, until

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
    places = [("map", 0, 1), ("mapped", 3, 0)]
    found = run(pair, rows(), tmp_path, name, faults(tmp_path, "kill", *places))
    assert happened(tmp_path) == {"map-0", "mapped-3"}
    assert_as_if_nothing_had_happened(found, quiet(name), tmp_path, name)
    assert len(calls(tmp_path)) == ROUNDS * PARTS + len(places)


def test_both_processes_are_killed_as_they_write_parts_memories(pair, quiet, tmp_path):
    """Half of one is left, and a whole one that nobody was told of; the round takes neither, and they go with it."""
    found = run(pair, rows(), tmp_path, ADMM, faults(tmp_path, "kill", ("memory", 3, 0), ("remembered", 3, 1)))
    assert happened(tmp_path) == {"memory-3", "remembered-3"}
    assert_as_if_nothing_had_happened(found, quiet(ADMM), tmp_path, ADMM)
    left = sorted(path.parent.name for path in (tmp_path / "memories").glob("*/*"))
    assert left == ["round-000005"] * PARTS + ["round-000006"] * PARTS


def test_a_disk_that_is_full_for_a_moment(pair, quiet, tmp_path):
    """What the operating system refuses once is tried again; an error of a program would not be."""
    found = run(pair, rows(), tmp_path, ADMM, faults(tmp_path, "full", ("memory", 2, 2)))
    assert happened(tmp_path) == {"memory-2"}
    assert_as_if_nothing_had_happened(found, quiet(ADMM), tmp_path, ADMM)


# ---- drivers ---------------------------------------------------------------------------------------------------------

KILLED = ["apply", "shard", "rename", "renamed", "kept", "map"]
"""Where a driver is killed in each round: before it is saved, in the middle of that, between the parts' memories and
the commit, after that, after all of it, and while a part is mapped."""


@pytest.fixture(scope="session", autouse=True)
def forks() -> Any:
    """Makes processes that have imported everything; what makes them is there before anything is counted."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([locally.__module__])
    forkserver.ensure_running()
    return context


@contextmanager
def driver(forks: Any, folder: Path, given: list[Fault]) -> Iterator[Any]:
    """A driver that runs; it has ended after the block."""
    process = forks.Process(target=locally, args=(str(folder), ADMM, given, str(folder / "result")))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def test_the_driver_is_killed_in_every_round_and_the_same_command_goes_on(forks, quiet, tmp_path):
    places = [(phase, number, 2 if phase == "map" else DRIVER) for number, phase in enumerate(KILLED)]
    given = faults(tmp_path, "kill", *places)
    for number, phase in enumerate(KILLED):
        with driver(forks, tmp_path, given) as killed:
            killed.join(LONG)
            assert killed.exitcode == -signal.SIGKILL
        assert happened(tmp_path) == {f"{each}-{count}" for count, each in enumerate(KILLED[: number + 1])}
        assert rounds_of(tmp_path) == number + (phase in ("renamed", "kept"))
    with driver(forks, tmp_path, given) as again:
        again.join(LONG)
        assert again.exitcode == 0
    assert_as_if_nothing_had_happened(result(tmp_path), quiet(ADMM), tmp_path, ADMM)
    # A round whose commit was done is not run again, though the driver did not live to see it.
    assert [len(calls(tmp_path, number)) for number in range(ROUNDS)] == [8, 8, 8, 4, 4, 7]


def rounds_of(folder: Path) -> int:
    """How many rounds are committed."""
    names = [path.parent.name for path in (folder / "checkpoints").glob("attempt-*/manifest.json")]
    return max((int(name[-10:]) for name in names), default=0)


def result(folder: Path) -> Any:
    return json.loads((folder / "result").read_text())


def test_a_zombie_that_wakes_up_keeps_no_round(forks, pair, quiet, tmp_path):
    """A driver is stopped before it saves a round; another one goes on; in the middle of that the first one wakes."""
    with driver(forks, tmp_path, faults(tmp_path, "stop", ("apply", 2, DRIVER))) as zombie:
        until(lambda: " T " in Path(f"/proc/{zombie.pid}/stat").read_text(), "a driver that is stopped")

        def wake(row: dict[str, Any]) -> None:
            if row["round"] == 3:
                os.kill(zombie.pid, signal.SIGCONT)
                zombie.join(LONG)

        found = run(pair, rows(), tmp_path, ADMM, listener=wake)
        assert zombie.exitcode == 1
    assert result(tmp_path)["error"].startswith("Fenced: attempt 0 may not commit")
    assert found == quiet(ADMM)
    assert [len(calls(tmp_path, number)) for number in range(ROUNDS)] == [4, 4, 8, 4, 4, 4]


# ---- what lies on the disk -------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(pair, tmp_path):
    """The folder of a run that has done half of its rounds, and the files of its memories."""
    run(pair, rows(), tmp_path, ADMM, max_rounds=ROUNDS // 2)
    return tmp_path, [tmp_path / "memories" / name for name in saved(tmp_path, ADMM)["memories"]]


def test_memories_that_no_round_names_are_not_missed(pair, quiet, stopped):
    folder, memories = stopped
    others = [path for path in (folder / "memories").glob("*/*") if path not in memories]
    assert len(others) == PARTS
    for path in others:
        path.unlink()
    assert_as_if_nothing_had_happened(run(pair, rows(), folder, ADMM), quiet(ADMM), folder, ADMM)


def test_a_memory_that_is_damaged_is_refused(pair, stopped):
    folder, memories = stopped
    flip(memories[2])
    with pytest.raises(InvalidInput, match=f"shard 2 in round {ROUNDS // 2}: the saved state is damaged"):
        run(pair, rows(), folder, ADMM)


def test_a_round_that_is_damaged_is_run_again(pair, quiet, stopped):
    """The memories that the round before it names are still there."""
    folder, _ = stopped
    newest, _ = checkpoints(folder, ADMM).latest()
    flip(folder / "checkpoints" / newest / "rounds")
    with pytest.warns(RuntimeWarning, match="resumes from the checkpoint before it"):
        found = run(pair, rows(), folder, ADMM)
    assert found == quiet(ADMM)
    assert [len(calls(folder, number)) for number in range(ROUNDS)] == [PARTS] * 2 + [2 * PARTS] + [PARTS] * 3


@pytest.mark.parametrize("parts", [PARTS - 1, PARTS + 1])
def test_a_run_goes_on_with_the_parts_that_it_began_with(pair, stopped, parts):
    folder, _ = stopped
    with pytest.raises(InvalidInput, match=f"96 rows in {PARTS} shards, and the data has 96 rows in {parts} shards"):
        run(pair, rows(), folder, ADMM, parts=parts)
