"""One worker's connections to the shards of the other workers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from sparkdl.errors import PeerLost
from sparkdl.net.protocol import Connection, Endpoint, ProtocolError


def body_of(buffer: Tensor) -> memoryview:
    """The memory of a buffer of bytes."""
    return memoryview(buffer.numpy().data)


class ShardClient:
    """Connections of worker ``rank`` to shards, by the rank of their workers; every wait has the gang's ``timeout``.

    ``ranks`` of the workers in the gang are for errors. Its methods raise PeerLost if a worker cannot be reached.
    """

    def __init__(self, rank: int, timeout: float, ranks: Sequence[int]) -> None:
        self._rank, self._timeout, self._ranks, self._connections = rank, timeout, ranks, dict[int, Connection]()

    def connect(self, peer: int, endpoint: Endpoint) -> None:
        """Connect to the shard of a worker."""
        with self._reaching(peer):
            connection = Connection.open(endpoint.addresses[0], endpoint, self._timeout)
            self._connections[peer] = connection
            connection.send([json.dumps({"rank": self._rank}).encode()], self._deadline())

    def push(self, peer: int, head: Mapping[str, Any], body: memoryview) -> None:
        """Send a push."""
        with self._reaching(peer):
            packed = json.dumps({"kind": "push", **head, "bytes": len(body)}).encode()
            self._connections[peer].send_body(packed, body, self._deadline())

    def send(self, peer: int, head: Mapping[str, Any], body: memoryview) -> None:
        """Send a request of ``row_exchange``."""
        with self._reaching(peer):
            self._connections[peer].send_body(json.dumps(head).encode(), body, self._deadline())

    def ask(self, peer: int, kind: str, clock: int) -> None:
        """Send a request, ``"pull"`` or ``"settle"``, whose answer is read later."""
        with self._reaching(peer):
            self._connections[peer].send([json.dumps({"kind": kind, "clock": clock}).encode()], self._deadline())

    def answer(self, peer: int, buffer: memoryview) -> int:
        """Read the weights or rows of an answer into a buffer; return the shard's clock."""
        with self._reaching(peer):
            deadline = self._deadline()
            clock: int = json.loads(self._connections[peer].receive(deadline=deadline))["clock"]
            self._connections[peer].receive_body(buffer, deadline)
            return clock

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    @contextmanager
    def _reaching(self, peer: int) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, ProtocolError) as error:
            raise PeerLost(f"the parameter shard of rank {self._ranks[peer]} is unreachable: {error}") from error

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout
