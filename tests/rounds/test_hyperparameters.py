"""Counts are whole numbers wherever rounds take any, and nothing is NaN."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG

federated = partial(FederatedAveraging, "client")
COUNTS = [
    (ParallelSGD, "rounds", 1),
    (ParallelSGD, "epochs", 1),
    (ParallelSGD, "shard_batch_size", 1),
    (federated, "rounds", 1),
    (federated, "epochs", 1),
    (federated, "batch_size", 1),
    (LBFGS, "history_size", 1),
    (LBFGS, "maxls", 1),
    (ConsensusADMM, "adapt_rounds", 0),
    (NewtonCG, "iterations", 1),
    (LocalSGDSolver, "epochs", 1),
    (LocalSGDSolver, "batch_size", 1),
]
each_count = pytest.mark.parametrize(("kind", "name", "least"), COUNTS)


@each_count
@pytest.mark.parametrize("given", [1.5, 2.0, float("nan"), float("inf"), "3", None], ids=repr)
def test_counts_that_are_not_whole_are_refused_by_name(kind, name, least, given):
    owner = getattr(kind, "func", kind).__name__
    message = f"{owner} has {name}={given!r}; expected a whole number of at least {least}."
    with pytest.raises(InvalidInput) as refused:
        kind(**{name: given})
    assert refused.value.message == message


@each_count
def test_counts_that_are_too_small_are_refused_by_name(kind, name, least):
    owner = getattr(kind, "func", kind).__name__
    with pytest.raises(InvalidInput, match=f"{owner} has {name}={least - 1}; expected at least {least}"):
        kind(**{name: least - 1})


@each_count
def test_the_least_count_and_whole_numbers_of_numpy_are_taken(kind, name, least):
    assert getattr(kind(**{name: np.int64(least)}), name) == least


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (federated, ("client_fraction", "learning_rate", "momentum", "prox_mu")),
        (LBFGS, ("l2", "gtol", "ftol")),
        (ConsensusADMM, ("rho", "alpha", "abs_tol", "rel_tol", "mu", "tau")),
        (ConjugateGradient, ("tolerance",)),
        (NewtonCG, ("reduction", "tolerance")),
    ],
)
def test_nan_is_refused(kind, names):
    for name in names:
        with pytest.raises(InvalidInput, match=f"{name}=nan"):
            kind(**{name: float("nan")})
