"""Strangers on this machine connect to every socket on which a gang listens; the gang neither hears nor fails.

What the channel makes of them is in ``tests.telemetry.test_channel``, message by message.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.supervisor import Supervisor
from tests.chaos.leavings import descendants, listening, parent
from tests.chaos.runs import check_rows, columns, fit, table, training
from tests.training.test_resume import assert_alike

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

MANY = 100
SPEECHES = {
    "silence": b"",
    "garbage": bytes(range(256)) * 16,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
    "an announcement of all there is": b"\xff" * 64,
    "zeros": bytes(64),
    "half of the store's handshake": b"\x00\xce\xf7",
    "the store's handshake with a wrong number": b"\x00" + bytes(4),
    "the store's handshake and a key without end": b"\x00\xce\xf7\x85\x3c" + b"\x01" + b"\xff" * 8 + b"key",
    "the store's handshake and a question that there is not": b"\x00\xce\xf7\x85\x3c" + b"\xee" * 32,
}

_held: list[socket.socket] = []


def visit(family: set[int]) -> dict[str, Any]:
    """Connect to all that a gang's processes listen on, and say everything; what was answered, by port."""
    answers: dict[str, Any] = {}
    for host, port in sorted(listening(family)):
        for name, speech in SPEECHES.items():
            stranger = socket.create_connection((host, port), 5)
            _held.append(stranger)
            with suppress(OSError):  # put out before it had said all
                stranger.sendall(speech)
            answers.setdefault(f"{host}:{port}", {})[name] = stranger
        _held.extend(socket.create_connection((host, port), 5) for _ in range(MANY))
    return {place: {name: heard(each) for name, each in found.items()} for place, found in answers.items()}


def heard(stranger: socket.socket) -> int:
    """How many bytes are there for a stranger by now."""
    if not select.select([stranger], [], [], 0.05)[0]:
        return 0
    with suppress(OSError):
        return len(stranger.recv(1 << 16))
    return 0


def family() -> set[int]:
    """The driver and its members, for one of them, whose parent is the driver's zygote."""
    driver = parent(os.getppid())
    return {driver, *descendants(driver)}


@dataclass(frozen=True)
class Visits:
    """A hook with which strangers come after a step, and stay until the end."""

    folder: str
    every_rank = True

    def on_step(self, run: Any) -> None:
        if run.rank == 1 and run.clock.step == 3:
            Path(self.folder, "heard").write_text(json.dumps(visit(family())))

    def on_end(self, run: Any) -> None:
        leave()


def leave() -> None:
    for stranger in _held:
        stranger.close()
    _held.clear()


def told(folder: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads((folder / "heard").read_text())
    return found


def test_strangers_that_come_while_a_gang_runs(pair, whole, tmp_path):
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=20)
    found = fit(supervisor, tmp_path, hooks=[Visits(str(tmp_path))])
    assert supervisor.failures == []
    assert_alike(found, whole)
    check_rows(tmp_path)
    places = told(tmp_path)
    assert len(places) >= 2  # the channel and the store, and gloo's own
    assert {place.rpartition(":")[0] for place in places} == {"127.0.0.1"}
    assert max(count for place in places.values() for count in place.values()) <= 32  # the channel's nonce


@dataclass(frozen=True)
class Meets:
    """A column's ``decode`` that waits, on rank 1, for rank 0 to listen, and then lets strangers in before it joins."""

    folder: str
    decode: Any

    def __call__(self, data: bytes) -> Any:
        value = self.decode(data)
        if value[0] == self.decode.firsts[1]:
            siblings = descendants(os.getppid())
            until = time.monotonic() + 20
            while not listening(siblings) and time.monotonic() < until:
                time.sleep(0.01)
            Path(self.folder, "heard").write_text(json.dumps(visit(siblings)))
        return value


def test_strangers_that_come_while_a_gang_meets(pair, whole, tmp_path):
    wanted = columns()
    x, row = wanted.inputs
    wanted = replace(wanted, inputs=(x, replace(row, decode=Meets(str(tmp_path), row.decode))))
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=20)
    assert_alike(supervisor.gang(training(Visits(str(tmp_path))), table(), wanted), whole)
    assert supervisor.failures == []
    assert len(told(tmp_path)) >= 1


@pytest.fixture(autouse=True)
def _gone(pair: Any) -> Iterator[None]:
    yield
    pair.gang(lambda world, part: leave())
