"""What a stranger can write, or put in the way: nothing of it is believed, and none of it is run.

Elsewhere: strangers, replays and forgeries on the channel, frame by frame, in ``tests.telemetry.test_channel``;
strangers at the sockets of a gang that meets and runs in ``tests.chaos.test_strangers``; every flipped byte of a
manifest, and another run's, in ``tests.checkpoint.test_store``; what a saved state and a model may hold in
``tests.io.test_serialization`` and ``tests.ml.persistence.test_export``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkdl.checkpoint.manifest import Digest, Manifest
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import CheckpointDamaged, InvalidInput, SparkdlError
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.protocol import Endpoint, shut
from sparkdl.telemetry.recorder import Recorder
from tests.chaos.runs import fit, kept
from tests.checkpoint.saving import at, content, fenced, newest, save
from tests.listening import LONG, Seen, nothing_left, values

pytestmark = pytest.mark.timeout(60)

# ---- a checkpoint that somebody else has written ---------------------------------------------------------------------


def forge(checkpoints: Checkpoints, name: str, shards: dict[str, bytes]) -> None:
    """A manifest that is right about these shards, wherever they lie, as whoever may write there can make it."""
    digests = {shard: Digest.of(shard, data) for shard, data in shards.items()}
    manifest = checkpoints.open(name).manifest
    own = Manifest(name, manifest.run, manifest.attempt, manifest.clock, len(shards), digests)
    checkpoints.folder.write(f"{name}/manifest.json", own.to_bytes())


@pytest.mark.parametrize("shard", ["../secret", "../../secret", "{root}/secret", "deeper/secret", "./secret", ".", ""])
@pytest.mark.parametrize("verify", [True, False])
def test_a_shard_elsewhere_is_not_read(shard: str, verify: bool, tmp_path: Path) -> None:
    """A manifest may name no file but those beside it."""
    checkpoints = fenced(f"{tmp_path}/checkpoints")
    save(checkpoints, 1, shards=1)
    name = save(checkpoints, 2, shards=1)
    secret = b"not a checkpoint's"
    folder = Path(checkpoints.directory, name)
    for place in (tmp_path, folder.parent, folder / "deeper"):
        place.mkdir(exist_ok=True)
        (place / "secret").write_bytes(secret)
    forge(checkpoints, name, {"00000": content(2, 0), shard.format(root=tmp_path): secret})
    with pytest.warns(RuntimeWarning, match=r"cannot be used.*The one before it is taken"):
        assert newest(checkpoints, verify=verify) == 1
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        found = restore(checkpoints, 0, lambda key, value: [dict(value)], lambda manifest: list(manifest.shards))
    assert found is not None
    assert found[0].clock.step == 1


@pytest.mark.parametrize("elsewhere", [b"something else", content(2, 0)[:-1] + b"?"], ids=["shorter", "as long"])
def test_a_link_in_the_place_of_a_shard_leads_to_nothing_but_the_shard(elsewhere: bytes, tmp_path: Path) -> None:
    """It is followed, and what it leads to must have the shard's hash."""
    checkpoints = fenced(f"{tmp_path}/checkpoints")
    save(checkpoints, 1)
    shard = Path(checkpoints.directory, save(checkpoints, 2), "00000")
    (tmp_path / "elsewhere").write_bytes(elsewhere)
    shard.unlink()
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match="its shard 00000 has"):
        assert newest(checkpoints) == 1


def test_a_shard_with_another_hash_is_never_given_out(tmp_path: Path) -> None:
    checkpoints = fenced(str(tmp_path))
    name = save(checkpoints, 1)
    manifest = checkpoints.open(name).manifest
    checkpoints.folder.write(f"{name}/00000", content(1, 0).replace(b"step 1", b"step 2"))
    with pytest.raises(CheckpointDamaged, match="its shard 00000 has SHA-256"):
        checkpoints.open(name).read("00000")
    assert manifest.shards["00000"].sha256 == hashlib.sha256(content(1, 0)).hexdigest()


def test_a_checkpoint_of_another_run_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    """Neither with its manifest, nor with one that says another checkpoint's name."""
    own, other = fenced(f"{tmp_path}/own"), Checkpoints(f"{tmp_path}/other", run="letters")
    save(own, 1)
    other.fence(0)
    name = save(other, 2)
    shutil.copytree(f"{tmp_path}/other/{name}", f"{tmp_path}/own/{name}")
    with pytest.raises(InvalidInput, match="belongs to the run 'letters'"):
        own.latest()
    shutil.rmtree(f"{tmp_path}/own/{name}")
    shutil.copytree(f"{tmp_path}/own/{own.name(at(1), 0)}", f"{tmp_path}/own/{name}")  # an old one as a newer one
    with pytest.warns(RuntimeWarning, match="its manifest is that of attempt-0000-epoch-0000-step-0000000001"):
        assert newest(own) == 1


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


def torch_saved(trap: Trap) -> bytes:
    stream = io.BytesIO()
    torch.save({"model": trap}, stream)
    return stream.getvalue()


@pytest.mark.parametrize("dump", [pickle.dumps, torch_saved], ids=["pickle", "torch.save"])
def test_a_pickle_in_the_place_of_a_shard_is_not_unpickled(dump: Any, tmp_path: Path) -> None:
    """Not even with a manifest that fits: whoever may write there can spoil a run, and not take a host."""
    fit(InlineCluster(), tmp_path, epochs=1)
    found = kept(tmp_path).latest()
    assert found is not None
    name, reader = found
    sprung = tmp_path / "sprung"
    packed = dump(Trap(sprung))
    for shard in reader.manifest.shards:
        reader.folder.write(shard, packed)
    forge(kept(tmp_path), name, dict.fromkeys(reader.manifest.shards, packed))
    with warnings.catch_warnings(record=True), pytest.raises(SparkdlError):
        fit(InlineCluster(), tmp_path, epochs=2)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung))).close()  # noqa: S301 - the trap works
    assert sprung.exists()


def test_an_announcement_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    """The attempts' files are JSON of a fixed form; what is not is named."""
    checkpoints = fenced(str(tmp_path))
    for forged in (b"", b"[]", b'{"attempt": 0}', pickle.dumps({"run": "digits"})):
        (tmp_path / "attempts" / "0000.json").write_bytes(forged)
        with pytest.raises(InvalidInput, match="is not an attempt's announcement"):
            save(checkpoints, 1)
    (tmp_path / "attempts" / "0000.json").write_text(json.dumps({"run": "letters", "writer": "somebody"}))
    with pytest.raises(InvalidInput, match="belongs to the run 'letters'"):
        save(checkpoints, 1)


# ---- somebody between a member and its driver ------------------------------------------------------------------------


class Meddler:
    """Carries one connection to a channel, and changes a bit of what the member says."""

    def __init__(self, endpoint: Endpoint, place: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(("127.0.0.1",), self._server.getsockname()[1], endpoint.key)
        self._place = place
        self._driver = socket.create_connection((endpoint.addresses[0], endpoint.port), LONG)
        self._threads = [threading.Thread(target=self._meddle), threading.Thread(target=self._answer)]
        self._threads[0].start()

    def _meddle(self) -> None:
        self._member, _ = self._server.accept()
        self._server.close()  # whoever comes again finds nobody
        self._threads[1].start()
        said = 0
        while piece := _received(self._member):
            spot = self._place - said
            if 0 <= spot < len(piece):
                piece = piece[:spot] + bytes([piece[spot] ^ 1]) + piece[spot + 1 :]
            said += len(piece)
            with contextlib.suppress(OSError):  # the driver has heard enough
                self._driver.sendall(piece)
        shut(self._driver)

    def _answer(self) -> None:
        while piece := _received(self._driver):
            self._member.sendall(piece)
        shut(self._member)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(LONG)
        self._member.close()
        self._driver.close()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""


HELLO = 4 + 32 + len(b'{"hello":"%s"}') - 2 + 32  # bytes of the first frame


GROWN = HELLO + 2  # the byte of an event's length that makes it 256 bytes longer, which never come


@pytest.mark.parametrize("place", [0, 3, 10, 40, HELLO, GROWN, HELLO + 10, HELLO + 40, HELLO + 80])
def test_a_bit_that_is_changed_on_the_way_is_noticed_and_nothing_is_lost(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a length, a seal or a payload, of the hello or of an event: the driver hears nothing, the member keeps it."""
    monkeypatch.setattr("sparkdl.telemetry.server.HANDSHAKE_SECONDS", 0.3)
    seen = Seen()
    with nothing_left(), Channel(seen) as channel:
        meddler = Meddler(channel.endpoint, place)
        with Recorder(meddler.endpoint, rank=0, fallback=tmp_path) as recorder:
            recorder.record("value", value=1)
            recorder.close(0.5)
        meddler.close()
        assert recorder.dropped == 0
        assert seen.events == []
        assert channel.refused == (place != GROWN)
    assert values(read_events(tmp_path)) == [1]
    assert os.listdir(tmp_path) == ["rank-0.attempt-0.jsonl"]
