"""Every algorithm keeps the contract."""

from __future__ import annotations

from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.prox import L2
from tests.contracts.algorithm_contract import AlgorithmContract


class TestParallelSGD(AlgorithmContract):
    algorithm = ParallelSGD(rounds=40, shard_batch_size=4)


class TestConsensusADMMExact(AlgorithmContract):
    algorithm = ConsensusADMM(solver=ConjugateGradient(), prox=L2(1e-3))


class TestConsensusADMMSmooth(AlgorithmContract):
    algorithm = ConsensusADMM(solver=NewtonCG())


class TestConsensusADMMInSteps(AlgorithmContract):
    algorithm = ConsensusADMM(solver=LocalSGDSolver(batch_size=4), adapt_rounds=0, alpha=1.0)


class TestFederatedAveraging(AlgorithmContract):
    algorithm = FederatedAveraging("client", client_fraction=0.4, rounds=40, epochs=2, batch_size=2, prox_mu=0.01)


class TestFederatedAveragingWithMomentumAndFewBits(AlgorithmContract):
    algorithm = FederatedAveraging(
        "client", client_fraction=0.5, rounds=40, batch_size=2, momentum=0.5, learning_rate=0.5, quantize_bits=8
    )


class TestLBFGS(AlgorithmContract):
    algorithm = LBFGS(l2=1e-3)
