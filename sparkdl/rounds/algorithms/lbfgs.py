"""L-BFGS; each round evaluates the objective and its gradient over all rows.

    g_k   = grad f(x_k),   s_k = x_{k+1} - x_k,   y_k = g_{k+1} - g_k,   rho_k = 1 / (y_k . s_k)
    d_k   = -H_k g_k       by the two-loop recursion over the newest ``history`` pairs, from gamma = s.y / y.y
    x_k+1 = x_k + t d_k    with t by the strong Wolfe conditions: ``sparkdl.rounds.line_search``

    q = g;  for i = newest..oldest: a_i = rho_i s_i.q;  q -= a_i y_i
    r = gamma q;  for i = oldest..newest: b = rho_i y_i.r;  r += (a_i - b) s_i;  d = -r

J. Nocedal and S. Wright, Numerical optimization, 2nd edition 2006, algorithms 7.4 and 7.5; data-parallel as Sandblaster
L-BFGS: J. Dean et al., Large scale distributed deep networks, NIPS 2012. The line search is part of the state, so a
killed driver resumes with its next evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, NonNegative
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import positive
from sparkdl.rounds.evaluate import evaluate
from sparkdl.rounds.line_search import LineSearch, SearchPoint, begin, observe
from sparkdl.rounds.parameters import flatten, gradient_of, module_of, start, trainable, unflatten
from sparkdl.rounds.prox import penalised
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class LBFGS(CheckedFields):
    """L-BFGS over all rows, for smooth objectives: regressions, and small networks without dropout.

    Attributes:
        history_size: number of stored pairs ``(s, y)``.
        l2: strength of ``l2/2 ||w||^2``, added to the mean loss.
        penalize_bias: whether biases are penalised as well.
        gtol: stop if no entry of the gradient is larger than this.
        ftol: stop if a step decreases the value by at most this, relative to the value.
        maxls: largest number of evaluations of a line search.
    """

    history_size: Count = 10
    l2: NonNegative = 0.0
    penalize_bias: bool = False
    gtol: NonNegative = 1e-6
    ftol: NonNegative = 1e-12
    maxls: Count = 25

    uses_optimizer = False
    reduce = staticmethod(add)

    def init(self, objective: Objective, seed: int) -> State:
        """The initial weights, which the first round evaluates."""
        weights, names = start(objective, seed)
        unknown = dict.fromkeys(("iterate", "best", "direction", "search"))
        known = {"weights": weights, "names": names, "trial": flatten(weights, names)}
        return {**known, **unknown, "pairs": [], "note": "", "status": ""}

    def broadcast_state(self, state: State) -> State:
        """The state without the pairs and the driver's other vectors."""
        return {name: state[name] for name in ("weights", "names", "trial", "search")}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Compute the shard's loss, denominator and gradient."""
        module = module_of(objective, unflatten(state["trial"], state["weights"], state["names"]))
        total, denominator = evaluate(objective, module, shard)
        gradient, infinite = gradient_of(trainable(module)), torch.zeros_like(denominator)
        if not (bool(torch.isfinite(total)) and bool(torch.isfinite(gradient).all())):
            if state["search"] is None:
                raise InvalidInput("the loss or its gradient is not finite at the start; scale the inputs.")
            # The step was too long; the line search tries a shorter one.
            total, gradient = torch.zeros_like(total), torch.zeros_like(gradient)
            infinite = torch.ones_like(denominator)
        return {"loss": total, "denominator": denominator, "infinite": infinite, "gradient": gradient}, None

    def apply(self, state: State, update: Update) -> State:
        """Advance the line search and, once it has ended, the iteration."""
        point = self._penalised(state, update)
        state = {**state, "note": ""}
        if state["best"] is None or point["value"] < state["best"]["value"]:
            state |= {"best": point, "weights": unflatten(point["x"], state["weights"], state["names"])}
        if state["search"] is None:
            return self._descend({**state, "iterate": point}, [])
        search = LineSearch.from_json(state["search"])
        slope = float(point["gradient"] @ state["direction"])
        after = observe(search, SearchPoint(search.t, point["value"], slope), most=self.maxls)
        if after.status == "searching":
            return {**state, "search": asdict(after), "trial": state["iterate"]["x"] + after.t * state["direction"]}
        return self._accept(state, point) if after.status == "found" else self._failed(state, after)

    def converged(self, state: State) -> bool:
        """Whether the run has converged or stopped."""
        return bool(state["status"])

    def metrics(self, state: State) -> dict[str, float | str]:
        """``objective``, the best value with its penalty, and ``gradient``, its gradient's largest entry.

        ``status`` gives the reason for the end of the run, or reports a failed line search; else it is absent.
        """
        best, status = state["best"], state["status"] or state["note"]
        steepest = float(best["gradient"].abs().max())
        return {"objective": best["value"], "gradient": steepest, **({"status": status} if status else {})}

    def _penalised(self, state: State, update: Update) -> dict[str, Any]:
        x, denominator = state["trial"], positive(update["denominator"])
        if float(update["infinite"]):
            return {"x": x, "value": math.inf, "gradient": update["gradient"]}
        value, gradient = float(update["loss"]) / denominator, update["gradient"] / denominator
        if self.l2:
            weights = {name: state["weights"][name] for name in state["names"]}
            decays = penalised(weights, self.penalize_bias)
            decayed = x * flatten({n: torch.full_like(w, decays[n]) for n, w in weights.items()}, state["names"])
            value += self.l2 / 2 * float(decayed.double().square().sum())
            gradient = gradient + self.l2 * decayed
        return {"x": x, "value": value, "gradient": gradient}

    def _accept(self, state: State, point: dict[str, Any]) -> State:
        before = state["iterate"]
        s, y = point["x"] - before["x"], point["gradient"] - before["gradient"]
        curved = float(s @ y) > 1e-10 * float(y @ y)  # keeps H positive definite
        pairs = [*state["pairs"], {"s": s, "y": y}][-self.history_size :] if curved else state["pairs"]
        won = before["value"] - point["value"]
        state = {**state, "iterate": point}
        if won <= self.ftol * max(abs(point["value"]), 1e-300):
            return {**state, "pairs": pairs, "status": "converged: the last step decreased the objective too little"}
        return self._descend(state, pairs)

    def _failed(self, state: State, search: LineSearch) -> State:
        failed = f"the line search has found no step after {search.tries} evaluations"
        if state["best"]["value"] < state["iterate"]["value"]:
            return self._accept({**state, "note": f"{failed}; it continues from the best point"}, state["best"])
        if state["pairs"]:
            return self._descend({**state, "note": f"{failed}; it continues along the gradient"}, [])
        return {**state, "status": f"stopped: {failed}, along the gradient"}

    def _descend(self, state: State, pairs: list[dict[str, Tensor]]) -> State:
        x, value, g = (state["iterate"][name] for name in ("x", "value", "gradient"))
        state = {**state, "pairs": pairs}
        if float(g.abs().max()) <= self.gtol:
            return {**state, "status": "converged: the gradient is below the tolerance"}
        d = -two_loops(g, pairs)
        t = 1.0 if pairs else min(1.0, 1.0 / float(g.abs().sum()))
        slack = 10 * torch.finfo(g.dtype).eps * abs(value)
        search = begin(SearchPoint(0.0, value, float(g @ d)), t, slack=slack)
        return {**state, "direction": d, "search": asdict(search), "trial": x + t * d}


def two_loops(g: Tensor, pairs: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """``H g`` by the two-loop recursion over the newest pairs ``(s, y)``, oldest first; all are ``[n]``."""
    q, a = g.clone(), []
    rho = [1.0 / float(pair["y"] @ pair["s"]) for pair in pairs]
    for pair, weight in zip(reversed(pairs), reversed(rho), strict=True):
        a.append(weight * float(pair["s"] @ q))
        q -= a[-1] * pair["y"]
    if pairs:
        newest = pairs[-1]
        q *= float(newest["s"] @ newest["y"]) / float(newest["y"] @ newest["y"])
    for pair, weight, alpha in zip(pairs, rho, reversed(a), strict=True):
        q += (alpha - weight * float(pair["y"] @ q)) * pair["s"]
    return q
