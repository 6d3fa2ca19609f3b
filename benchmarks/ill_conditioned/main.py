"""Consensus ADMM on ill-conditioned problems: rounds until it stops by its own rule, and the error of the objective.

L2 logistic regression on a9a in double precision, for several strengths of the penalty and numbers of shards.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import nn

from benchmarks.pairs import environment, verdict
from benchmarks.rounds_vs_mllib.data import COLUMNS, FEATURES, a9a
from sparkdl.cluster.inline import InlineCluster
from sparkdl.rounds import Algorithm
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.prox import L2
from sparkdl.training.objective.objective import Objective

BAR = "at most 1"
ROUNDS = 120  # most rounds, by the algorithm's own stopping rule
ERROR = 1e-4  # largest relative error of the objective
STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)
SHARDS = (1, 4, 16)

Array = npt.NDArray[np.float64]

SIDES: dict[str, Callable[[float], Algorithm]] = {
    "ADMM": lambda l2: ConsensusADMM(prox=L2(l2)),
    "without momentum": lambda l2: ConsensusADMM(prox=L2(l2), alpha=1.6, accelerate=False),
    "L-BFGS": lambda l2: LBFGS(l2=l2),
}


@dataclass(frozen=True)
class Problem:
    """L2 logistic regression without a penalty of the intercept.

    Attributes:
        features: ``[rows, n]``.
        labels: 0 and 1, ``[rows]``.
        l2: strength of the penalty.
    """

    features: Array
    labels: Array
    l2: float

    def value(self, wb: Array) -> float:
        """The objective at weights and intercept, ``[n + 1]``."""
        z = self.features @ wb[:-1] + wb[-1]
        return float(np.mean(np.logaddexp(0.0, z) - self.labels * z) + self.l2 / 2 * wb[:-1] @ wb[:-1])

    def optimum(self) -> float:
        """The least objective, by a trust-region Newton method to a gradient of 1e-10."""
        x = np.c_[self.features, np.ones(len(self.labels))]
        penalty = self.l2 * np.append(np.ones(x.shape[1] - 1), 0.0)

        def probabilities(wb: Array) -> Array:
            return 1 / (1 + np.exp(-x @ wb))

        def gradient(wb: Array) -> Any:
            return x.T @ (probabilities(wb) - self.labels) / len(x) + penalty * wb

        def hessian(wb: Array) -> Any:
            p = probabilities(wb)
            return (x * (p * (1 - p) / len(x))[:, None]).T @ x + np.diag(penalty)

        zeros = np.zeros(x.shape[1])
        found = minimize(self.value, zeros, method="trust-exact", jac=gradient, hess=hessian, options={"gtol": 1e-10})
        if np.linalg.norm(found.jac) > 1e-9:
            raise RuntimeError(f"the reference optimum has a gradient of {np.linalg.norm(found.jac):.1e}")
        return float(found.fun)


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        rounds: number of rounds.
        stopped: whether the algorithm stopped by its own rule.
        seconds: wall time of the rounds, in one thread.
        error: relative error of the objective.
    """

    rounds: int
    stopped: bool
    seconds: float
    error: float

    @property
    def share(self) -> float:
        """The largest share of the bars for rounds and error; infinite without the own stop."""
        return max(self.rounds / ROUNDS, self.error / ERROR) if self.stopped else float("inf")

    def __str__(self) -> str:
        return f"{self.rounds:>5}{' ' if self.stopped else '+'}{self.seconds:>7.1f}{self.error:>10.1e}"


def run(algorithm: Algorithm, problem: Problem, optimum: float, *, shards: int, limit: int, seed: int) -> Run:
    """Run rounds in this process until the algorithm stops; a seed above 0 deals the rows out in random order."""
    order = np.random.default_rng(seed).permutation(len(problem.labels)) if seed else np.arange(len(problem.labels))
    data = {"id": np.arange(len(order)), "features": problem.features[order], "label": problem.labels[order]}
    objective = Objective(partial(nn.Linear, FEATURES, 1), nn.BCEWithLogitsLoss(), precision="fp64")
    with (
        InlineCluster().map_reduce(data, COLUMNS, num_shards=shards) as jobs,
        tempfile.TemporaryDirectory() as folder,
    ):
        start = time.perf_counter()
        state, history = Rounds(algorithm, objective, memories=folder, max_rounds=limit).run(jobs)
        took = time.perf_counter() - start
    weights = [state["weights"][name].flatten().numpy() for name in ("weight", "bias")]
    error = problem.value(np.concatenate(weights)) / optimum - 1
    return Run(len(history), algorithm.converged(state), took, error)


def measure(args: argparse.Namespace) -> list[Run]:
    """Print a line for each case; returns the runs of ADMM with its defaults."""
    features, labels = a9a(scaled=args.scaled)
    print(f"{'l2':>6}{'shards':>8}{'order':>7}" + "".join(f"{name:>26}" for name in args.sides))
    print(f"{'':>21}" + f"{'rounds':>9}{'s':>7}{'error':>10}" * len(args.sides))
    found, given = [], {name: vars(args)[name] for name in ("rho", "rel_tol") if vars(args)[name] is not None}
    for l2 in args.l2:
        problem = Problem(features, labels, l2)
        optimum = problem.optimum()
        for shards, seed in product(args.shards, range(args.orders)):
            if shards == 1 and seed:
                continue  # one shard has all rows in any order
            print(f"{l2:>6.0e}{shards:>8}{seed:>7}", end="", flush=True)
            for name in args.sides:
                algorithm = SIDES[name](l2)
                if isinstance(algorithm, ConsensusADMM):
                    algorithm = replace(algorithm, **given)
                result = run(algorithm, problem, optimum, shards=shards, limit=args.rounds, seed=seed)
                print(f"   {result}", end="", flush=True)
                found += [result] if name == "ADMM" else []
            print()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=500, help="rounds of a run at most (default %(default)s)")
    parser.add_argument("--l2", type=float, nargs="+", default=STRENGTHS, help="penalties (default %(default)s)")
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS, help="numbers (default %(default)s)")
    parser.add_argument("--orders", type=int, default=1, help="orders of the rows; 0 is the file's (default 1)")
    parser.add_argument("--rho", type=float, help="first rho of ADMM (default: its own)")
    parser.add_argument("--rel-tol", type=float, help="relative tolerance of ADMM (default: its own)")
    parser.add_argument("--scaled", action="store_true", help="features of standard deviation 1")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="default: all")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the figures do not depend on the number of cores
    print(environment())
    runs = measure(args)
    if runs:
        most, error = max(run.rounds for run in runs), max(run.error for run in runs)
        print(f"ADMM: at most {most} rounds (bar: {ROUNDS}), largest error {error:.1e} (bar: {ERROR:g})")
        print(verdict(max(run.share for run in runs), BAR))


if __name__ == "__main__":
    main()
