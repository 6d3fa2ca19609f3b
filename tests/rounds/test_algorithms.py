"""Every algorithm keeps the contract."""

from __future__ import annotations

from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import Quadratic, Smooth, Steps
from sparkdl.rounds.prox import L2
from tests.contracts.algorithm_contract import AlgorithmContract


class TestParallelSGD(AlgorithmContract):
    algorithm = ParallelSGD(rounds=40, batch_size=4)


class TestConsensusADMMExact(AlgorithmContract):
    algorithm = ConsensusADMM(solver=Quadratic(), prox=L2(1e-3))


class TestConsensusADMMSmooth(AlgorithmContract):
    algorithm = ConsensusADMM(solver=Smooth())


class TestConsensusADMMInSteps(AlgorithmContract):
    algorithm = ConsensusADMM(solver=Steps(batch_size=4), adapt=0, alpha=1.0)


class TestFederatedAveraging(AlgorithmContract):
    algorithm = FederatedAveraging("client", fraction=0.4, rounds=40, epochs=2, batch_size=2, mu=0.01)


class TestFederatedAveragingWithMomentumAndFewBits(AlgorithmContract):
    algorithm = FederatedAveraging(
        "client", fraction=0.5, rounds=40, batch_size=2, momentum=0.5, learning_rate=0.5, bits=8
    )


class TestLBFGS(AlgorithmContract):
    algorithm = LBFGS(l2=1e-3)
