"""Deep learning on the data a Spark cluster already holds.

The public names are loaded when they are first used: ``import sparkdl`` imports neither pyspark nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.cluster import InlineCluster as InlineCluster
    from sparkdl.cluster import LocalCluster as LocalCluster
    from sparkdl.ensembles.bagging import Bagging as Bagging
    from sparkdl.ensembles.best_of import BestOf as BestOf
    from sparkdl.ensembles.best_of import BestOfModel as BestOfModel
    from sparkdl.ensembles.boosting import Boosting as Boosting
    from sparkdl.ensembles.model import EnsembleModel as EnsembleModel
    from sparkdl.ensembles.stacking import Stacking as Stacking
    from sparkdl.ensembles.stacking import StackingModel as StackingModel
    from sparkdl.errors import SparkdlError as SparkdlError
    from sparkdl.feed.columns import Column as Column
    from sparkdl.feed.columns import Columns as Columns
    from sparkdl.ml.estimator import TorchClassifier as TorchClassifier
    from sparkdl.ml.estimator import TorchEstimator as TorchEstimator
    from sparkdl.ml.estimator import TorchRegressor as TorchRegressor
    from sparkdl.ml.model import TorchModel as TorchModel
    from sparkdl.objective import Objective as Objective
    from sparkdl.rounds.admm import ConsensusADMM as ConsensusADMM
    from sparkdl.rounds.averaging import ParallelSGD as ParallelSGD
    from sparkdl.rounds.federated import FederatedAveraging as FederatedAveraging
    from sparkdl.rounds.lbfgs import LBFGS as LBFGS
    from sparkdl.rounds.prox import L1 as L1
    from sparkdl.rounds.prox import L2 as L2
    from sparkdl.rounds.prox import Box as Box
    from sparkdl.rounds.prox import ElasticNet as ElasticNet
    from sparkdl.spark.cluster import SparkCluster as SparkCluster
    from sparkdl.strategies.allreduce import AllReduce as AllReduce
    from sparkdl.supervisor import Supervisor as Supervisor
    from sparkdl.trackers.mlflow import MLflow as MLflow
    from sparkdl.trackers.tensorboard import TensorBoard as TensorBoard
    from sparkdl.train import Training as Training
    from sparkdl.warm_start import WarmStart as WarmStart

__version__ = "0.1.0"

_HOMES = {
    "AllReduce": "sparkdl.strategies.allreduce",
    "Bagging": "sparkdl.ensembles.bagging",
    "BestOf": "sparkdl.ensembles.best_of",
    "BestOfModel": "sparkdl.ensembles.best_of",
    "Boosting": "sparkdl.ensembles.boosting",
    "Box": "sparkdl.rounds.prox",
    "Column": "sparkdl.feed.columns",
    "Columns": "sparkdl.feed.columns",
    "ConsensusADMM": "sparkdl.rounds.admm",
    "ElasticNet": "sparkdl.rounds.prox",
    "EnsembleModel": "sparkdl.ensembles.model",
    "FederatedAveraging": "sparkdl.rounds.federated",
    "InlineCluster": "sparkdl.cluster",
    "L1": "sparkdl.rounds.prox",
    "L2": "sparkdl.rounds.prox",
    "LBFGS": "sparkdl.rounds.lbfgs",
    "LocalCluster": "sparkdl.cluster",
    "MLflow": "sparkdl.trackers.mlflow",
    "Objective": "sparkdl.objective",
    "ParallelSGD": "sparkdl.rounds.averaging",
    "SparkCluster": "sparkdl.spark.cluster",
    "SparkdlError": "sparkdl.errors",
    "Stacking": "sparkdl.ensembles.stacking",
    "StackingModel": "sparkdl.ensembles.stacking",
    "Supervisor": "sparkdl.supervisor",
    "TensorBoard": "sparkdl.trackers.tensorboard",
    "TorchClassifier": "sparkdl.ml.estimator",
    "TorchEstimator": "sparkdl.ml.estimator",
    "TorchModel": "sparkdl.ml.model",
    "TorchRegressor": "sparkdl.ml.estimator",
    "Training": "sparkdl.train",
    "WarmStart": "sparkdl.warm_start",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - the names are those of the table


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkdl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
