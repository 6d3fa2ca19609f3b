"""Consensus ADMM: every part has weights of its own, which are drawn together.

    minimise  sum_i f_i(x_i) + g(z)   subject to   x_i = z,   i = 1 ... N

    x_i = argmin  f_i(x) + rho_i/2 ||x - z + u_i||^2        on the executors
    h_i = alpha x_i + (1 - alpha) z                          over-relaxation
    z'  = prox_{g / (N rho_i)}( mean_i(h_i + u_i) )          on the driver
    u_i = u_i + h_i - z'                                     scaled dual variables

with ``f_i = F_i / M`` the part's share of the mean loss, so that ``sum_i f_i`` is the loss whatever the number of
parts, and ``rho_i = rho / N``, so that ``rho`` means the same for any number of them. Primal and dual residuals are

    ||r||^2 = sum_i ||x_i - z'||^2          ||s||^2 = N rho_i^2 ||z' - z||^2

and it is over when, n being the number of parameters,

    ||r|| <= sqrt(N n) absolute + relative max( sqrt(sum_i ||x_i||^2), sqrt(N) ||z'|| )
    ||s|| <= sqrt(N n) absolute + relative rho_i sqrt(sum_i ||u_i||^2)

S. Boyd et al., Distributed optimization and statistical learning via the alternating direction method of multipliers,
Foundations and Trends in Machine Learning 3(1), 2011, sections 3 and 7. Where one of the two residuals, relative to
what it is compared with, is ``balance`` times the other, ``rho`` is multiplied or divided by ``factor`` and every
``u_i`` rescaled, for the first ``adapt`` rounds: B. Wohlberg, ADMM penalty parameter selection by residual balancing,
2017. A part's memory is ``(x_i, h_i, u_i)``; sums over parts are taken of deviations from ``z``, which are small where
it matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from sparkdl.data.shard import Part
from sparkdl.errors import InvalidInput
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import average, scalars, weighed
from sparkdl.rounds.evaluate import alone, mass_of
from sparkdl.rounds.hyperparameters import whole
from sparkdl.rounds.local_solvers import Problem, Smooth
from sparkdl.rounds.parameters import flatten, module_of, rest, start, unflatten, weights_of
from sparkdl.rounds.prox import Prox, penalised
from sparkdl.training.objective import Objective


class Solver(Protocol):
    """How a part solves its own problem: ``Quadratic``, ``Smooth`` or ``Steps`` of ``sparkdl.rounds.local_solvers``."""

    @property
    def takes_steps(self) -> bool:
        """Whether they are those of the objective's own optimizer."""

    def solve(self, problem: Problem) -> None:
        """Set the problem's module to the solution."""


@dataclass(frozen=True)
class ConsensusADMM:
    """Consensus ADMM.

    ``balance`` is 2 and ``absolute`` 1e-6, where Boyd et al. have 10 and 1e-4. Relative residuals are compared, which
    are of the order of 1 to begin with, so that 10 times is far: the lasso of ``tests/rounds/test_references.py``, in
    4 parts and with the other defaults, takes 25 rounds with 10 and 16 with 2. And coefficients are wanted to about
    1e-4, which an absolute tolerance should not use up.

    Attributes:
        rho: the penalty for leaving the consensus, above 0.
        prox: a penalty on the weights, such as ``L1(1e-3)``; None for none.
        solver: how a part solves its own problem; each begins where it was last.
        alpha: over-relaxation, 1 (none) to 1.8.
        absolute: absolute tolerance of the stopping rule.
        relative: relative tolerance of the stopping rule.
        balance: how many times the other a relative residual may be before ``rho`` is changed.
        factor: what ``rho`` is multiplied or divided by.
        adapt: rounds after which ``rho`` stays as it is; 0 never changes it.
        shuffle: deal the rows out anew, so that every part represents the whole; False leaves them where they are.
    """

    rho: float = 0.1
    prox: Prox | None = None
    solver: Solver = field(default_factory=Smooth)
    alpha: float = 1.6
    absolute: float = 1e-6
    relative: float = 1e-3
    balance: float = 2.0
    factor: float = 2.0
    adapt: int = 50
    shuffle: bool = True

    has_loss = False  # a round has residuals

    def __post_init__(self) -> None:
        if not 0 < self.rho < math.inf:
            raise InvalidInput(f"ConsensusADMM has rho={self.rho!r}; expected a number above 0.")
        if not 0 < self.alpha < 2:
            raise InvalidInput(f"ConsensusADMM has alpha={self.alpha!r}; expected 1 (no over-relaxation) to 1.8.")
        whole(self, adapt=0)
        for name, least in (("absolute", 0), ("relative", 0), ("balance", 1), ("factor", 1)):
            if not getattr(self, name) >= least:
                raise InvalidInput(f"ConsensusADMM has {name}={getattr(self, name)!r}; expected at least {least}.")

    @property
    def takes_steps(self) -> bool:
        """See ``Algorithm``."""
        return self.solver.takes_steps

    def init(self, objective: Objective, seed: int) -> State:
        """See ``Algorithm``; the first round weighs the rows, for ``M`` and ``N``."""
        weights, names = start(objective, seed)
        known = {"mass": None, "parts": 0, "round": 0, "rho": self.rho}
        return {"weights": weights, "names": names, "seed": seed, **known, "row": {}, "over": False}

    def map(self, objective: Objective, state: State, part: Part, memory: Memory) -> tuple[Update, Memory]:
        """See ``Algorithm``: the part's own problem, and what it says of the consensus."""
        own = alone(part, objective.criterion())
        mass = mass_of(own)
        if state["mass"] is None:
            return scalars(mass=mass, parts=float(mass > 0)), None
        if not mass:  # it is none of the N parts, since it has no problem of its own
            zero = torch.zeros_like(flatten(state["weights"], state["names"]))
            return {**_apart(zero, zero, zero), **weighed(rest(state["weights"], state["names"]), 0.0)}, {}
        return self._solved(objective, state, own, memory, key=(state["seed"], part.index))

    def _solved(
        self, objective: Objective, state: State, own: Part, memory: Memory, *, key: tuple[int, ...]
    ) -> tuple[Update, Memory]:
        """The part's next ``x`` and ``h``."""
        names, z, rho = state["names"], flatten(state["weights"], state["names"]), state["rho"] / state["parts"]
        x, u = (z, torch.zeros_like(z)) if memory is None else self._remember(memory, z, state["rho"])
        module = module_of(objective, unflatten(x, state["weights"], names))
        problem = Problem(objective, module, own, state["mass"], rho, z - u, state["round"], key)
        self.solver.solve(problem)
        x = problem.x
        h = self.alpha * x + (1 - self.alpha) * z
        found = weights_of(module)
        others = weighed({name: found[name] for name in rest(state["weights"], names)}, 1.0)
        return {**_apart(x - z, h + u - z, x), **others}, {"x": x, "h": h, "u": u, "rho": state["rho"]}

    def _remember(self, memory: Memory, z: Tensor, rho: float) -> tuple[Tensor, Tensor]:
        """``x`` and ``u`` of the round before, now that its ``z'`` is known; scaled to another ``rho``."""
        u = memory["u"] + memory["h"] - z
        return memory["x"], u * (memory["rho"] / rho)

    def reduce(self, one: Update, other: Update) -> Update:
        """See ``Algorithm``: sums."""
        return add(one, other)

    def apply(self, state: State, update: Update) -> State:
        """See ``Algorithm``: the consensus, the residuals, and the next ``rho``."""
        if state["mass"] is None:
            return self._weighed(state, update)
        parts, names = state["parts"], state["names"]
        z = flatten(state["weights"], names)
        consensus = self._prox(state, z + update["drawn"] / parts)
        moved = consensus - z
        residuals = self._residuals(update, consensus, moved.double(), state["rho"] / parts, parts)
        others = rest(state["weights"], names)
        weights = {**unflatten(consensus, state["weights"], names), **average(update, others)}
        row = {name: residuals[name] for name in ("primal", "dual")} | {"rho": state["rho"]}
        over = residuals["primal"] <= residuals["primal_bound"] and residuals["dual"] <= residuals["dual_bound"]
        rho = self._balanced(state, residuals)
        return {**state, "weights": weights, "round": state["round"] + 1, "row": row, "rho": rho, "over": over}

    def done(self, state: State) -> bool:
        """See ``Algorithm``: Boyd's stopping rule."""
        return bool(state["over"])

    def row(self, state: State) -> dict[str, float | str]:
        """See ``Algorithm``: ``||r||``, ``||s||`` and ``rho``."""
        return dict(state["row"])

    def _weighed(self, state: State, update: Update) -> State:
        mass, parts = float(update["mass"]), round(float(update["parts"]))
        if not mass:
            raise InvalidInput("no row weighs anything: all weights are 0, or all labels are ignored.")
        return {**state, "mass": mass, "parts": parts}

    def _prox(self, state: State, v: Tensor) -> Tensor:
        """``prox_{g / (N rho_i)}(v)`` of what is penalised; the rest is ``v``."""
        if self.prox is None:
            return v
        weights = unflatten(v, state["weights"], state["names"])
        wanted = penalised({name: weights[name] for name in state["names"]}, self.prox.biases)
        t = 1 / state["rho"]
        found = {name: self.prox.prox(weights[name], t) if on else weights[name] for name, on in wanted.items()}
        return flatten(found, state["names"])

    def _residuals(self, update: Update, z: Tensor, moved: Tensor, rho: float, parts: int) -> dict[str, float]:
        """Both residuals, and what each has to come below."""
        step = float(moved @ moved)
        primal = float(update["apart2"]) - 2 * float(moved @ update["apart"].double()) + parts * step
        duals = float(update["drawn2"]) - 2 * float(moved @ update["drawn"].double()) + parts * step
        root = math.sqrt(parts * len(z)) * self.absolute
        size = max(math.sqrt(float(update["x2"])), math.sqrt(parts) * float(z.double().norm()))
        dual_size = rho * math.sqrt(max(duals, 0.0))
        return {
            "primal": math.sqrt(max(primal, 0.0)),
            "dual": math.sqrt(parts) * rho * math.sqrt(step),
            "primal_bound": root + self.relative * size,
            "dual_bound": root + self.relative * dual_size,
            "size": size,
            "dual_size": dual_size,
        }

    def _balanced(self, state: State, residuals: dict[str, float]) -> float:
        rho: float = state["rho"]
        if state["round"] >= self.adapt or not (residuals["size"] and residuals["dual_size"]):
            return rho
        primal, dual = residuals["primal"] / residuals["size"], residuals["dual"] / residuals["dual_size"]
        if primal > self.balance * dual:
            return rho * self.factor
        return rho / self.factor if dual > self.balance * primal else rho


def _apart(apart: Tensor, drawn: Tensor, x: Tensor) -> Update:
    """A part's ``x - z`` and ``h + u - z``, and what the norms of both, once ``z'`` is known, and of ``x`` need."""
    squares = {"apart2": apart.double(), "drawn2": drawn.double(), "x2": x.double()}
    return {"apart": apart, "drawn": drawn, **scalars(**{name: each @ each for name, each in squares.items()})}
