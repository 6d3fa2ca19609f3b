"""Strangers on this machine connect to every socket on which a gang listens; the gang does not notice.

``tests.telemetry.test_channel`` has what the channel makes of each message.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.chaos.leavings import descendants, listening
from tests.chaos.runs import assert_alike, check_rows, columns, fit, undisturbed

pytestmark = pytest.mark.chaos

MANY = 100
SPEECHES = [
    b"",
    bytes(range(256)) * 16,
    b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
    b"\xff" * 64,
    bytes(64),
    b"\x00\xce\xf7",  # half of the store's handshake
    b"\x00" + bytes(4),  # the handshake with a wrong number
    b"\x00\xce\xf7\x85\x3c" + b"\x01" + b"\xff" * 8 + b"key",  # the handshake, and a key without end
    b"\x00\xce\xf7\x85\x3c" + b"\xee" * 32,  # the handshake, and an unknown command
]

_open: list[socket.socket] = []


def visit(family: set[int], file: Path) -> None:
    """Connect to all that a gang's processes listen on, say everything, and log how many bytes each place answers."""
    talkers: dict[str, list[socket.socket]] = {}
    for host, port in sorted(listening(family)):
        for speech in SPEECHES:
            stranger = socket.create_connection((host, port), 5)
            talkers.setdefault(f"{host}:{port}", []).append(stranger)
            with suppress(OSError):  # closed before it had said all
                stranger.sendall(speech)
        _open.extend(socket.create_connection((host, port), 5) for _ in range(MANY))
    file.write_text(json.dumps({place: max(map(answer, group)) for place, group in talkers.items()}))
    _open.extend(stranger for group in talkers.values() for stranger in group)


def answer(stranger: socket.socket) -> int:
    """Number of bytes that a stranger has received by now."""
    if not select.select([stranger], [], [], 0.05)[0]:
        return 0
    with suppress(OSError):
        return len(stranger.recv(1 << 16))
    return 0


def leave() -> None:
    for stranger in _open:
        stranger.close()
    _open.clear()


@dataclass(frozen=True)
class Visits:
    """A callback with which strangers come after a step, and stay until the end."""

    folder: str

    def on_step(self, run: Any) -> None:
        if run.rank == 1 and run.clock.step == 3:
            driver = psutil.Process(os.getppid()).ppid()  # the parent of a worker is the driver's zygote
            visit({driver, *descendants(driver)}, Path(self.folder, "runs"))

    def on_end(self, run: Any) -> None:
        leave()


@dataclass(frozen=True)
class Meets:
    """A column's ``decode``: rank 1 waits for rank 0 to listen, and lets strangers in before it joins."""

    folder: str
    decode: Any

    def __call__(self, data: bytes) -> Any:
        value = self.decode(data)
        if value[0] == self.decode.firsts[1]:
            siblings = descendants(os.getppid())
            until = time.monotonic() + 20
            while not listening(siblings) and time.monotonic() < until:
                time.sleep(0.01)
            visit(siblings, Path(self.folder, "meets"))
        return value


@pytest.mark.parametrize("strategy", [AllReduce(), ParameterServer()])
def test_gang_survives_strangers(pair, tmp_path, strategy):
    reads = columns()
    x, row = reads.inputs
    reads = replace(reads, inputs=(x, replace(row, decode=Meets(str(tmp_path), row.decode))))
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=20)
    trained = fit(supervisor, tmp_path, Visits(str(tmp_path)), reads=reads, strategy=strategy)
    assert supervisor.failures == []
    assert_alike(trained, undisturbed(pair, strategy=strategy))
    check_rows(tmp_path)
    assert json.loads((tmp_path / "meets").read_text())
    answers = json.loads((tmp_path / "runs").read_text())
    # The channel and the store, gloo's own, and two parameter shards.
    assert len(answers) >= 2 + 2 * isinstance(strategy, ParameterServer)
    assert {place.rpartition(":")[0] for place in answers} == {"127.0.0.1"}
    assert max(answers.values()) <= 32  # the channel's nonce
    pair.gang(lambda world, shard: leave())
