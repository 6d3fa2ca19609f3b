"""The attempt that may commit, and the checkpoint that all workers restore."""

from itertools import combinations

import pytest

from sparkdl.checkpoint.manifest import CheckpointName, Manifest
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import Fenced
from sparkdl.io import files
from tests.checkpoint.saving import at, content, fenced, flip, newest, save, there, together


def test_older_attempt_cannot_commit(directory):
    old = fenced(directory)
    assert (old.next_attempt(), save(old, 5)) == (1, old.name(at(5), 0))
    old.fence(0)
    new = fenced(directory, 1)
    for call in (lambda: save(old, 6), lambda: old.fence(0)):
        with pytest.raises(Fenced, match=r"attempt 0 may not commit to .*: process \d+ on .* announced attempt 1"):
            call()
    save(new, 3, attempt=1)
    new.fence(2)
    with pytest.raises(Fenced, match=r"attempt 1 may not commit .* announced attempt 2"):  # of the same driver
        new.attempts.check(1)
    assert newest(new) == 3
    assert there(new) == [old.name(at(5), 0), new.name(at(3), 1)]


def test_one_attempt_of_two_drivers(local):
    second = Checkpoints(local.directory, run="digits")
    with pytest.raises(Fenced, match="If that is another fit, wait until it ends"):
        second.fence(0)
    second.folder.delete("attempts/0000.json")  # as if both had announced it at once
    second.fence(0)
    with pytest.raises(Fenced):
        save(local, 1)
    save(second, 2)
    with pytest.raises(Fenced, match=r"no announcement of attempt 4: .* or fence\(4\) was not called"):
        save(second, 2, attempt=4)
    second.folder.delete("")
    with pytest.raises(Fenced, match=r"attempt 0: something deleted or replaced the directory during the run"):
        save(second, 3)


def commits(checkpoints, step, attempt):
    """The steps of one worker's checkpoint."""
    name = checkpoints.name(at(step), attempt)
    digest = checkpoints.write(name, "00000", content(step, 0)).result()
    yield "written"
    manifest = Manifest(name, "digits", attempt, at(step), 1, {"00000": digest})
    yield from checkpoints._commit(CheckpointName(attempt, 0, step), manifest)


def zombie(checkpoints, log):
    try:
        for step in commits(checkpoints, 30, 0):
            log.append(f"zombie {step}")
            yield
    except Fenced:
        log.append("zombie fenced")


def successor(checkpoints, log):
    checkpoints.fence(1)
    log.append("announced")
    yield
    _, reader = checkpoints.latest(verify=False)
    yield
    assert reader.read("00000") == content(reader.manifest.clock.step, 0)
    yield
    for step in commits(checkpoints, 20, 1):
        if step in ("written", "committed"):
            log.append(f"successor {step}")
            yield


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("keep", [2, 3])
def test_zombie_at_any_time_harms_no_newer_attempt(keep, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_sync", lambda path: None)
    for number, turns in enumerate(combinations(range(11), 5)):
        directory, log = f"{tmp_path}/{number}", []
        old = fenced(directory, keep=keep)
        for step in (5, 10):
            save(old, step, shards=1)
        new = Checkpoints(directory, run="digits", keep=keep)
        two = [successor(new, log), zombie(old, log)]
        for turn in range(11):
            next(two[turn in turns], None)
            step = newest(Checkpoints(directory, run="digits"))
            assert step == (20 if "successor committed" in log else 30 if "zombie committed" in log else 10), log
        if "zombie checked" in log:
            assert "announced" not in log[: log.index("zombie checked")]
        if "announced" in log and "zombie committed" in log:
            assert "zombie checked" in log[: log.index("announced")]
        assert there(new)[-1] == new.name(at(20), 1)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_workers_restore_the_newest_that_all_can_read(damaged, local, recwarn):
    for step in range(1, damaged + 2):
        save(local, step)
    for step in range(2 if damaged else 1, damaged + 2):
        path = f"{local.name(at(step), 0)}/{step % 3:05d}"
        if local.folder.exists(path):  # only two checkpoints are kept
            local.folder.write(path, flip(local.folder.read(path)))
    restored = together(3, lambda rank, agree: restore(local, rank, agree, lambda manifest: [f"{rank:05d}"]))
    assert len(recwarn) == max(1, damaged)
    if damaged == 1:
        assert [reader.read(f"{rank:05d}") for rank, reader in enumerate(restored)] == [
            content(1, rank) for rank in range(3)
        ]
        assert len({reader.manifest.name for reader in restored}) == 1
    else:
        assert restored == [None] * 3


def test_stop_request_is_of_one_attempt_whose_number_is_never_reused(directory):
    first, second = fenced(directory), Checkpoints(directory, run="digits")
    save(first, 5)
    assert not second.attempts.asked_to_stop(0)
    for _ in range(2):
        first.attempts.ask_to_stop(0)
    assert second.attempts.asked_to_stop(0)
    save(first, 6)  # a stopped attempt may commit its last checkpoint
    assert (first.attempts.announced(), first.next_attempt()) == ([0], 1)
    first.attempts.ask_to_stop(1)  # before that attempt is announced
    assert (first.attempts.announced(), first.next_attempt()) == ([0], 2)
    third = fenced(directory, 2)
    assert not third.attempts.asked_to_stop(2)
    save(third, 7, attempt=2)
    assert newest(third) == 7
