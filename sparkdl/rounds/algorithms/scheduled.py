"""Scheduled coordinate descent for the lasso: a round updates the coordinates that changed most.

    minimise  1/M sum_i m_i r_i^2 + l1 ||w||_1,     r_i = y_i - x_i . w - b,     M = sum_i m_i

``m_i`` is the weight of row ``i``. The driver draws a set S of ``width`` coordinates, ``w_j`` with a probability in
proportion to its last change. The shards sum over their rows

    q = sum m x_S,   Q = sum m x_S x_S^T,   e = sum m r,   c = sum m r x_S

With the intercept ``b`` at its best value for any ``w``, these become ``Q <- Q - q q^T / M`` and ``c <- c - q e / M``.
In the order of the draw, the driver drops ``j`` if ``|Q_jk| > rho sqrt(Q_jj Q_kk)`` for a coordinate ``k`` before it,
and commits the others one after another, where ``d`` are the changes of the round so far:

    w_j' = soft(Q_jj w_j + c_j - Q_j . d,  M l1 / 2) / Q_jj,      b' = b + (e - q . d) / M

So the objective never increases. The schedule is the one of S. Lee et al., On model parallelization and scheduling
strategies for distributed machine learning, NIPS 2014 (STRADS), which commits all coordinates at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, NonNegative
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import positive
from sparkdl.rounds.evaluate import as_only_shard, batches
from sparkdl.rounds.parameters import module_of, start
from sparkdl.rounds.prox import L1
from sparkdl.training.objective.objective import Objective

_EXPLORED = 0.1  # the share of draws that does not depend on changes
_EMPTY = 1e-12  # a column is constant if its variance is a smaller part of its mean square


@dataclass(frozen=True)
class Scheduled(CheckedFields):
    """Lasso by coordinate descent over scheduled coordinates; for ``nn.Linear(n, 1)`` and ``nn.MSELoss()``.

    Attributes:
        l1: strength of ``l1 ||w||_1``, added to the mean squared error: twice scikit-learn's ``alpha`` of ``Lasso``.
        width: coordinates that a round draws; a shard sums ``width^2`` numbers.
        rho: largest correlation of two columns that a round updates together. The default 1 drops none: since a round
            commits one coordinate after another, correlated ones do no harm. STRADS drops them from 0.1 on.
        rounds: number of rounds.
        priority: whether coordinates that changed last are drawn more often; False draws all alike.
    """

    l1: NonNegative
    width: Count = 64
    rho: NonNegative = 1.0
    rounds: Count = 500
    priority: bool = True

    uses_optimizer = False
    reduce = staticmethod(add)

    def init(self, objective: Objective, seed: int) -> State:
        """The initial weights and the first draw; raises InvalidInput unless the model and the loss are a lasso's."""
        weights, _ = start(objective, seed)
        module, loss = module_of(objective, weights), objective.loss
        if not (isinstance(module, nn.Linear) and module.out_features == 1):
            raise InvalidInput(f"strategy is Scheduled, and the model is {module}; expected nn.Linear(n, 1).")
        if not (isinstance(loss, nn.MSELoss) and loss.reduction == "mean"):
            raise InvalidInput(f"strategy is Scheduled, and the loss is {loss}; expected nn.MSELoss().")
        w = weights["weight"].flatten().double()
        state: State = {"weights": weights, "w": w, "b": weights.get("bias", torch.zeros(1)).double().squeeze()}
        state |= {"change": torch.ones_like(w), "round": 0, "seed": seed, "row": {}}
        return state | {"drawn": self._drawn(state)}

    def broadcast_state(self, state: State) -> State:
        """Weights and the drawn coordinates."""
        return {name: state[name] for name in ("w", "b", "drawn")}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Sum over the shard's rows."""
        shard, drawn = as_only_shard(shard, objective.criterion()), state["drawn"]
        used = torch.cat([drawn, state["w"].nonzero().squeeze(1)])
        w = torch.cat([torch.zeros(len(drawn), dtype=torch.float64), state["w"][used[len(drawn) :]]])
        # Of rows with a 1 and the residual beside the drawn columns, one product has all sums.
        sums = torch.zeros(len(drawn) + 2, len(drawn) + 2, dtype=torch.float64)
        for batch in batches(shard):
            x, y = batch.inputs[0], batch.target
            assert isinstance(x, Tensor)
            assert isinstance(y, Tensor)
            columns = x.flatten(1)[:, used].double()
            r = y.flatten().double() - columns @ w - state["b"]
            m = torch.ones_like(r) if batch.weights is None else batch.weights.double()
            rows = torch.cat([columns[:, : len(drawn)], torch.ones_like(r)[:, None], r[:, None]], 1)
            sums += (rows * m[:, None]).T @ rows
        return {"sums": sums}, None

    def apply(self, state: State, update: Update) -> State:
        """Commit the drawn coordinates, and draw the coordinates of the next round."""
        sums, drawn, weights = update["sums"], state["drawn"], state["weights"]
        q, e, total = sums[:-2, -2], sums[-1, -2], positive(sums[-2, -2])
        part = 1 / total if "bias" in weights else 0.0
        products, c = sums[:-2, :-2] - part * torch.outer(q, q), sums[:-2, -1] - part * e * q
        w, change, d = state["w"].clone(), state["change"].clone(), torch.zeros_like(q)
        committed = self._independent(products)
        for j in committed:
            size = float(products[j, j])
            if size <= _EMPTY * float(sums[j, j]):  # the intercept does what a constant column does
                d[j] = -w[drawn[j]]
            else:
                pulled = w[drawn[j]] + (c[j] - products[j] @ d) / size
                d[j] = L1(self.l1).prox(pulled, total / 2 / size) - w[drawn[j]]
        w[drawn] += d
        change[drawn[committed]] = d[committed].abs()
        b = state["b"] + part * (e - q @ d)
        loss = max(0.0, float(sums[-1, -1] - part * e * e - 2 * c @ d + d @ products @ d)) / total
        row = {"objective": loss + self.l1 * float(w.abs().sum()), "loss": loss, "updates": len(committed)}
        values = {"weight": w.view(1, -1), "bias": b.view(1)}
        weights = {name: values[name].to(value.dtype) for name, value in weights.items()}
        after = {**state, "weights": weights, "w": w, "b": b, "change": change, "round": state["round"] + 1, "row": row}
        return {**after, "drawn": self._drawn(after)}

    def converged(self, state: State) -> bool:
        """Whether all rounds are done."""
        return bool(state["round"] >= self.rounds)

    def metrics(self, state: State) -> dict[str, float | str]:
        """``objective`` with its penalty and ``loss`` after the round, and ``updates``, committed coordinates."""
        return dict(state["row"])

    def _drawn(self, state: State) -> Tensor:
        change = state["change"]
        chances = torch.ones_like(change)
        if self.priority and float(change.sum()):
            chances = (1 - _EXPLORED) * change / change.sum() + _EXPLORED / len(change)
        draw = generator(state["seed"], state["round"])
        return torch.multinomial(chances, min(self.width, len(change)), generator=draw)

    def _independent(self, products: Tensor) -> list[int]:
        """The places of drawn coordinates to commit."""
        committed: list[int] = []
        sizes = products.diagonal().clamp(min=0).sqrt()
        for j in range(len(products)):
            if bool((products[j, committed].abs() <= self.rho * sizes[j] * sizes[committed]).all()) or not float(
                sizes[j]
            ):
                committed.append(j)
        return committed
