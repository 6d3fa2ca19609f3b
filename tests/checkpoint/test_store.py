"""Checkpoints: the newest committed one comes back, intact, and nothing else does, forgeries included."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint.manifest import FORMAT, CheckpointName, Digest, Manifest
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import CheckpointDamaged, InvalidInput
from tests.chaos.runs import fit, kept
from tests.checkpoint.saving import at, content, fenced, flip, newest, save, there
from tests.data.spooled import largest_file
from tests.object_store import object_store

MANIFEST = "manifest.json"


@pytest.mark.parametrize("shards", [1, 3])
def test_committed_checkpoint_comes_back(shards, directory):
    checkpoints = fenced(directory)
    assert checkpoints.latest() is None
    extra = {"rows": [1, 2.5, None], "seed": 2**63, "loss": float("inf"), "name": "ünï"}
    name = save(checkpoints, 7, shards=shards, extra=extra, pinned=True)
    newest_name, reader = pickle.loads(pickle.dumps(checkpoints)).latest()  # noqa: S301 - as it travels to workers
    assert newest_name == name == "attempt-0000-epoch-0000-step-0000000007"
    manifest = reader.manifest
    assert (manifest.clock, manifest.world_size, manifest.attempt) == (at(7), shards, 0)
    assert (manifest.run, manifest.pinned, manifest.extra) == ("digits", True, manifest.extra | extra)
    assert [reader.read(shard) for shard in manifest.shards] == [content(7, rank) for rank in range(shards)]
    assert checkpoints.folder.sizes(name).keys() == {*manifest.shards, MANIFEST}
    name, data = checkpoints.name(at(8), 0), {"large": os.urandom(20_000_000), "empty": b""}
    written = [checkpoints.write(name, shard, packed) for shard, packed in data.items()]
    checkpoints.commit(name, [future.result() for future in written], at(8), world_size=2)
    _, reader = checkpoints.latest()
    assert {shard: reader.read(shard) for shard in data} == data
    with pytest.raises(InvalidInput, match="has no shard 'other'; it has empty, large"):
        reader.read("other")


def test_names_sort_by_time():
    numbers = ((0, 0, 9), (0, 0, 10), (0, 1, 10), (1, 0, 5), (9, 0, 0), (10, 0, 0))
    times = [CheckpointName(*attempt_epoch_step) for attempt_epoch_step in numbers]
    assert sorted(map(str, times)) == [str(name) for name in times]
    for name in (*times, CheckpointName(12345, 12345, 12345678901)):
        assert CheckpointName.parse(str(name)) == name
    assert CheckpointName.parse("attempt-00001-epoch-0000-step-0000000001") is None


DAMAGE = [
    ("00001", flip, "its shard 00001 has SHA-256"),
    ("00001", lambda data: data[:-1], "its shard 00001 has 849 bytes; expected 850"),
    ("00002", None, "its shard 00002 is missing"),
    (MANIFEST, None, "it has no manifest: its writer did not finish"),
    (MANIFEST, lambda data: data[: len(data) // 2], "its manifest is damaged"),
    (MANIFEST, lambda data: b"[]", "its manifest is damaged"),
    (MANIFEST, lambda data: data.replace(b'"step": 20', b'"step": 21'), "its SHA-256 is wrong"),
]


@pytest.mark.parametrize(("file", "change", "what"), DAMAGE, ids=[what for *_, what in DAMAGE])
def test_damaged_checkpoint_is_skipped_with_a_warning(file, change, what, directory):
    checkpoints = fenced(directory)
    save(checkpoints, 10)
    name = save(checkpoints, 20)
    data = checkpoints.folder.read(f"{name}/{file}")
    checkpoints.folder.delete(f"{name}/{file}")
    if change is not None:
        checkpoints.folder.write(f"{name}/{file}", change(data))
    message = f"checkpoint .*{name} cannot be used: .*{what}.* resumes from the checkpoint before it"
    with pytest.warns(RuntimeWarning, match=message) as caught:
        assert newest(checkpoints) == 10
    assert len(caught) == 1
    assert "secret" not in str(caught[0].message)
    if change is flip:
        with pytest.raises(CheckpointDamaged, match=what):
            checkpoints.latest(verify=False)[1].read(file)


def test_every_flipped_byte_of_a_manifest_is_found(local):
    data = local.folder.read(f"{save(local, 1)}/{MANIFEST}")
    own = Manifest.from_bytes(data)
    for place in range(len(data)):
        try:
            manifest = Manifest.from_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        except (CheckpointDamaged, InvalidInput):
            continue
        assert manifest == own  # white space


def test_checkpoints_of_another_run_or_version_raise(directory):
    checkpoints = fenced(directory)
    name = save(checkpoints, 1)
    other = Checkpoints(directory, run="letters")
    for call in (other.latest, lambda: other.open(name), lambda: other.fence(1)):
        with pytest.raises(InvalidInput, match=r"belongs to the run 'digits', not to the run 'letters'.*runDir"):
            call()
    for version in (FORMAT - 1, FORMAT + 1):
        manifest = json.loads(checkpoints.folder.read(f"{name}/{MANIFEST}")) | {"format": version}
        checkpoints.folder.write(f"{name}/{MANIFEST}", json.dumps(manifest).encode())
        message = f"checkpoint .*{name} cannot be used: its manifest has format {version}, .* reads {FORMAT}. Take an"
        for call in (checkpoints.latest, lambda: checkpoints.open(name)):
            with pytest.raises(InvalidInput, match=message):
                call()
    for step in (2, 3, 4):
        save(checkpoints, step)
    assert name in there(checkpoints)  # pruning leaves it


@pytest.mark.slow
def test_unreachable_filesystem_raises_os_error(tmp_path):
    with object_store(tmp_path) as query:
        directory = f"s3://key:secret@runs/x?{query}"
        save(fenced(directory), 1)
    with pytest.raises(OSError, match=r"(?i)connect|network"):
        Checkpoints(directory, run="digits").latest()


@pytest.mark.parametrize(
    ("keep", "pinned", "kept"),
    [(1, (), [5]), (2, (), [4, 5]), (9, (), [1, 2, 3, 4, 5]), (1, (2, 3), [3, 5]), (2, (4,), [4, 5]), (1, (5,), [5])],
)
def test_newest_newest_pinned_and_foreign_files_are_kept(keep, pinned, kept, directory):
    checkpoints = fenced(directory, keep=keep)
    foreign = ("notes.txt", "step-10/manifest.json", "attempts/readme", "attempt-0000-epoch-0000/x")
    for path in foreign:
        checkpoints.folder.write(path, b"mine")
    for step in range(1, 6):
        save(checkpoints, step, shards=1, pinned=step in pinned)
    names = [checkpoints.name(at(step), 0) for step in kept]
    assert there(checkpoints) == sorted(["attempt-0000-epoch-0000", "step-10", *names])
    checkpoints.folder.write(f"{names[-1]}/notes.txt", b"mine")
    assert newest(checkpoints) == 5
    assert [checkpoints.folder.read(path) for path in foreign] == [b"mine"] * 4


@pytest.mark.parametrize("size", [300, 10])
def test_full_disk_leaves_the_checkpoint_before(size, local):
    save(local, 1)
    name = local.name(at(2), 0)
    digests = [local.write(name, "00000", b"tiny").result()] if size == 10 else []  # room for the shard alone
    with largest_file(size), pytest.raises(OSError, match=r"too large|free disk space"):  # noqa: PT012
        digests = digests or [local.write(name, "00000", bytes(400)).result()]
        local.commit(name, digests, at(2), world_size=1)
    with pytest.warns(RuntimeWarning, match="has no manifest"):
        assert newest(local) == 1
    local.write(local.name(at(9), 0), "00000", b"").result()
    save(local, 3)  # prunes the abandoned one before it, which does not count among those to keep
    assert there(local) == [local.name(at(step), 0) for step in (1, 3, 9)]


def test_mistakes_raise(local):
    name = save(local, 1)
    digest, later = Digest.of("00000", b""), local.name(at(2), 0)
    for call, what in [
        (lambda: Checkpoints(local.directory, run=""), "run is empty"),
        (lambda: local.write("step-1", "00000", b""), "'step-1' is not a checkpoint's name; expected one from"),
        (lambda: local.write(later, "../up", b""), "a shard cannot be named '../up'; expected letters"),
        (lambda: local.write(later, MANIFEST, b""), "a shard cannot be named 'manifest.json'"),
        (lambda: local.write(name, "00000", b"").result(), r"exists already; start another .* next_attempt\(\)"),
        (lambda: local.commit(later, [], at(2), world_size=1), "has the shards none; expected at least one"),
        (lambda: local.commit(later, [digest] * 2, at(2), world_size=1), "00000, 00000; .* each once"),
        (lambda: local.commit(later, [digest], at(3), world_size=1), r"does not match Clock\(epoch=0, step=3"),
        (lambda: save(local, 1), "exists already"),
        (lambda: save(local, 2, extra={"x": {1}}), "extra of .* is not JSON"),
        (lambda: local.commit(later, [Digest.of("on-another-host", b"")], at(2), world_size=1), "-host is missing"),
        (lambda: SharedDirectory(local.directory, "a/b"), "'a/b' cannot be a token"),
    ]:
        with pytest.raises((InvalidInput, CheckpointDamaged), match=what):
            call()
    assert newest(local, before=later) == 1
    assert newest(local, before=name) is None


def test_only_processes_of_one_directory_see_its_token(directory, tmp_path):
    first, second = SharedDirectory(directory, "token-1"), SharedDirectory(directory, "token-2")
    elsewhere = SharedDirectory(f"{tmp_path}/elsewhere", "token-1")
    first.announce()
    first.check("shards")
    assert (first.sees(), second.sees()) == (True, False)
    with pytest.raises(InvalidInput, match=r"not share the driver's directory .*/elsewhere, which holds shards"):
        elsewhere.check("shards")
    second.take_over()
    assert (first.sees(), second.sees()) == (False, True)
    second.withdraw()
    assert not first.folder.sizes("")


# ---- forgeries: nothing outside a checkpoint is read, and no pickle is loaded ----------------------------------------


def forge(checkpoints: Checkpoints, name: str, shards: dict[str, bytes]) -> None:
    """Write a manifest with the right hashes of these shards, wherever they lie."""
    digests = {shard: Digest.of(shard, data) for shard, data in shards.items()}
    forged = replace(checkpoints.open(name).manifest, shards=digests)
    checkpoints.folder.write(f"{name}/manifest.json", forged.to_bytes())


@pytest.mark.parametrize("shard", ["../secret", "../../secret", "{root}/secret", "deeper/secret", "./secret", ".", ""])
@pytest.mark.parametrize("verify", [True, False])
def test_shard_outside_its_checkpoint_is_not_read(shard, verify, tmp_path):
    checkpoints = fenced(f"{tmp_path}/checkpoints")
    save(checkpoints, 1, shards=1)
    name = save(checkpoints, 2, shards=1)
    secret = b"not a checkpoint's"
    folder = Path(checkpoints.directory, name)
    for place in (tmp_path, folder.parent, folder / "deeper"):
        place.mkdir(exist_ok=True)
        (place / "secret").write_bytes(secret)
    forge(checkpoints, name, {"00000": content(2, 0), shard.format(root=tmp_path): secret})
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert newest(checkpoints, verify=verify) == 1
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        reader = restore(checkpoints, 0, lambda key, value: [dict(value)], lambda manifest: list(manifest.shards))
    assert reader.manifest.clock.step == 1


def test_old_checkpoint_renamed_as_newest_is_skipped(tmp_path):
    checkpoints = fenced(str(tmp_path))
    save(checkpoints, 1)
    shutil.copytree(tmp_path / checkpoints.name(at(1), 0), tmp_path / checkpoints.name(at(2), 0))
    with pytest.warns(RuntimeWarning, match="it has the manifest of attempt-0000-epoch-0000-step-0000000001"):
        assert newest(checkpoints) == 1


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


def test_pickle_as_shard_is_not_unpickled(tmp_path):
    fit(InlineCluster(), tmp_path, epochs=1)
    name, reader = kept(tmp_path).latest()
    sprung = tmp_path / "sprung"
    packed = pickle.dumps(Trap(sprung))
    for shard in reader.manifest.shards:
        reader.folder.write(shard, packed)
    forge(kept(tmp_path), name, dict.fromkeys(reader.manifest.shards, packed))
    with warnings.catch_warnings(record=True), pytest.raises(InvalidInput, match="the saved state cannot be read"):
        fit(InlineCluster(), tmp_path, epochs=2)
    assert not sprung.exists()
    pickle.loads(packed).close()  # noqa: S301 - the trap works
    assert sprung.exists()


def test_forged_announcement_of_attempt_raises(tmp_path):
    checkpoints = fenced(str(tmp_path))
    for forged in (b"", b"[]", b'{"attempt": 0}', pickle.dumps({"run": "digits"})):
        (tmp_path / "attempts" / "0000.json").write_bytes(forged)
        with pytest.raises(InvalidInput, match=r"0000\.json is damaged"):
            save(checkpoints, 1)
    (tmp_path / "attempts" / "0000.json").write_text(json.dumps({"run": "letters", "writer": "somebody"}))
    with pytest.raises(InvalidInput, match="belongs to the run 'letters'"):
        save(checkpoints, 1)
