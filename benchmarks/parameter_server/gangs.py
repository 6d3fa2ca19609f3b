"""What the workers of the benchmark do: steps of a strategy, and messages with a parameter shard and with sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.mlp import mlp
from sparkdl import Objective
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.net.protocol import Endpoint
from sparkdl.training.layouts import equalise
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.parameter_server.client import ShardClient, body_of
from sparkdl.training.strategies.parameter_server.placement import portions
from sparkdl.training.strategies.parameter_server.service import ShardServer
from sparkdl.training.strategies.parameter_server.shard import ParameterShard


@dataclass(frozen=True)
class Steps:
    """Steps of SGD on a fixed batch; some steps begin with a pause.

    Attributes:
        strategy: the strategy.
        widths: of the model's layers.
        rows: of each worker's batch.
        steps: their number, after a few others.
        pause: seconds.
        often: share of the steps with a pause, other ones on each worker.
    """

    strategy: Strategy
    widths: tuple[int, ...]
    rows: int
    steps: int
    pause: float = 0.0
    often: float = 0.0

    def __call__(self, world: World, shard: Shard | None) -> tuple[float, float, float]:
        """Seconds of a step on the slowest worker, the mean loss after all steps, and a worker's bytes of a step."""
        random = torch.Generator().manual_seed(world.rank)
        inputs = torch.rand(self.rows, self.widths[0], generator=random)
        target = inputs[:, :1].sin() + inputs[:, 1:2]
        sgd = partial(torch.optim.SGD, lr=0.02)
        objective = Objective(partial(mlp, *self.widths), nn.MSELoss(), sgd)
        total = self.rows * world.size
        replica = equalise(Replicated().place(objective, world, Feed(Plan((self.rows,) * world.size, total))))
        sync, group = self.strategy.attach(replica, world.group()), world.group()
        batch = Batch((inputs,), target, None, None, self.rows, self.rows, 1 / world.size, total=total)
        pauses = np.random.default_rng(world.rank).random(self.steps) < self.often

        sent = 0

        def step(paused: bool) -> None:
            nonlocal sent
            if paused:
                time.sleep(self.pause)
            replica.gradients(batch)
            sync.update(world.clock, batch)
            world.clock.tick(batch.total)
            sent += sync.bytes_per_step

        for _ in range(3):
            step(False)
        group.sum_(torch.zeros(1))
        start = time.perf_counter()
        for paused in pauses:
            step(bool(paused))
        taken = time.perf_counter() - start
        sync.end_epoch(1 / world.size)  # before any collective, since others may wait for this worker until then
        taken = max(group.gather(taken))
        with torch.no_grad():
            loss = nn.functional.mse_loss(replica.module(inputs), target)
        sync.detach()
        mean_sent = sum(group.gather(sent)) / world.size / world.clock.step
        return taken / self.steps, sum(group.gather(loss.item())) / world.size, mean_sent


@dataclass(frozen=True)
class Messages:
    """Rank 0 sends gradients to rank 1 and gets weights, by sockets and by a parameter shard in turn.

    Rank 1 takes the same step of SGD on both sides.

    Attributes:
        numbers: of four bytes.
        blocks: of each side.
        repeats: in a block.
    """

    numbers: int
    blocks: int
    repeats: int

    def __call__(self, world: World, shard: Shard | None) -> list[tuple[float, float]]:
        """Seconds of a push and a pull by a shard and by sockets, for each block; empty on rank 1."""
        part, key = portions([torch.zeros(self.numbers)], 1)[0], world.secret
        if world.rank == 1:
            one = ParameterShard(part, partial(torch.optim.SGD, lr=1e-3), 1)
            server = ShardServer(one, 1, [0, 1], world.addresses[1], key)
            listening = socket.create_server((world.addresses[1], 0))
            world.group().gather((listening.getsockname()[1], server.endpoint.port))
            self._serve(listening)
            world.group().gather(None)
            server.close()
            return []
        bare, port = world.group().gather(None)[1]
        connection = socket.create_connection((world.addresses[1], bare))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = ShardClient(0, 60.0, [0, 1])
        client.connect(1, Endpoint((world.addresses[1],), port, key))
        buffer, clock = part.allocate(), 0
        view = body_of(buffer)

        def by_shard() -> None:
            nonlocal clock
            client.push(1, {"clock": clock + 1, "share": 1.0, "unused": [], "options": []}, view)
            client.ask(1, "pull", clock + 1)
            clock = client.answer(1, view)

        def by_socket() -> None:
            connection.sendall(view)
            _receive(connection, view)

        taken = [(self._block(by_shard), self._block(by_socket)) for _ in range(self.blocks)]
        connection.close()
        client.close()
        world.group().gather(None)
        return taken

    def _block(self, call: Callable[[], None]) -> float:
        start = time.perf_counter()
        for _ in range(self.repeats):
            call()
        return (time.perf_counter() - start) / self.repeats

    def _serve(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        weights, gradient = nn.Parameter(torch.zeros(self.numbers)), torch.zeros(self.numbers)
        optimizer, answer = torch.optim.SGD([weights], lr=1e-3), memoryview(weights.detach().numpy().data).cast("B")
        weights.grad = gradient
        for _ in range(self.blocks * self.repeats):
            _receive(connection, memoryview(gradient.numpy().data).cast("B"))
            optimizer.step()
            connection.sendall(answer)
        connection.close()
        listening.close()


def _receive(connection: socket.socket, view: memoryview) -> None:
    size = 0
    while size < len(view):
        size += connection.recv_into(view[size:])
