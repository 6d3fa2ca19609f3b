"""One worker's side of all shards: its gradients by shard, pushes and pulls, and the shard that it hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.net.protocol import Endpoint
from sparkdl.training.layouts.arithmetic import clip
from sparkdl.training.layouts.table_rows import TableRows
from sparkdl.training.strategies.parameter_server.client import ShardClient, body_of
from sparkdl.training.strategies.parameter_server.placement import Portion, portions, rows_of
from sparkdl.training.strategies.parameter_server.row_exchange import RowExchange
from sparkdl.training.strategies.parameter_server.service import ShardServer
from sparkdl.training.strategies.parameter_server.shard import ParameterShard, Push
from sparkdl.training.strategies.parameter_server.significance import Residuals, pack


class ShardExchange:
    """Pushes gradients to the shards of a group's workers and pulls weights; a group of one has no connection.

    One buffer for each shard has gradients before an exchange, and weights after it.

    Args:
        parameters: of the replica; pulls overwrite them.
        group: the workers.
        optimizer: makes the optimizer of a shard.
        max_norm: if ``replicated``, the largest norm of the sum of all gradients; None for any.
        tables: of the replica, if it has any; their rows are looked up in the shards.
        replicated: whether all replicas are equal after each exchange, and a shard steps from its owner's weights.
        held: the rows of each shard; default: all shards have about equal bytes.
        filtered: whether pushes leave out what is not significant.
        clocks: ``staleness`` and ``backup`` of the shards.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: Group,
        optimizer: Callable[[Sequence[nn.Parameter]], Optimizer],
        max_norm: float | None,
        *,
        tables: TableRows | None = None,
        replicated: bool,
        held: Sequence[Portion] = (),
        filtered: bool = False,
        **clocks: Any,
    ) -> None:
        self._parameters, self._group, self._max_norm = parameters, group, max_norm
        self._portions = held or portions(parameters, group.size)
        self.portion, self._rank = self._portions[group.rank], group.rank
        self._buffers = [one.allocate() for one in self._portions]
        self._views = [one.views(buffer) for one, buffer in zip(self._portions, self._buffers, strict=True)]
        settings = {"timeout": group.axis.timeout if group.axis else 600.0, "opened": replicated, **clocks}
        settings |= {"tables": tables, "source": self._rows if replicated else tuple, "held": max_norm is not None}
        self.shard = ParameterShard(self.portion, optimizer, group.size, **settings)
        # The lowest of all shards at the last pull. With a clock for each shard, two workers could each wait for a push
        # that the other one sends after its wait: each late at another shard.
        self._clock = 0
        self._unused = {*range(len(parameters))}  # tensors without a gradient since the last exchange
        self._share, self.steps = 0.0, 0  # since the last exchange
        self._residuals = Residuals(self._portions) if filtered else None
        groups = [{id(one) for one in group["params"]} for group in self.shard.optimizer.param_groups]
        # Of each tensor; -1 if the optimizer does not train it.
        self._groups = [next((n for n, one in enumerate(groups) if id(v) in one), -1) for v in self.shard.parameters]
        self._rates = [0.0] * len(groups)  # the last ones that were not 0
        self.pushed = (0, 0)  # bytes of all filtered pushes, and the number of pulls
        self._peers = [(group.rank + far) % group.size for far in range(1, group.size)]
        self._client = ShardClient(group.rank, settings["timeout"], group.ranks)
        self._row_exchange = None if tables is None else RowExchange(tables, self.shard, self._client)
        if self._peers:
            self._connect()

    @property
    def bytes(self) -> int:
        """Bytes that this worker sends in a mean exchange: pushes to others, and answers to them."""
        size, pulls = self.pushed
        pushed = size // pulls if pulls else sum(one.nbytes for one in self._portions) - self.portion.nbytes
        return pushed + (self._group.size - 1) * self.portion.nbytes

    @torch.no_grad()
    def collect(self, share: float) -> None:
        """Take the gradients of a step, multiplied by the worker's share of the step."""
        self._share, self.steps = self._share + share, self.steps + 1
        if self._row_exchange is not None:
            self._row_exchange.collect(share)
        for index, parameter in enumerate(self._parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise InvalidInput(f"a parameter {list(parameter.shape)} has a sparse gradient; expected sparse=False.")
            for portion, views in zip(self._portions, self._views, strict=True):
                if not portion.rows[index]:
                    continue
                part, view = rows_of(gradient, portion.rows[index]), views[index]
                if index in self._unused and part.device == view.device:
                    torch.mul(part, share, out=view)
                else:
                    part = (part * share).to(view.device)
                    view.copy_(part) if index in self._unused else view.add_(part)
            self._unused.discard(index)

    def push_and_pull(self, options: Sequence[Mapping[str, Any]], significance: float = 0.0) -> None:
        """Push the gradients of the steps since the last exchange, and pull the weights.

        ``significance`` is the fraction of a weight below which its change is not pushed, if pushes are filtered.
        """
        self._exchange("pull", self._filtered(options, significance))

    def settle(self, options: Sequence[Mapping[str, Any]]) -> None:
        """Push the gradients since the last exchange, if there are any; wait for all workers, and pull."""
        self._exchange("settle", self._filtered(options, 0.0))

    def _exchange(self, request: str, options: Sequence[Mapping[str, Any]]) -> None:
        lost: PeerLost | None = None
        try:
            self._send(request, options)
            if request == "pull" and self._max_norm is not None:
                clip(self.shard.gradients(), self._max_norm, self._group)
                self.shard.step()
            self._receive(*(self.shard.pull(self._clock + 1) if request == "pull" else self.shard.settle(self._rank)))
        except PeerLost as error:
            lost = error
        if lost is not None:  # here, so that the first cause has no lost worker as its context
            raise self.shard.first_cause(lost)

    def open(self) -> None:
        """Begin with this worker's weights."""
        self.shard.open(self._rows())

    def close(self) -> None:
        """Close all connections."""
        if self.shard.tables is not None:
            self.shard.tables.served = None  # look-ups are collectives again
        if self._peers:
            self._client.close()
            self._server.close()

    def _rows(self) -> list[Tensor]:
        return self.portion.cut([one.detach() for one in self._parameters])

    def _send(self, request: str, options: Sequence[Mapping[str, Any]]) -> None:
        """Push if there are steps, and ask all shards for weights."""
        pushes, unused = self.steps > 0 or self._residuals is not None, sorted(self._unused)
        share, clock = self._share / max(1, self.steps), self._clock + pushes
        rows = self._row_exchange.push() if pushes and self._row_exchange is not None else None
        head = {"clock": clock, "share": share, "unused": unused, "options": options}
        sent = 0
        for peer in self._peers:
            sent += self._push(peer, head) if pushes else 0
            self._client.ask(peer, request, clock)
        if self._residuals is not None:
            self.pushed = self.pushed[0] + sent, self.pushed[1] + (request == "pull")
        if pushes:
            self.shard.push(Push(self._rank, clock, share, frozenset(unused), options, rows), self._views[self._rank])
        self._unused, self._share, self.steps = {*range(len(self._parameters))}, 0.0, 0

    def _push(self, peer: int, head: dict[str, Any]) -> int:
        """Push to another shard; the bytes."""
        counts, body = None, self._buffers[peer]
        if self._residuals is not None:
            counts, body = pack(self._views[peer]) or (None, body)
        self._client.push(peer, head | {"counts": counts}, body_of(body))
        return len(body)

    def _filtered(self, options: Sequence[Mapping[str, Any]], fraction: float) -> Sequence[Mapping[str, Any]]:
        """Replace the sums by what is significant, or by all if ``fraction`` is 0; the options of this push."""
        if self._residuals is None:
            return options
        if any(one.get("momentum") or next(iter(one.get("betas", ())), 0) for one in options):
            raise InvalidInput(
                "a schedule sets a momentum, in which a change that the filter kept back counts again; expected a "
                "schedule such as OneCycleLR(cycle_momentum=False), or filter=None."
            )
        present = [float(one.get("lr", 1.0)) for one in options]
        self._rates = [rate or last for rate, last in zip(present, self._rates, strict=True)]
        rates = [*zip(present, present if fraction else self._rates, strict=True), (1.0, 1.0)]
        for index in self._unused:
            for views in self._views:
                views[index].zero_()
        weights = [portion.cut([one.detach() for one in self._parameters]) for portion in self._portions]
        self._residuals.filter(self._views, weights, [rates[number] for number in self._groups], fraction)
        self._unused = {n for n in self._unused if not any(bool(views[n].any()) for views in self._views)}
        changes = [{"lr": rate} if self.steps else {"lr": rate, "weight_decay": 0.0} for _, rate in rates[:-1]]
        pairs = zip(options, changes, strict=True)
        return [{**one, **{name: new[name] for name in new.keys() & one.keys()}} for one, new in pairs]

    def _receive(self, clock: int, buffer: Tensor) -> None:
        """Copy the weights of this worker's shard into the parameters, then those of the others."""
        self._fill(self._rank, self.portion.views(buffer))
        for peer in self._peers:
            clock = min(clock, self._client.answer(peer, body_of(self._buffers[peer])))
            self._fill(peer, self._views[peer])
        self._clock = clock

    @torch.no_grad()
    def _fill(self, shard: int, views: Sequence[Tensor]) -> None:
        for parameter, rows, view in zip(self._parameters, self._portions[shard].rows, views, strict=True):
            if rows:
                rows_of(parameter, rows).copy_(view)

    def _connect(self) -> None:
        group, world = self._group, None if self._group.axis is None else self._group.axis.world
        if world is None or not world.secret:
            raise InvalidInput(
                "ParameterServer needs the addresses of a gang; expected the world's group of a cluster."
            )
        addresses = [world.addresses[rank] for rank in group.ranks]
        self._server = ShardServer(self.shard, group.rank, group.ranks, addresses[group.rank], world.secret)
        world.on_end(self.close)
        ports = group.gather(self._server.endpoint.port)
        for peer in self._peers:
            self._client.connect(peer, Endpoint((addresses[peer],), ports[peer], world.secret))
