"""Serves one parameter shard to the other workers of a gang.

A request is a head, JSON in a sealed frame of ``sparkdl.net.protocol``. A push has a body, the buffer of the shard's
portion, and no answer. The answer to a pull and to a settlement is a head with the shard's clock, and a body.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from torch import Tensor

from sparkdl.errors import PeerLost
from sparkdl.net.protocol import Connection, ProtocolError
from sparkdl.net.server import Server
from sparkdl.training.strategies.parameter_server.shard import ParameterShard, Push

logger = logging.getLogger(__name__)


def body_of(buffer: Tensor) -> memoryview:
    """The memory of a buffer of bytes."""
    return memoryview(buffer.numpy().data)


class ShardServer(Server):
    """The server of the shard of worker ``rank``; the other workers reach it by ``address`` and the ``key``."""

    def __init__(self, shard: ParameterShard, rank: int, workers: int, address: str, key: bytes) -> None:
        self._shard, self._ranks = shard, {*range(workers)} - {rank}
        super().__init__(f"sparkdl-shard-{rank}", addresses=[address], bind=address, key=key)

    def close(self) -> None:
        """Release the threads that wait for a clock, then close connections and join all threads."""
        self._shard.fail(PeerLost("this worker has closed its parameter shard."))
        super().close()

    def _serve(self, connection: Connection) -> None:
        rank = _head(connection).get("rank")
        if type(rank) is not int or rank not in self._ranks:
            raise ProtocolError(f"rank is {rank!r}; expected one of {sorted(self._ranks)}")
        try:
            self._answer(connection, rank)
        finally:
            self._shard.fail(PeerLost(f"rank {rank} left its connection to a parameter shard."))

    def _answer(self, connection: Connection, rank: int) -> None:
        buffer = self._shard.portion.allocate()
        gradients, body = self._shard.portion.views(buffer), body_of(buffer)
        while True:
            head = _head(connection)
            kind, clock = head.get("kind"), int(head.get("clock", 0))
            if head.get("bytes", 0) != (len(body) if kind == "push" else 0):
                raise ProtocolError(f"a {kind} has {head.get('bytes')} bytes; this shard has {len(body)}")
            try:
                if kind == "push":
                    connection.receive_body(body)
                    unused = frozenset(head["unused"])
                    self._shard.push(Push(rank, clock, head["share"], unused, head["options"]), gradients)
                    continue
                clock, weights = self._shard.pull(clock) if kind == "pull" else self._shard.settle(rank)
            except Exception as error:
                if isinstance(error, (OSError, EOFError)):
                    raise
                if not isinstance(error, PeerLost):
                    self._shard.fail(error)
                logger.debug("rank %d gets no answer: %s", rank, error)
                return  # this worker's own thread raises the error that the shard keeps
            connection.send_body(json.dumps({"clock": clock}).encode(), body_of(weights))


def _head(connection: Connection) -> dict[str, Any]:
    try:
        return dict(json.loads(connection.receive()))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a head is no JSON object: {error}") from error
