"""Invalid hyperparameters of algorithms, solvers and penalties raise an error with their name and value."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.prox import L1, L2, Box, ElasticNet

federated = partial(FederatedAveraging, "client")
COUNTS = [
    *((ParallelSGD, name, 1) for name in ("rounds", "epochs", "shard_batch_size")),
    *((federated, name, 1) for name in ("rounds", "epochs", "batch_size")),
    *((LBFGS, name, 1) for name in ("history_size", "maxls")),
    *((LocalSGDSolver, name, 1) for name in ("epochs", "batch_size")),
    (ConsensusADMM, "adapt_rounds", 0),
    (NewtonCG, "iterations", 1),
]


@pytest.mark.parametrize(("kind", "name", "least"), COUNTS)
def test_counts_are_integers_of_at_least(kind, name, least):
    owner = getattr(kind, "func", kind).__name__
    for given in (1.5, 2.0, math.nan, math.inf, "3", None):
        with pytest.raises(InvalidInput) as raised:
            kind(**{name: given})
        assert raised.value.message == f"{owner} has {name}={given!r}; expected a whole number of at least {least}."
    with pytest.raises(InvalidInput, match=f"{owner} has {name}={least - 1}; expected at least {least}"):
        kind(**{name: least - 1})
    assert getattr(kind(**{name: np.int64(least)}), name) == least


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (federated, "client_fraction", (0.0, 1.5)),
        (federated, "learning_rate", (0.0, math.inf)),
        (federated, "momentum", (1.0,)),
        (federated, "prox_mu", (-1.0,)),
        (federated, "quantize_bits", (0, 17, 2.5)),
        *((LBFGS, name, (-1.0,)) for name in ("l2", "gtol", "ftol")),
        (ConsensusADMM, "rho", (0, -1.0, math.inf)),
        (ConsensusADMM, "alpha", (0.0, 2.0)),
        *((ConsensusADMM, name, (0.5,)) for name in ("mu", "tau")),
        *((ConsensusADMM, name, (-1,)) for name in ("abs_tol", "rel_tol")),
        (ConjugateGradient, "tolerance", (-1.0, 1.0)),
        (NewtonCG, "reduction", (1.0,)),
        (NewtonCG, "tolerance", (-1.0,)),
        *((kind, "strength", (-1,)) for kind in (L1, L2, ElasticNet)),
        (partial(ElasticNet, 1.0), "ratio", (1.5,)),
        (partial(Box, high=0.0), "low", (1.0,)),
    ],
)
def test_invalid_numbers_raise(kind, name, values):
    owner = getattr(kind, "func", kind).__name__
    for value in (*values, math.nan):
        with pytest.raises(InvalidInput, match=f"{owner} has .*{name}={value!r}.*; expected "):
            kind(**{name: value})
