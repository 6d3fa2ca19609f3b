"""Rows of tables in an exchange with parameter shards: look-ups, and gradients that travel with a push.

The worker that holds a row of a table has it beside its parameter shard, under the shard's lock and clocks. A request
is a head and a body. ``{"kind": "look up", "table", "ids"}`` announces so many ids, eight bytes each; the answer is a
head, and the rows. ``{"kind": "rows", "ids", "numbers", "factor"}`` announces a message of ``TableRows.dealt`` and its
numbers, which the next push of the connection takes along.

A worker looks rows up in its passes, after its pull at clock ``c``. That pull waited at every shard until all workers
had pushed ``c - s``, and a push to a shard has the gradients of the rows beside it. So a look-up reads rows with every
push up to ``c - s``, and maybe later ones. At staleness 0 without backup, no shard takes the step of ``c + 1`` before
all workers have pushed it, after their look-ups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparkdl.errors import PeerLost
from sparkdl.net.protocol import Connection, ProtocolError
from sparkdl.training.layouts.table_rows import RowSums, TableRows, joined
from sparkdl.training.strategies.parameter_server.client import ShardClient, body_of
from sparkdl.training.strategies.parameter_server.shard import ParameterShard, RowPush


class RowExchange:
    """This worker's look-ups in all shards, and the gradients of rows since its last push.

    Args:
        tables: of the replica, which ask this exchange from now on.
        shard: of this worker.
        client: connections to the other shards.
    """

    def __init__(self, tables: TableRows, shard: ParameterShard, client: ShardClient) -> None:
        self._tables, self._shard, self._client = tables, shard, client
        self._sums: dict[str, RowSums] = {}  # since the last push, multiplied by the shares
        tables.served = self.rows

    def rows(self, table: str, ids: Sequence[Tensor]) -> list[Tensor]:
        """The rows of the ids of each shard."""
        try:
            return self._look_up(table, ids)
        except PeerLost as error:
            cause = self._shard.first_cause(error)
        raise cause  # here, so that it has no lost worker as its context

    def collect(self, share: float) -> None:
        """Take the gradients of a step, multiplied by the worker's share of the step."""
        self._tables.collect(1.0)
        for name, sums in self._tables.gradients.items():
            weighted = replace(sums, gradients=sums.gradients * share)
            self._sums[name] = joined([self._sums[name], weighted]) if name in self._sums else weighted
        self._tables.gradients = {}

    def push(self) -> RowPush:
        """Send the gradients since the last push to the other shards, before its push; return those of this shard."""
        messages, numbers = self._tables.dealt(self._sums)
        self._sums, factor, rank = {}, self._tables.factor, self._tables.group.rank
        self._tables.count([*messages, *numbers])
        pushes = [RowPush(ids.cpu(), values.cpu(), factor) for ids, values in zip(messages, numbers, strict=True)]
        for peer, one in enumerate(pushes):
            if peer != rank:
                head = {"kind": "rows", "ids": len(one.ids), "numbers": len(one.numbers), "factor": factor}
                body = torch.cat([one.ids.view(torch.uint8), one.numbers.view(torch.uint8)])
                self._client.send(peer, head, body_of(body))
        return pushes[rank]

    def _look_up(self, table: str, ids: Sequence[Tensor]) -> list[Tensor]:
        rank = self._tables.group.rank
        peers = [peer for peer, asked in enumerate(ids) if len(asked) and peer != rank]
        for peer in peers:
            body = body_of(ids[peer].cpu().contiguous().view(torch.uint8))
            self._client.send(peer, {"kind": "look up", "table": table, "ids": len(ids[peer])}, body)
        mine = self._shard.look_up(table, ids[rank])
        rows = [mine if peer == rank else mine.new_empty(len(asked), mine.shape[1]) for peer, asked in enumerate(ids)]
        for peer in peers:
            answer = torch.empty_like(rows[peer], device="cpu")
            self._client.answer(peer, body_of(answer.view(-1).view(torch.uint8)))
            rows[peer] = answer.to(mine.device)
        return rows


def answer_look_up(connection: Connection, head: Mapping[str, Any], shard: ParameterShard) -> Tensor:
    """The rows that a look-up asks for, as bytes; raises ProtocolError if they are not of this shard."""
    tables, table = shard.tables, str(head.get("table"))
    if tables is None or table not in tables.kinds:
        raise ProtocolError(f"a look-up is in table {table!r}, which this shard does not have")
    ids = _read(connection, head, "ids", tables.most[0], torch.int64)
    if not tables.holds(table, ids):
        raise ProtocolError(f"a look-up in table {table!r} has ids of other shards")
    return shard.look_up(table, ids).cpu().view(-1).view(torch.uint8)


def receive_rows(connection: Connection, head: Mapping[str, Any], shard: ParameterShard) -> RowPush:
    """Gradients of rows for the next push; raises ProtocolError if they do not fit this shard's tables."""
    if (tables := shard.tables) is None:
        raise ProtocolError("a push has rows, and this shard has no tables")
    ids = _read(connection, head, "ids", tables.most[0], torch.int64)
    push = RowPush(ids, _read(connection, head, "numbers", tables.most[1], tables.dtype), float(head["factor"]))
    try:
        tables.check(push.ids, push.numbers)
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"gradients of rows do not fit this shard: {error}") from error
    return push


def _read(connection: Connection, head: Mapping[str, Any], name: str, most: int, dtype: torch.dtype) -> Tensor:
    size = head.get(name)
    if type(size) is not int or not 0 <= size <= most:
        raise ProtocolError(f"a request for rows has {size!r} {name}; expected 0 to {most}")
    values = torch.empty(size, dtype=dtype, device="cpu")
    connection.receive_body(body_of(values.view(torch.uint8)))
    return values
