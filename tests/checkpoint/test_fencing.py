"""Which attempt may commit, and what the members of one restore."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint.manifest import Digest, Manifest, Name
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import CheckpointDamaged, Fenced
from sparkdl.io import files
from tests.checkpoint.saving import at, content, fenced, flip, newest, save, there

# ---- attempts --------------------------------------------------------------------------------------------------------


def test_an_older_attempt_may_not_commit(directory: str) -> None:
    old = fenced(directory)
    assert (old.next_attempt(), save(old, 5)) == (1, old.name(at(5), 0))
    old.fence(0)
    new = fenced(directory, 1)
    for call in (lambda: save(old, 6), lambda: old.fence(0)):
        with pytest.raises(Fenced, match=r"attempt 0 may not commit to .*: attempt 1 was announced by process \d+ on"):
            call()
    save(new, 3, attempt=1)
    assert newest(new) == 3
    assert there(new) == [old.name(at(5), 0), new.name(at(3), 1)]


def test_two_drivers_with_one_attempt(local: Checkpoints) -> None:
    second = Checkpoints(local.directory, run="digits")
    with pytest.raises(Fenced, match="for another fit, wait until that has ended"):
        second.fence(0)
    Checkpoints(local.directory, run="digits").folder.delete("attempts/0000.json")  # as if both had been as quick
    second.fence(0)
    with pytest.raises(Fenced):
        save(local, 1)
    save(second, 2)
    with pytest.raises(Fenced, match=r"attempt 4 was not announced .*; call fence\(4\)"):
        save(second, 2, attempt=4)


def commits(checkpoints: Checkpoints, step: int, attempt: int) -> Iterator[str]:
    """The steps of one member's checkpoint."""
    name = checkpoints.name(at(step), attempt)
    digest = checkpoints.write(name, "00000", content(step, 0)).result()
    yield "written"
    manifest = Manifest(name, "digits", attempt, at(step), 1, {"00000": digest})
    yield from checkpoints._commit(Name(attempt, 0, step), manifest)


def zombie(checkpoints: Checkpoints, log: list[str]) -> Iterator[str]:
    try:
        for step in commits(checkpoints, 30, 0):
            log.append(f"zombie {step}")
            yield step
    except Fenced:
        log.append("zombie fenced")


def successor(checkpoints: Checkpoints, log: list[str]) -> Iterator[str]:
    checkpoints.fence(1)
    log.append("announced")
    yield "announced"
    found = checkpoints.latest(verify=False)
    assert found is not None
    yield "picked"
    assert found[1].read("00000") == content(found[1].manifest.clock.step, 0)
    yield "restored"
    for step in commits(checkpoints, 20, 1):
        if step in ("written", "committed"):
            log.append(f"successor {step}")
            yield step


@pytest.mark.slow
@pytest.mark.parametrize("keep", [2, 3])
def test_a_zombie_at_any_time(keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_sync", lambda path: None)
    for number, turns in enumerate(combinations(range(11), 5)):
        directory, log = f"{tmp_path}/{number}", list[str]()
        old = fenced(directory, keep=keep)
        save(old, 5, shards=1)
        save(old, 10, shards=1)
        new = Checkpoints(directory, run="digits", keep=keep)
        two = [successor(new, log), zombie(old, log)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for turn in range(11):
                next(two[turn in turns], None)
                step = newest(Checkpoints(directory, run="digits"))
                assert step == (20 if "successor committed" in log else 30 if "zombie committed" in log else 10), log
        if "zombie checked" in log:
            assert "announced" not in log[: log.index("zombie checked")]
        if "announced" in log and "zombie committed" in log:
            assert "zombie checked" in log[: log.index("announced")]
        assert there(new)[-1] == new.name(at(20), 1)


# ---- all members restore the same ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_members_restore_the_newest_that_all_can_read(damaged: int, local: Checkpoints) -> None:
    for step in (1, 2, 3)[: damaged + 1]:
        save(local, step)
    for step in (1, 2, 3)[1 : damaged + 1] + ((1,) if not damaged else ()):
        path = f"{local.name(at(step), 0)}/{step % 3:05d}"
        if local.folder.exists(path):
            local.folder.write(path, flip(local.folder.read(path)))
    answers: dict[str, list[dict[str, Any]]] = {}
    barrier = threading.Barrier(3, timeout=30)

    def member(rank: int) -> Any:
        def agree(key: str, value: Any) -> list[dict[str, Any]]:
            answers.setdefault(key, [{}] * 3)
            barrier.wait()
            answers[key][rank] = json.loads(json.dumps(value))
            barrier.wait()
            return answers[key]

        return restore(local, rank, agree, lambda manifest: [f"{rank:05d}"])

    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(3) as pool:
        warnings.simplefilter("always")
        found = list(pool.map(member, range(3)))
    if damaged == 1:
        assert [shards for _, shards in found] == [{f"{rank:05d}": content(1, rank)} for rank in range(3)]
        assert len({manifest.name for manifest, _ in found}) == len(caught) == 1
    else:
        assert found == [None] * 3
        assert len(caught) == (1 if not damaged else 2)


def test_a_shard_on_another_hosts_disk_is_not_committed(directory: str) -> None:
    checkpoints = fenced(directory)
    name, digest = checkpoints.name(at(1), 0), Digest.of("00001", b"on another host's disk")
    with pytest.raises(CheckpointDamaged, match="its shard 00001 is missing"):
        checkpoints.commit(name, [digest], at(1), world_size=1)
    assert checkpoints.latest() is None


# ---- requests to stop ------------------------------------------------------------------------------------------------


def test_a_request_to_stop_is_of_one_attempt_and_its_number_is_not_used_again(directory: str) -> None:
    first = fenced(directory)
    save(first, 5)
    second = Checkpoints(directory, run="digits")
    assert not second.asked_to_stop(0)
    first.ask_to_stop(0)
    first.ask_to_stop(0)
    assert second.asked_to_stop(0)
    save(first, 6)  # it may commit: that is what it is asked for
    assert (first.attempts.announced(), first.next_attempt()) == ([0], 1)
    first.ask_to_stop(1)  # before a member of it has announced it
    assert (first.attempts.announced(), first.next_attempt()) == ([0], 2)
    third = fenced(directory, 2)
    assert not third.asked_to_stop(2)
    save(third, 7, attempt=2)
    assert newest(third) == 7
