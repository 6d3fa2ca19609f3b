"""Forged checkpoints: nothing outside them is read, and no pickle is loaded.

Elsewhere: strangers, replays and forgeries on the channel in ``tests.telemetry.test_channel``; strangers at a gang's
sockets in ``tests.chaos.test_strangers``; damaged shards, flipped bytes of a manifest and other runs in
``tests.checkpoint.test_store``; saved states and models in ``tests.io.test_serialization`` and
``tests.ml.persistence.test_export``.
"""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint.manifest import Digest
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput
from tests.chaos.runs import fit, kept
from tests.checkpoint.saving import at, content, fenced, newest, save


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
        manifest, _ = restore(checkpoints, 0, lambda key, value: [dict(value)], lambda manifest: list(manifest.shards))
    assert manifest.clock.step == 1


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
