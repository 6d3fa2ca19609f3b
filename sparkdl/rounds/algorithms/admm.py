"""Consensus ADMM with momentum: every shard has its own weights, which converge to a consensus.

    minimise  sum_i f_i(x_i) + g(z)   subject to   x_i = z,   i = 1 ... N

    x_i = argmin  f_i(x) + rho_i/2 ||x - c + d_i||^2        on the executors
    h_i = alpha x_i + (1 - alpha) c                          over-relaxation
    z'  = prox_{g / (N rho_i)}( mean_i(h_i + d_i) )          on the driver
    u_i' = d_i + h_i - z'                                    scaled dual variables
    c'  = z' + beta (z' - z)                                 center of the next round
    d_i' = u_i' + beta (u_i' - u_i)

``f_i = F_i / M`` is the shard's term of the mean loss, so that ``sum_i f_i`` is the loss for any ``N``, and
``rho_i = rho / N``, so that ``rho`` has the same effect for any ``N``. Primal and dual residuals are

    ||r||^2 = sum_i ||x_i - z'||^2          ||s||^2 = N rho_i^2 ||z' - c||^2

With n parameters, the algorithm stops when

    ||r|| <= sqrt(N n) abs_tol + rel_tol max( sqrt(sum_i ||x_i||^2), sqrt(N) ||z'|| )
    ||s|| <= sqrt(N n) abs_tol + rel_tol rho_i sqrt(sum_i ||u_i'||^2)

S. Boyd et al., Distributed optimization and statistical learning via the alternating direction method of multipliers,
Foundations and Trends in Machine Learning 3(1), 2011, sections 3 and 7.

*Penalty.* If, after round k, one relative residual exceeds ``mu`` times the other, ``rho`` changes by the factor
``tau^a_k`` or ``tau^-a_k``, and every ``u_i`` is rescaled: B. Wohlberg, ADMM penalty parameter selection by residual
balancing, 2017. With ``K = adapt_rounds``

    a_k = min(1, (K / k)^2)

The sum of all ``a_k`` is at most ``2 K``. ADMM whose factors tend to 1 summably converges: B. He, H. Yang and S. Wang,
Alternating direction method with self-adaptive penalty parameters for monotone variational inequalities, J. Optim.
Theory Appl. 106(2), 2000.

*Momentum.* T. Goldstein, B. O'Donoghue, S. Setzer and R. Baraniuk, Fast alternating direction optimization methods,
SIAM J. Imaging Sci. 7(3), 2014, algorithm 8. The combined residual is

    e = rho_i sum_i ||u_i' - d_i||^2 + N rho_i ||z' - c||^2

If it is below 0.999 times its least value so far, ``t' = (1 + sqrt(1 + 4 t^2)) / 2`` and ``beta = (t - 1) / t'``. If
not, or if ``rho`` changes, ``beta = 0`` and ``t' = 1``. With ``rho``, the least value changes by the factor that is
above 1. In contrast to the paper, a restart keeps the round. Yet the residuals fall below every bound: after finitely
many rounds with momentum, ADMM without it converges; after infinitely many, the least ``e`` tends to 0.

A shard's local state is ``(x_i, h_i + d_i, u_i)``. Sums over shards are of deviations from ``c``, which are small near
convergence.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import torch
from torch import Tensor

from sparkdl.data.shard import Shard
from sparkdl.io.fields import CheckedFields, Natural, NonNegative, Positive, Rule
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import average, positive, scalars, scaled
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_solvers import NewtonCG, ShardProblem
from sparkdl.rounds.parameters import flatten, module_of, rest, start, unflatten, weights_of
from sparkdl.rounds.prox import Prox, penalised
from sparkdl.training.objective.objective import Objective

_DECREASE = 0.999  # of the combined residual, for momentum
_Factor = Annotated[float, Rule("a finite number of at least 1", lambda number: 1 <= number < math.inf)]


class Solver(Protocol):
    """Solver of a shard's local problem, for example ``NewtonCG`` of ``sparkdl.rounds.local_solvers``."""

    @property
    @abstractmethod
    def uses_optimizer(self) -> bool:
        """Whether it steps the objective's optimizer."""

    @abstractmethod
    def solve(self, problem: ShardProblem) -> None:
        """Set the problem's module to the solution."""


@dataclass(frozen=True)
class ConsensusADMM(CheckedFields):
    """Consensus ADMM with momentum.

    Boyd et al. have ``mu`` 10, ``abs_tol`` 1e-4 and ``alpha`` 1.5 to 1.8. Here ``mu`` is 2, since it compares relative
    residuals, which start near 1. ``abs_tol`` is 1e-6, to resolve coefficients to about 1e-4. ``alpha`` is 1, since
    momentum replaces over-relaxation: above 4/3, momentum amplifies modes that over-relaxation reverses.
    ``benchmarks/ill_conditioned`` compares rounds with momentum and without.

    Attributes:
        rho: penalty on deviations from the consensus, above 0.
        prox: penalty on the weights, such as ``L1(1e-3)``; default: none.
        solver: solver of the local problems, warm-started in each round.
        alpha: over-relaxation, 1 (none) to 1.8; with ``accelerate=False``, 1.6 is usual.
        abs_tol: absolute tolerance of the stopping rule.
        rel_tol: relative tolerance of the stopping rule.
        mu: ratio of the relative residuals above which ``rho`` changes.
        tau: largest factor by which ``rho`` changes.
        adapt_rounds: ``K``, number of first rounds in which ``rho`` may change by ``tau``, and later by ever less; with
            0, ``rho`` is constant.
        accelerate: whether rounds have momentum.
        shuffle: redistribute the rows, so that every shard represents the whole; False leaves them in place.
    """

    rho: Positive = 0.1
    prox: Prox | None = None
    solver: Solver = field(default_factory=NewtonCG)
    alpha: Annotated[float, Rule("a number above 0 and below 2", lambda number: 0 < number < 2)] = 1.0
    abs_tol: NonNegative = 1e-6
    rel_tol: NonNegative = 1e-3
    mu: _Factor = 2.0
    tau: _Factor = 2.0
    adapt_rounds: Natural = 50
    accelerate: bool = True
    shuffle: bool = True

    reports_loss = False  # a round has residuals
    reduce = staticmethod(add)

    @property
    def uses_optimizer(self) -> bool:
        """Whether the solver steps the objective's optimizer."""
        return self.solver.uses_optimizer

    def init(self, objective: Objective, seed: int) -> State:
        """The initial consensus; the first round then computes ``M`` and ``N``."""
        weights, names = start(objective, seed)
        # Saved rounds of earlier versions have the denominator of all shards as "mass".
        known: State = {"mass": None, "shards": 0, "round": 0, "rho": self.rho, "row": {}, "over": False}
        known |= _restart(flatten(weights, names), math.inf)
        return {"weights": weights, "names": names, "seed": seed, **known}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Solve the shard's local problem."""
        key, shard = (state["seed"], shard.index), as_only_shard(shard, objective.criterion())
        denominator = shard.denominator()
        if state["mass"] is None:
            return scalars(denominator=denominator, shards=float(denominator > 0)), None
        if not denominator:  # without a local problem the shard is not among the N
            zero = torch.zeros_like(flatten(state["weights"], state["names"]))
            return {**_local_update(zero, zero, zero), **scaled(rest(state["weights"], state["names"]), 0.0)}, {}
        return self._solved(objective, state, shard, memory, key=key)

    def _solved(
        self, objective: Objective, state: State, shard: Shard, memory: Memory, *, key: tuple[int, ...]
    ) -> tuple[Update, Memory]:
        names, c, rho = state["names"], state["center"], state["rho"] / state["shards"]
        x, u, d = c, torch.zeros_like(c), torch.zeros_like(c)
        if memory is not None:  # u of the last round's z', rescaled to rho; if rho changed, beta is 0
            x, z = memory["x"], flatten(state["weights"], names)
            u = (memory["drawn"] - z) * (memory["rho"] / state["rho"])
            d = u + state["beta"] * (u - memory["u"])
        module = module_of(objective, unflatten(x, state["weights"], names))
        v = (c - d).to(objective.device)
        problem = ShardProblem(objective, module, shard, state["mass"], rho, v, state["round"], key)
        self.solver.solve(problem)
        x = problem.x.cpu()
        drawn = self.alpha * x + (1 - self.alpha) * c + d
        weights = weights_of(module)
        others = scaled({name: weights[name] for name in rest(state["weights"], names)}, 1.0)
        return {**_local_update(x - c, drawn - c, x), **others}, {"x": x, "drawn": drawn, "u": u, "rho": state["rho"]}

    def apply(self, state: State, update: Update) -> State:
        """Compute the consensus, the residuals, the next ``rho`` and the next center."""
        if state["mass"] is None:
            return {**state, "mass": positive(update["denominator"]), "shards": round(float(update["shards"]))}
        shards, names, c = state["shards"], state["names"], state["center"]
        consensus = self._prox(state, c + update["drawn"] / shards)
        residuals = self._residuals(update, consensus, (consensus - c).double(), state["rho"] / shards, shards)
        others = rest(state["weights"], names)
        weights = {**unflatten(consensus, state["weights"], names), **average(update, others)}
        row = {name: residuals[name] for name in ("primal", "dual")} | {"rho": state["rho"]}
        over = residuals["primal"] <= residuals["primal_bound"] and residuals["dual"] <= residuals["dual_bound"]
        rho = self._balanced(state, residuals)
        after = {"weights": weights, "round": state["round"] + 1, "row": row, "rho": rho, "over": over}
        return {**state, **after, **self._centered(state, consensus, residuals["combined"], rho)}

    def converged(self, state: State) -> bool:
        """Whether Boyd's stopping rule holds."""
        return bool(state["over"])

    def metrics(self, state: State) -> dict[str, float | str]:
        """``primal`` ``||r||``, ``dual`` ``||s||`` and ``rho``; empty after the first round."""
        return dict(state["row"])

    def _prox(self, state: State, v: Tensor) -> Tensor:
        if self.prox is None:
            return v
        weights = unflatten(v, state["weights"], state["names"])
        selected = penalised({name: weights[name] for name in state["names"]}, self.prox.penalize_bias)
        t = 1 / state["rho"]
        proximal = {name: self.prox.prox(weights[name], t) if on else weights[name] for name, on in selected.items()}
        return flatten(proximal, state["names"])

    def _residuals(self, update: Update, z: Tensor, moved: Tensor, rho: float, num_shards: int) -> dict[str, float]:
        step = float(moved @ moved)
        primal = float(update["delta2"]) - 2 * float(moved @ update["delta"].double()) + num_shards * step
        duals = float(update["drawn2"]) - 2 * float(moved @ update["drawn"].double()) + num_shards * step
        root = math.sqrt(num_shards * len(z)) * self.abs_tol
        size = max(math.sqrt(float(update["x2"])), math.sqrt(num_shards) * float(z.double().norm()))
        dual_size = rho * math.sqrt(max(duals, 0.0))
        spread = self.alpha**2 * float(update["delta2"]) - 2 * self.alpha * float(moved @ update["delta"].double())
        return {
            "primal": math.sqrt(max(primal, 0.0)),
            "dual": math.sqrt(num_shards) * rho * math.sqrt(step),
            "primal_bound": root + self.rel_tol * size,
            "dual_bound": root + self.rel_tol * dual_size,
            "size": size,
            "dual_size": dual_size,
            "combined": rho * max(spread + 2 * num_shards * step, 0.0),  # ||h - z'||^2 = ||alpha (x - c) - (z' - c)||^2
        }

    def _balanced(self, state: State, residuals: dict[str, float]) -> float:
        rho: float = state["rho"]
        if not (residuals["size"] and residuals["dual_size"]):
            return rho
        factor = math.pow(self.tau, min(1.0, (self.adapt_rounds / (state["round"] + 1)) ** 2))
        primal, dual = residuals["primal"] / residuals["size"], residuals["dual"] / residuals["dual_size"]
        if primal > self.mu * dual:
            return rho * factor
        return rho / factor if dual > self.mu * primal else rho

    def _centered(self, state: State, z: Tensor, combined: float, rho: float) -> State:
        least: float = state["least"] * max(rho / state["rho"], state["rho"] / rho)
        if rho != state["rho"] or not (self.accelerate and combined < _DECREASE * least):
            return _restart(z, least)
        t = (1 + math.sqrt(1 + 4 * state["t"] ** 2)) / 2
        beta = (state["t"] - 1) / t
        before = flatten(state["weights"], state["names"])
        return {"center": z + beta * (z - before), "beta": beta, "t": t, "least": combined}


def _restart(z: Tensor, least: float) -> State:
    return {"center": z, "beta": 0.0, "t": 1.0, "least": least}


def _local_update(delta: Tensor, drawn: Tensor, x: Tensor) -> Update:
    squares = {"delta2": delta.double(), "drawn2": drawn.double(), "x2": x.double()}
    return {"delta": delta, "drawn": drawn, **scalars(**{name: vector @ vector for name, vector in squares.items()})}
