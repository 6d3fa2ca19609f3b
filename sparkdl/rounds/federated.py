"""Federated averaging: clients train on rows of their own, which never leave their part.

    S      = a random set of max(1, C K) of the K clients                  C = ``fraction``
    w_k    = SGD(w), ``epochs`` passes over client k's rows, on its loss + mu/2 ||w_k - w||^2
    d      = sum_{k in S} n_k (w - w_k) / sum_{k in S} n_k                 n_k = what the client's rows weigh
    v'     = beta v + d                                                    beta = ``momentum``
    w'     = w - eta v'                                                    eta = ``learning_rate``

B. McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017 (FedAvg, with
eta = 1 and beta = 0); T. Hsu, H. Qi and M. Brown, Measuring the effects of non-identical data distribution, 2019
(FedAvgM); T. Li et al., Federated optimization in heterogeneous networks, MLSys 2020 (FedProx, mu). With ``bits``, what
a client sends, w - w_k, is rounded to so many bits a number, up or down at random so that its mean stays: J. Konecny et
al., Federated learning: strategies for improving communication efficiency, 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.feed.part import Part, numbers
from sparkdl.feed.sampling import generator
from sparkdl.objective import Objective
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.averaging import average, scalars, weighed
from sparkdl.rounds.evaluation import alone, mass_of
from sparkdl.rounds.flat import flatten, module_of, rest, start, unflatten, weights_of
from sparkdl.rounds.local import Local, toward


@dataclass(frozen=True)
class FederatedAveraging:
    """Federated averaging.

    Attributes:
        client: the column that says whose row it is, of integers.
        fraction: of the clients that train in a round, above 0; at least one does.
        rounds: how often weights are averaged.
        epochs: passes over a client's rows in a round.
        batch_size: rows of a client's step.
        learning_rate: of the server, 1 for plain averaging.
        momentum: of the server, 0 for plain averaging.
        mu: how strongly a client is held near the common weights; 0 not at all.
        bits: of a number that a client sends, 1 to 16; None for all of it.
        shuffle: bring each client's rows together in one part; False leaves rows where they are, and takes a client's
            rows in another part for another client's.
    """

    client: str
    fraction: float = 0.1
    rounds: int = 100
    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 1.0
    momentum: float = 0.0
    mu: float = 0.0
    bits: int | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name in ("rounds", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"FederatedAveraging has {name}={getattr(self, name)!r}; expected at least 1.")
        if not 0 < self.fraction <= 1:
            raise InvalidInput(f"FederatedAveraging has fraction={self.fraction!r}; expected above 0 and at most 1.")
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1 and self.mu >= 0):
            raise InvalidInput(
                f"FederatedAveraging has learning_rate={self.learning_rate!r}, momentum={self.momentum!r} and "
                f"mu={self.mu!r}; expected above 0, from 0 to below 1, and at least 0."
            )
        if self.bits is not None and not 1 <= self.bits <= 16:
            raise InvalidInput(f"FederatedAveraging has bits={self.bits!r}; expected 1 to 16, or None.")

    @property
    def takes_steps(self) -> bool:
        """See ``Algorithm``."""
        return True

    def init(self, objective: Objective, seed: int) -> State:
        """See ``Algorithm``; the first round counts the clients."""
        weights, names = start(objective, seed)
        velocity = torch.zeros_like(flatten(weights, names))
        known = {"weights": weights, "names": names, "velocity": velocity, "seed": seed}
        return {**known, "round": 0, "clients": None, "chosen": [], "row": {}}

    def map(self, objective: Objective, state: State, part: Part, memory: Memory) -> tuple[Update, Memory]:
        """See ``Algorithm``: the part's chosen clients, one after the other."""
        ids, owners = _owners(part)
        if state["clients"] is None:
            counts = torch.zeros(part.count, dtype=torch.float64)
            counts[part.index] = len(ids)
            return {"clients": counts}, None
        own, w = alone(part, objective.criterion()), flatten(state["weights"], state["names"])
        total = self._nothing(state, w)
        for chosen in state["chosen"][part.index]:
            rows = torch.nonzero(owners == chosen).flatten()
            client = own.subset(rows, (len(rows),))
            total = add(total, self._client(objective, state, client, int(ids[chosen])))
        return total, None

    def reduce(self, one: Update, other: Update) -> Update:
        """See ``Algorithm``: sums."""
        return add(one, other)

    def apply(self, state: State, update: Update) -> State:
        """See ``Algorithm``: the server's step, and the clients of the next round."""
        if state["clients"] is None:
            state = {**state, "clients": [round(float(count)) for count in update["clients"]]}
            return {**state, "chosen": self._choose(state)}
        names, share = state["names"], float(update["share"])
        others = average(update, rest(state["weights"], names))
        velocity = self.momentum * state["velocity"] + update["apart"] / share
        w = flatten(state["weights"], names) - self.learning_rate * velocity
        weights = {**unflatten(w, state["weights"], names), **others}
        clients = round(float(update["clients"]))
        row = {
            "loss": float(update["loss"]) / share,
            "clients": clients,
            "bytes": clients * self._bytes(len(w), w.dtype),
        }
        state = {**state, "weights": weights, "velocity": velocity, "round": state["round"] + 1, "row": row}
        return {**state, "chosen": self._choose(state)}

    def done(self, state: State) -> bool:
        """See ``Algorithm``."""
        return bool(state["round"] >= self.rounds)

    def row(self, state: State) -> dict[str, float | str]:
        """See ``Algorithm``: the clients' mean loss, how many they were, and the bytes that they would send."""
        return dict(state["row"])

    def _client(self, objective: Objective, state: State, rows: Part, client: int) -> Update:
        """What a client sends, times what its rows weigh."""
        module, names = module_of(objective, state["weights"]), state["names"]
        w, key = flatten(state["weights"], names), (state["seed"], client)
        pull = toward(w, self.mu) if self.mu else None
        loss, _ = Local(self.epochs, self.batch_size, state["round"], key, pull).train(objective, module, rows)
        trained, share = weights_of(module), mass_of(rows)
        apart = w - flatten(trained, names)
        if self.bits is not None:
            apart = quantised(apart, self.bits, generator(*key, state["round"], 1))
        return {
            "apart": apart * share,
            **weighed(rest(trained, names), share),
            **scalars(loss=loss, clients=1.0),
        }

    def _nothing(self, state: State, w: Tensor) -> Update:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in rest(state["weights"], state["names"]).items()}
        return {"apart": torch.zeros_like(w), **weighed(zeros, 0.0), **scalars(loss=0.0, clients=0.0)}

    def _choose(self, state: State) -> list[list[int]]:
        """For each part, which of its clients train in the next round."""
        counts: Sequence[int] = state["clients"]
        total = sum(counts)
        wanted = max(1, round(self.fraction * total))
        drawn = torch.randperm(total, generator=generator(state["seed"], state["round"]))[:wanted].tolist()
        chosen, first = [], 0
        for count in counts:
            chosen.append(sorted(each - first for each in drawn if first <= each < first + count))
            first += count
        return chosen

    def _bytes(self, size: int, dtype: torch.dtype) -> int:
        return size * dtype.itemsize if self.bits is None else -(-size * self.bits // 8) + 2 * dtype.itemsize


def quantised(values: Tensor, bits: int, random: torch.Generator) -> Tensor:
    """Values rounded to ``2^bits`` levels between the smallest and the largest, at random so that their mean stays."""
    low, levels = values.min(), (1 << bits) - 1
    step = (values.max() - low) / levels
    if not float(step):
        return values
    scaled = (values - low) / step
    floor = scaled.floor()
    up = torch.rand(values.shape, generator=random, dtype=values.dtype) < scaled - floor
    return low + (floor + up) * step


def _owners(part: Part) -> tuple[Tensor, Tensor]:
    """The part's clients in order, and for each row which of them it is of."""
    column = part.columns.client
    if column is None:
        raise InvalidInput("there is no client column; expected one in columns.")
    found = numbers(part.tensors, column.name)
    found = found if part.order is None else found[part.order.long()]
    ids, owners = torch.unique(found, return_inverse=True)
    return ids, owners
