"""Federated averaging: clients train on their own rows, which never leave their shard.

    S      = a random set of max(1, C K) of the K clients, C K rounded     C = ``client_fraction``
    w_k    = SGD(w), ``epochs`` passes over client k's rows, on its loss + mu/2 ||w_k - w||^2
    d      = sum_{k in S} n_k (w - w_k) / sum_{k in S} n_k                 n_k = denominator of the client's rows
    v'     = beta v + d                                                    beta = ``momentum``
    w'     = w - eta v'                                                    eta = ``learning_rate``

B. McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017 (FedAvg, with
eta = 1 and beta = 0; FedSGD, with ``epochs=1`` and one batch per client); T. Hsu, H. Qi and M. Brown, Measuring the
effects of non-identical data distribution, 2019 (FedAvgM); T. Li et al., Federated optimization in heterogeneous
networks, MLSys 2020 (FedProx, mu). K counts the clients whose rows have a positive weight.

With ``quantize_bits``, each tensor h of a client's update w - w_k is quantized without bias to b bits, E q = h:

    step = (max h - min h) / (2^b - 1)
    q_i  = min h + step * (floor s_i + B_i)    s_i = (h_i - min h) / step,  B_i = 1 with probability s_i - floor s_i

(J. Konecny et al., Federated learning: strategies for improving communication efficiency, 2016, section 3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from sparkdl.data.columns import InputColumn
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard, numbers
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import BelowOne, CheckedFields, Count, NonNegative, Positive, Share, within
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import average, positive, scalars, scaled
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_training import LocalTraining, toward
from sparkdl.rounds.parameters import Weights, flatten, load, module_of, rest, start, trainable, unflatten
from sparkdl.training.objective.loss import Criterion
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.outer_update import outer_update


@dataclass(frozen=True)
class FederatedAveraging(CheckedFields):
    """Federated averaging.

    Attributes:
        client: integer column with each row's client; the same as the columns' ``client``.
        client_fraction: fraction of the clients that train in a round, above 0 to 1; at least one client trains.
        rounds: number of averagings.
        epochs: passes over a client's rows per round.
        batch_size: rows of a client's step; a client with fewer rows takes one step on all.
        learning_rate: learning rate of the server; 1 for plain averaging.
        momentum: momentum of the server; 0 for plain averaging.
        prox_mu: strength of the proximal term that keeps a client near the common weights; 0 for none.
        quantize_bits: bits per number that a client sends, 1 to 16; default: no quantization.
        shuffle: move each client's rows to one shard. With False, rows stay in place, and a client with rows in
            several shards counts as several clients.
    """

    client: str
    client_fraction: Share = 0.1
    rounds: Count = 100
    epochs: Count = 1
    batch_size: Count = 32
    learning_rate: Positive = 1.0
    momentum: BelowOne = 0.0
    prox_mu: NonNegative = 0.0
    quantize_bits: Annotated[int, within(1, 16)] | None = None
    shuffle: bool = True

    uses_optimizer = True
    reduce = staticmethod(add)

    def init(self, objective: Objective, seed: int) -> State:
        """The initial weights; the first round then counts the clients."""
        weights, names = start(objective, seed)
        velocity = torch.zeros_like(flatten(weights, names))
        state = {"weights": weights, "names": names, "velocity": velocity, "seed": seed}
        return {**state, "round": 0, "clients": None, "row": {}}

    def broadcast_state(self, state: State) -> State:
        """The state without the server's momentum."""
        return {name: value for name, value in state.items() if name not in ("velocity", "row")}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Train the shard's selected clients, one after the other."""
        if state["clients"] is None:
            counts = torch.zeros(shard.count, dtype=torch.float64)
            counts[shard.index] = len(ShardClients.of(shard, self.client, objective.criterion()))
            return {"clients": counts}, None
        w, others = flatten(state["weights"], state["names"]), rest(state["weights"], state["names"])
        zeros = {name: torch.zeros_like(tensor) for name, tensor in others.items()}
        total = {"delta": torch.zeros_like(w), **scaled(zeros, 0.0), **scalars(loss=0.0, clients=0.0)}
        chosen = self._chosen(state, shard.index)
        if chosen:
            clients = ShardClients.of(shard, self.client, objective.criterion())
            training = _Training(self, objective, state, w)
            for index in chosen:
                training.add(total, *clients[index])
        return total, None

    def apply(self, state: State, update: Update) -> State:
        """Take the server's step."""
        if state["clients"] is None:
            positive(update["clients"].sum())
            return {**state, "clients": [round(count) for count in update["clients"].tolist()]}
        names, share = state["names"], float(update["share"])
        w, delta = flatten(state["weights"], names), update["delta"] / share
        w, velocity = outer_update(w, delta, state["velocity"], lr=self.learning_rate, momentum=self.momentum)
        others = average(update, rest(state["weights"], names))
        weights = {**unflatten(w, state["weights"], names), **others}
        row = {"loss": float(update["loss"]) / share, **self._traffic(weights, state, round(float(update["clients"])))}
        return {**state, "weights": weights, "velocity": velocity, "round": state["round"] + 1, "row": row}

    def converged(self, state: State) -> bool:
        """Whether all rounds are done."""
        return bool(state["round"] >= self.rounds)

    def metrics(self, state: State) -> dict[str, float | str]:
        """The round's entries of the history; empty after the round that counts clients.

        Returns:
            ``loss``, mean loss of the clients' last epochs, each batch before its step; ``clients``, their number;
            ``bytes``, the size of their updates; and ``bytes_saved`` by quantization.
        """
        return dict(state["row"])

    def _chosen(self, state: State, index: int) -> list[int]:
        counts = state["clients"]
        total, first = sum(counts), sum(counts[:index])
        size = max(1, round(self.client_fraction * total))
        drawn = torch.randperm(total, generator=generator(state["seed"], state["round"]))[:size] - first
        return sorted(drawn[(drawn >= 0) & (drawn < counts[index])].tolist())

    def _traffic(self, weights: Weights, state: State, clients: int) -> dict[str, float]:
        trained = [weights[name] for name in state["names"]]
        others = sum(tensor.nbytes for tensor in rest(weights, state["names"]).values())
        exact = sum(tensor.nbytes for tensor in trained) + others
        sent = sum(packed(tensor.numel(), tensor.element_size(), self.quantize_bits) for tensor in trained) + others
        return {"clients": clients, "bytes": clients * sent, "bytes_saved": clients * (exact - sent)}


class _Training:
    """Trains the clients of a shard in one round with one module, since building one per client would be slow.

    It resets weights and buffers, non-persistent ones included, before each client. Sums and quantization are on the
    CPU, so that a GPU rounds by the same random numbers.
    """

    def __init__(self, algorithm: FederatedAveraging, objective: Objective, state: State, w: Tensor) -> None:
        self._algorithm, self._objective, self._state, self._w = algorithm, objective, state, w
        self._module = module_of(objective, state["weights"])
        self._start = {name: tensor.to(objective.device) for name, tensor in state["weights"].items()}
        self._parameters = list(trainable(self._module).values())
        self._others = list(rest(state["weights"], state["names"]))  # averaged but not trained
        self._buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        self._pull = toward(w.to(objective.device), algorithm.prox_mu) if algorithm.prox_mu else None

    def add(self, total: Update, client: int, rows: Shard) -> None:
        algorithm, key = self._algorithm, (self._state["seed"], client)
        local = LocalTraining(algorithm.epochs, algorithm.batch_size, self._state["round"], key, self._pull)
        load(self._module, self._start)
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._buffers[name])
        try:
            loss, denominator = local.train(self._objective, self._module, rows)
        except InvalidInput as error:
            raise InvalidInput(f"client {client}: {error.message}") from error
        share = float(denominator)
        delta = self._w - torch.cat([tensor.detach().flatten() for tensor in self._parameters]).cpu()
        if algorithm.quantize_bits is not None:
            random = generator(*key, self._state["round"], 1)
            sizes = [tensor.numel() for tensor in self._parameters]
            delta = quantised_each(delta, sizes, algorithm.quantize_bits, random)
        total["delta"].add_(delta, alpha=share)
        trained = self._module.state_dict()
        for name in self._others:
            total[f"weights/{name}"].add_(trained[name].cpu(), alpha=share)
        for name, value in (("share", share), ("loss", float(loss)), ("clients", 1.0)):
            total[name] += value


def quantised(values: Tensor, bits: int, random: torch.Generator) -> Tensor:
    """A tensor's values after quantization, in its shape and dtype."""
    # Drawn in any case: whether equal values stay equal depends on the device's rounding, and the next tensor's numbers
    # must not.
    chance = torch.rand(values.shape, generator=random, dtype=values.dtype)
    low, levels = values.min(), (1 << bits) - 1
    step = (values.max() - low) / levels
    if not float(step):
        return values.clone()
    scaled = (values - low) / step
    floor = scaled.floor()
    up = chance < scaled - floor
    return low + (floor + up).clamp(max=levels) * step  # rounding may raise s of the maximum above ``levels``


def quantised_each(flat: Tensor, sizes: Sequence[int], bits: int, random: torch.Generator) -> Tensor:
    """Quantize concatenated tensors of these ``sizes``, ``[n]``, except those that would not shrink."""
    shrinks = [packed(size, flat.element_size(), bits) < size * flat.element_size() for size in sizes]
    pairs = zip(torch.split(flat, list(sizes)), shrinks, strict=True)
    return torch.cat([quantised(tensor, bits, random) if shrunk else tensor for tensor, shrunk in pairs])


def packed(count: int, size: int, bits: int | None) -> int:
    """Bytes that a client sends for ``count`` numbers of ``size`` bytes; ``bits`` is None without quantization."""
    return count * size if bits is None else min(count * size, -(-count * bits // 8) + 2 * size)


@dataclass(frozen=True)
class ShardClients:
    """The clients of a shard whose rows have a positive weight, in the order of their ids."""

    shard: Shard  # the rows, as the only shard
    ids: Tensor  # int64 [clients]
    rows: Tensor  # positions of the shard's rows, grouped by client
    bounds: Tensor  # first and past-the-end index into ``rows``, [clients, 2]

    @staticmethod
    def of(shard: Shard, name: str, criterion: Criterion) -> ShardClients:
        """The clients of a shard by its client column ``name``, which must hold integers; else raises InvalidInput."""
        column = _checked(shard, name)
        shard = as_only_shard(shard, criterion)
        stored = torch.arange(shard.rows) if shard.order is None else shard.order.long()
        ordered, rows = torch.sort(numbers(shard.tensors, column.name)[stored].long(), stable=True)
        ids, counts = torch.unique_consecutive(ordered, return_counts=True)
        owners = torch.repeat_interleave(torch.arange(len(ids)), counts)
        denominators = None if shard.denominators is None else shard.denominators[stored[rows]]
        weighing = torch.bincount(owners, denominators, minlength=len(ids)) > 0
        last = counts.cumsum(0)
        bounds = torch.stack([last - counts, last], 1)
        return ShardClients(shard, ids[weighing], rows, bounds[weighing])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[int, Shard]:
        """A client's id, and its rows as a shard of their own."""
        first, last = self.bounds[index].tolist()
        return int(self.ids[index]), self.shard.subset(self.rows[first:last], (last - first,))


def _checked(shard: Shard, name: str) -> InputColumn:
    column = shard.columns.client
    if column is None or column.name != name:
        actual = "there is no client column" if column is None else f"the client column is {column.name!r}"
        raise InvalidInput(
            f"the algorithm has client={name!r}, and {actual}; expected columns with client=InputColumn({name!r})."
        )
    ids = numbers(shard.tensors, name)
    if ids.is_floating_point():
        raise InvalidInput(
            f"the client column {name!r} has dtype {str(ids.dtype).removeprefix('torch.')}, which rounds large ids; "
            f"expected integers, as InputColumn({name!r}, 'int64')."
        )
    return column
