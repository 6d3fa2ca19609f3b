"""Serves one parameter shard to the other workers of a gang.

A request is a head, JSON in a sealed frame of ``sparkdl.net.protocol``. A push has a body, the buffer of the shard's
portion or the numbers in it that are not 0, and no answer. The answer to a pull and to a settlement is a head with the
shard's clock, and a body. ``row_exchange`` has the requests for rows of tables.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sparkdl.errors import PeerLost
from sparkdl.net.protocol import Connection, ProtocolError
from sparkdl.net.server import Server
from sparkdl.training.strategies.parameter_server.client import body_of
from sparkdl.training.strategies.parameter_server.row_exchange import answer_look_up, receive_rows
from sparkdl.training.strategies.parameter_server.shard import ParameterShard, Push, RowPush
from sparkdl.training.strategies.parameter_server.significance import packed_bytes, unpack

logger = logging.getLogger(__name__)


class ShardServer(Server):
    """The server of the shard of worker ``rank``; the other workers reach it by ``address`` and the ``key``.

    ``ranks`` are those of all workers in the gang, for errors.
    """

    def __init__(self, shard: ParameterShard, rank: int, ranks: Sequence[int], address: str, key: bytes) -> None:
        self._shard, self._ranks, self._peers = shard, ranks, {*range(len(ranks))} - {rank}
        super().__init__(f"sparkdl-shard-{ranks[rank]}", addresses=[address], bind=address, key=key)

    def close(self) -> None:
        """Release the threads that wait for a clock, then close connections and join all threads."""
        self._shard.fail(PeerLost("this worker has closed its parameter shard."))
        super().close()

    def _serve(self, connection: Connection) -> None:
        rank = _head(connection).get("rank")
        if type(rank) is not int or rank not in self._peers:
            raise ProtocolError(f"rank is {rank!r}; expected one of {sorted(self._peers)}")
        try:
            self._answer(connection, rank)
        finally:
            self._shard.fail(PeerLost(f"rank {self._ranks[rank]} left its connection to a parameter shard."))

    def _answer(self, connection: Connection, rank: int) -> None:
        buffer = self._shard.portion.allocate()
        gradients, body = self._shard.portion.views(buffer), body_of(buffer)
        rows: RowPush | None = None
        while True:
            head = _head(connection)
            kind, clock = head.get("kind"), int(head.get("clock", 0))
            counts = head.get("counts")
            size = len(body) if counts is None else _packed_bytes(counts, gradients)
            if head.get("bytes", 0) != (size if kind == "push" else 0) or size > len(body):
                raise ProtocolError(f"a {kind} has {head.get('bytes')} bytes; this shard has {len(body)}")
            try:
                if kind == "rows":
                    rows = receive_rows(connection, head, self._shard)
                    continue
                if kind == "push":
                    connection.receive_body(body[:size])
                    if counts is not None:
                        unpack(counts, buffer[:size], gradients)
                    unused = frozenset(head["unused"])
                    self._shard.push(Push(rank, clock, head["share"], unused, head["options"], rows), gradients)
                    rows = None
                    continue
                if kind == "look up":
                    weights = answer_look_up(connection, head, self._shard)
                else:
                    clock, weights = self._shard.pull(clock) if kind == "pull" else self._shard.settle(rank)
            except Exception as error:
                if isinstance(error, (OSError, EOFError, ProtocolError)):
                    raise
                if not isinstance(error, PeerLost):
                    self._shard.fail(error)
                logger.debug("rank %d gets no answer: %s", self._ranks[rank], error)
                return  # this worker's own thread raises the error that the shard keeps
            connection.send_body(json.dumps({"clock": clock}).encode(), body_of(weights))


def _packed_bytes(counts: Any, gradients: Sequence[Tensor]) -> int:
    valid = isinstance(counts, list) and len(counts) == len(gradients)
    if not (valid and all(type(one) is int and one >= 0 for one in counts)):
        raise ProtocolError(f"counts are {counts!r:.200}; expected a number for each of {len(gradients)} tensors")
    return packed_bytes(counts, gradients)


def _head(connection: Connection) -> dict[str, Any]:
    try:
        return dict(json.loads(connection.receive()))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a head is no JSON object: {error}") from error
