"""Checkpoints: what was committed comes back, and nothing else does."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint.manifest import FORMAT, Digest, Manifest, Name
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import CheckpointDamaged, InvalidInput
from tests.checkpoint.saving import at, content, fenced, flip, newest, save, there
from tests.data.spooled import largest_file
from tests.object_store import object_store

MANIFEST = "manifest.json"

# ---- what was committed comes back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_committed_comes_back(shards: int, directory: str) -> None:
    checkpoints = fenced(directory)
    assert checkpoints.latest() is None
    extra = {"rows": [1, 2.5, None], "seed": 2**63, "loss": float("inf"), "name": "ünï"}
    name = save(checkpoints, 7, shards=shards, extra=extra, pinned=True)
    found = pickle.loads(pickle.dumps(checkpoints)).latest()  # noqa: S301 - as it travels to members
    assert found is not None
    assert found[0] == name == "attempt-0000-epoch-0000-step-0000000007"
    manifest = found[1].manifest
    assert (manifest.clock, manifest.world_size, manifest.attempt) == (at(7), shards, 0)
    assert (manifest.run, manifest.pinned, manifest.extra) == ("digits", True, extra)
    assert [found[1].read(shard) for shard in manifest.shards] == [content(7, rank) for rank in range(shards)]
    assert checkpoints.folder.sizes(name).keys() == {*manifest.shards, MANIFEST}


def test_large_and_empty_shards(directory: str) -> None:
    checkpoints = fenced(directory)
    name, data = checkpoints.name(at(1), 0), {"large": os.urandom(20_000_000), "empty": b""}
    written = [checkpoints.write(name, shard, each) for shard, each in data.items()]
    checkpoints.commit(name, [future.result() for future in written], at(1), world_size=2)
    found = checkpoints.latest()
    assert found is not None
    assert {shard: found[1].read(shard) for shard in data} == data
    with pytest.raises(InvalidInput, match="has no shard 'other'; it has empty, large"):
        found[1].read("other")


def test_names_sort_by_time() -> None:
    times = [Name(0, 0, 9), Name(0, 0, 10), Name(0, 1, 10), Name(1, 0, 5), Name(9, 0, 0), Name(10, 0, 0)]
    assert sorted(map(str, times)) == [str(name) for name in times]
    assert [Name.parse(str(name)) for name in times] == times
    assert Name.parse(str(Name(12345, 12345, 12345678901))) == Name(12345, 12345, 12345678901)
    assert Name.parse("attempt-00001-epoch-0000-step-0000000001") is None


def test_digests_travel_as_json() -> None:
    digest = Digest.of("00000", b"data")
    assert Digest.from_json(json.loads(json.dumps(digest.to_json()))) == digest


# ---- torn and damaged ones are passed over ---------------------------------------------------------------------------


def reform(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "format": FORMAT + 1}).encode()


DAMAGE = [
    ("00001", flip, "its shard 00001 has SHA-256"),
    ("00001", lambda data: data[:-1], "its shard 00001 has 849 bytes and 850 were written"),
    ("00000", lambda data: b"", "its shard 00000 has 0 bytes"),
    ("00002", None, "its shard 00002 is missing"),
    (MANIFEST, None, "it has no manifest: its writer did not finish"),
    (MANIFEST, lambda data: data[: len(data) // 2], "its manifest is damaged"),
    (MANIFEST, lambda data: b"", "its manifest is damaged"),
    (MANIFEST, lambda data: b"[]", "its manifest is damaged"),
    (MANIFEST, lambda data: data.replace(b'"step": 20', b'"step": 21'), "its SHA-256 differs"),
    (MANIFEST, lambda data: data.replace(b"step-0000000020", b"step-0000000021"), "its SHA-256 differs"),
    (MANIFEST, reform, "its manifest has format 3 and this version of sparkdl reads 2"),
]


@pytest.mark.parametrize(("file", "change", "what"), DAMAGE, ids=[f"{what}" for *_, what in DAMAGE])
def test_damage_is_named_and_the_one_before_is_used(file: str, change: Any, what: str, directory: str) -> None:
    checkpoints = fenced(directory)
    save(checkpoints, 10)
    name = save(checkpoints, 20)
    path = f"{name}/{file}"
    data = checkpoints.folder.read(path)
    checkpoints.folder.delete(path)
    if change is not None:
        checkpoints.folder.write(path, change(data))
    with pytest.warns(RuntimeWarning, match=f"checkpoint .*{name} cannot be used: .*{what}.*The one before") as caught:
        assert newest(checkpoints) == 10
    assert len(caught) == 1
    assert "secret" not in str(caught[0].message)
    if change is flip:
        found = checkpoints.latest(verify=False)
        assert found is not None
        with pytest.raises(CheckpointDamaged, match=what):
            found[1].read(file)


def test_every_flipped_byte_of_a_manifest_is_found(local: Checkpoints) -> None:
    data = local.folder.read(f"{save(local, 1)}/{MANIFEST}")
    own = Manifest.from_bytes(data)
    for place in range(len(data)):
        try:
            found = Manifest.from_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        except CheckpointDamaged:
            continue
        assert found == own  # white space


CHILD = """
import os, signal, sys
from sparkdl.checkpoint import Checkpoints
from sparkdl.telemetry.clock import Clock
from sparkdl.io.files import Folder
plain, left = Folder.write, int(sys.argv[2])
def write(folder, name, data):
    global left
    if left == 0:
        plain(folder, name + ".tmp", data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    plain(folder, name, data)
checkpoints = Checkpoints(sys.argv[1], run="digits")
attempt = checkpoints.next_attempt()
checkpoints.fence(attempt)
Folder.write = write
clock = Clock(0, 20, 640)
name = checkpoints.name(clock, attempt)
digests = [checkpoints.write(name, f"{rank:05d}", bytes(1000)).result() for rank in range(3)]
checkpoints.commit(name, digests, clock, world_size=3)
"""


@pytest.mark.chaos
@pytest.mark.parametrize("written", range(5))
def test_killed_while_it_writes(written: int, tmp_path: Path) -> None:
    save(fenced(str(tmp_path)), 10)
    killed = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(written)], check=False, timeout=60)
    assert killed.returncode == (0 if written == 4 else -signal.SIGKILL)
    checkpoints = Checkpoints(str(tmp_path), run="digits")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert newest(checkpoints) == (20 if written == 4 else 10)
    attempt = checkpoints.next_attempt()
    assert attempt == 2
    checkpoints.fence(attempt)
    save(checkpoints, 15, attempt=attempt)
    assert there(checkpoints) == [str(Name(0 if written < 4 else 1, 0, 10 if written < 4 else 20)), str(Name(2, 0, 15))]


def test_foreign_files_are_left_alone(directory: str) -> None:
    checkpoints = fenced(directory, keep=1)
    for path in ("notes.txt", "step-10/manifest.json", "attempts/readme", "attempt-0000-epoch-0000/x"):
        checkpoints.folder.write(path, b"mine")
    for step in (1, 2):
        save(checkpoints, step)
    checkpoints.folder.write(f"{checkpoints.name(at(2), 0)}/notes.txt", b"mine")
    assert newest(checkpoints) == 2
    assert checkpoints.folder.read("notes.txt") == checkpoints.folder.read("step-10/manifest.json") == b"mine"
    assert checkpoints.folder.exists("attempts/readme")


def test_another_run_is_refused_by_name(directory: str) -> None:
    checkpoints = fenced(directory)
    name = save(checkpoints, 1)
    other = Checkpoints(directory, run="letters")
    for call in (other.latest, lambda: other.open(name), lambda: other.fence(1)):
        with pytest.raises(InvalidInput, match=r"belongs to the run 'digits', and this is the run 'letters'.*runDir"):
            call()


@pytest.mark.slow
def test_a_filesystem_that_cannot_be_reached_is_no_damage(tmp_path: Path) -> None:
    with object_store(tmp_path) as query:
        directory = f"s3://key:secret@runs/x?{query}"
        save(fenced(directory), 1)
    checkpoints = Checkpoints(directory, run="digits")
    with pytest.raises(OSError, match=r"(?i)connect|network"):
        checkpoints.latest()


# ---- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "pinned", "kept"),
    [(1, (), [5]), (2, (), [4, 5]), (9, (), [1, 2, 3, 4, 5]), (1, (2, 3), [3, 5]), (2, (4,), [4, 5]), (1, (5,), [5])],
)
def test_the_newest_are_kept(keep: int, pinned: tuple[int, ...], kept: list[int], directory: str) -> None:
    checkpoints = fenced(directory, keep=keep)
    for step in range(1, 6):
        save(checkpoints, step, shards=1, pinned=step in pinned)
    assert there(checkpoints) == [checkpoints.name(at(step), 0) for step in kept]


def test_abandoned_ones_go_and_damaged_ones_do_not_count(local: Checkpoints) -> None:
    save(local, 1)
    save(local, 2)
    local.folder.delete(f"{local.name(at(2), 0)}/00001")
    for step in (3, 9):
        local.write(local.name(at(step), 0), "00000", b"").result()
    save(local, 4)
    assert there(local) == [local.name(at(step), 0) for step in (1, 4, 9)]


@pytest.mark.parametrize("size", [300, 10])
def test_a_full_disk_leaves_the_one_before(size: int, local: Checkpoints) -> None:
    save(local, 1)
    name = local.name(at(2), 0)
    if size == 10:  # room for the shard, none for the manifest
        digests = [local.write(name, "00000", b"tiny").result()]
    with largest_file(size), pytest.raises(OSError, match=r"too large|make room"):  # noqa: PT012
        if size == 300:
            digests = [local.write(name, "00000", bytes(400)).result()]
        local.commit(name, digests, at(2), world_size=1)
    with pytest.warns(RuntimeWarning, match="has no manifest"):
        assert newest(local) == 1
    save(local, 3)
    assert there(local) == [local.name(at(step), 0) for step in (1, 3)]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_refused(local: Checkpoints) -> None:
    name = save(local, 1)
    digest, later = Digest.of("00000", b""), local.name(at(2), 0)
    for call, what in [
        (lambda: Checkpoints(local.directory, run="r", keep=0), "keep is 0; expected at least 1"),
        (lambda: Checkpoints(local.directory, run=""), "run is empty"),
        (lambda: local.write("step-1", "00000", b""), "'step-1' is not a checkpoint's name; expected one like attempt"),
        (lambda: local.write(later, "../up", b""), "a shard cannot be named '../up'; expected letters"),
        (lambda: local.write(later, MANIFEST, b""), "a shard cannot be named 'manifest.json'"),
        (lambda: local.write(name, "00000", b"").result(), r"is committed already; take next_attempt\(\)"),
        (lambda: local.commit(later, [], at(2), world_size=1), "was given the shards none; expected each once"),
        (lambda: local.commit(later, [digest] * 2, at(2), world_size=1), "the shards 00000, 00000; expected each once"),
        (lambda: local.commit(later, [digest], at(3), world_size=1), r"is not of Clock\(epoch=0, step=3"),
        (lambda: save(local, 1), "is committed already"),
        (lambda: save(local, 2, extra={"x": {1}}), "the extra of .* is not JSON"),
        (lambda: SharedDirectory(local.folder, "a/b"), "'a/b' cannot be a token"),
    ]:
        with pytest.raises(InvalidInput, match=what):
            call()
    assert newest(local, before=later) == 1
    assert newest(local, before=name) is None
