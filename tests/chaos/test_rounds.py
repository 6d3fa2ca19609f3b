"""Rounds whose processes, driver or files fail, at every place, end as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import pytest

from benchmarks.hosts import LONG
from sparkdl.errors import InvalidInput
from tests.faults import Fault, flip
from tests.faults.rounds import DRIVER, PARTS, ROUNDS, assert_undisturbed, calls, checkpoints, locally, rows, run, saved

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def quiet(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quiet")
    result = run(pair, rows(), folder)
    assert_undisturbed(result, result, folder)
    assert len(calls(folder)) == ROUNDS * PARTS
    return result


def faults(folder: Path, *places: tuple[str, str, int, int]) -> list[Fault]:
    """Faults: how, phase, number of the round, shard."""
    marks = folder / "marks"
    marks.mkdir(parents=True, exist_ok=True)
    return [Fault(how, shard, number, f"{marks}/{phase}-{number}", phase) for how, phase, number, shard in places]


def happened(folder: Path) -> set[str]:
    return {path.name for path in (folder / "marks").iterdir()}


def runs_of_rounds(folder: Path) -> list[int]:
    """Number of mapped shards, by round."""
    return [len(calls(folder, number)) for number in range(ROUNDS)]


def test_rounds_survive_killed_processes_and_full_disk(pair, quiet, tmp_path):
    """Memories of which half is written, or that nobody reported, do not count and are deleted."""
    places = [("kill", "map", 0, 1), ("full", "memory", 2, 2), ("kill", "memory", 3, 0), ("kill", "remembered", 3, 1)]
    result = run(pair, rows(), tmp_path, faults(tmp_path, *places, ("kill", "mapped", 4, 0)))
    assert happened(tmp_path) == {"map-0", "memory-2", "memory-3", "remembered-3", "mapped-4"}
    assert_undisturbed(result, quiet, tmp_path)
    left = sorted(path.parent.name for path in (tmp_path / "memories").glob("*/*"))
    assert left == ["round-000005"] * PARTS + ["round-000006"] * PARTS


# Where a driver is killed, in one round each: before its checkpoint; in it; between memories and commit; after the
# commit; after all of it; while it maps a shard.
KILLED = ["apply", "shard", "rename", "renamed", "kept", "map"]


@pytest.fixture(scope="session", autouse=True)
def forks():
    """Forks processes that have imported everything; its server runs before any process is counted."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([locally.__module__])
    forkserver.ensure_running()
    return context


@contextmanager
def driver(forks, folder, planned):
    process = forks.Process(target=locally, args=(str(folder), planned, str(folder / "result")))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def test_same_command_resumes_after_driver_was_killed_in_every_round(forks, quiet, tmp_path):
    places = [("kill", phase, number, 2 if phase == "map" else DRIVER) for number, phase in enumerate(KILLED)]
    planned = faults(tmp_path, *places)
    for number, phase in enumerate(KILLED):
        with driver(forks, tmp_path, planned) as killed:
            killed.join(LONG)
            assert killed.exitcode == -signal.SIGKILL
        assert happened(tmp_path) == {f"{each}-{count}" for count, each in enumerate(KILLED[: number + 1])}
        committed = [path.parent.name for path in (tmp_path / "checkpoints").glob("attempt-*/manifest.json")]
        assert max((int(name[-10:]) for name in committed), default=0) == number + (phase in ("renamed", "kept"))
    with driver(forks, tmp_path, planned) as again:
        again.join(LONG)
        assert again.exitcode == 0
    assert_undisturbed(json.loads((tmp_path / "result").read_text()), quiet, tmp_path)
    # A committed round is not run again, even if the driver was killed right after the commit.
    assert runs_of_rounds(tmp_path) == [8, 8, 8, 4, 4, 7]


def test_damaged_round_runs_again_and_damaged_memory_raises(pair, quiet, tmp_path):
    folder, copy = tmp_path / "run", tmp_path / "copy"
    run(pair, rows(), folder, max_rounds=ROUNDS // 2)
    shutil.copytree(folder, copy)
    memories = [folder / "memories" / name for name in saved(folder)["memories"]]
    flip(memories[2])
    with pytest.raises(InvalidInput, match=f"shard 2 in round {ROUNDS // 2}: the saved state is damaged"):
        run(pair, rows(), folder)
    newest, _ = checkpoints(copy).latest()
    flip(copy / "checkpoints" / newest / "rounds")
    with pytest.warns(RuntimeWarning, match="resumes from the checkpoint before it"):
        result = run(pair, rows(), copy)
    assert result == quiet
    assert runs_of_rounds(copy) == [PARTS] * 2 + [2 * PARTS] + [PARTS] * 3
