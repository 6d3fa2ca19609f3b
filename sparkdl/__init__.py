"""Deep learning on the data of a Spark cluster.

Public names load on first use: ``import sparkdl`` imports neither pyspark nor torch. pyspark is an extra, and only the
names that work on Spark need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.cluster.inline import InlineCluster as InlineCluster
    from sparkdl.cluster.local import LocalCluster as LocalCluster
    from sparkdl.cluster.supervisor import Supervisor as Supervisor
    from sparkdl.data.columns import Columns as Columns
    from sparkdl.data.columns import InputColumn as InputColumn
    from sparkdl.ensembles.bagging import Bagging as Bagging
    from sparkdl.ensembles.best_of import BestOf as BestOf
    from sparkdl.ensembles.best_of import BestOfModel as BestOfModel
    from sparkdl.ensembles.boosting.estimator import Boosting as Boosting
    from sparkdl.ensembles.model import EnsembleModel as EnsembleModel
    from sparkdl.ensembles.stacking import Stacking as Stacking
    from sparkdl.ensembles.stacking import StackingModel as StackingModel
    from sparkdl.errors import InvalidInput as InvalidInput
    from sparkdl.errors import SparkdlError as SparkdlError
    from sparkdl.ml.estimator import TorchClassifier as TorchClassifier
    from sparkdl.ml.estimator import TorchEstimator as TorchEstimator
    from sparkdl.ml.estimator import TorchRegressor as TorchRegressor
    from sparkdl.ml.model import TorchModel as TorchModel
    from sparkdl.ml.tracking.mlflow import MLflow as MLflow
    from sparkdl.ml.tracking.tensorboard import TensorBoard as TensorBoard
    from sparkdl.ml.tuning.model import TorchTunerModel as TorchTunerModel
    from sparkdl.ml.tuning.number_range import Range as Range
    from sparkdl.ml.tuning.successive_halving import SuccessiveHalving as SuccessiveHalving
    from sparkdl.ml.tuning.tuner import TorchTuner as TorchTuner
    from sparkdl.ml.warm_start import WarmStart as WarmStart
    from sparkdl.rounds.algorithms.admm import ConsensusADMM as ConsensusADMM
    from sparkdl.rounds.algorithms.fedavg import FederatedAveraging as FederatedAveraging
    from sparkdl.rounds.algorithms.lbfgs import LBFGS as LBFGS
    from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD as ParallelSGD
    from sparkdl.rounds.algorithms.scheduled import Scheduled as Scheduled
    from sparkdl.rounds.local_solvers import ConjugateGradient as ConjugateGradient
    from sparkdl.rounds.local_solvers import LocalSGDSolver as LocalSGDSolver
    from sparkdl.rounds.local_solvers import NewtonCG as NewtonCG
    from sparkdl.rounds.prox import L1 as L1
    from sparkdl.rounds.prox import L2 as L2
    from sparkdl.rounds.prox import Box as Box
    from sparkdl.rounds.prox import ElasticNet as ElasticNet
    from sparkdl.serving.loading import load_predictor as load_predictor
    from sparkdl.spark.cluster import SparkCluster as SparkCluster
    from sparkdl.training.callbacks.ema import EMA as EMA
    from sparkdl.training.layouts.mesh import Mesh as Mesh
    from sparkdl.training.layouts.pipelined import Pipelined as Pipelined
    from sparkdl.training.layouts.replicated import Replicated as Replicated
    from sparkdl.training.layouts.row_adagrad import RowAdagrad as RowAdagrad
    from sparkdl.training.layouts.sharded import Sharded as Sharded
    from sparkdl.training.layouts.table import Table as Table
    from sparkdl.training.layouts.tensor_parallel import TensorParallel as TensorParallel
    from sparkdl.training.layouts.tensors.plans import attention_plan as attention_plan
    from sparkdl.training.layouts.tensors.plans import mlp_plan as mlp_plan
    from sparkdl.training.layouts.tensors.plans import transformer_plan as transformer_plan
    from sparkdl.training.loop import Training as Training
    from sparkdl.training.objective.objective import Objective as Objective
    from sparkdl.training.strategies.allreduce import AllReduce as AllReduce
    from sparkdl.training.strategies.elastic_averaging import ElasticAveraging as ElasticAveraging
    from sparkdl.training.strategies.gossip import Gossip as Gossip
    from sparkdl.training.strategies.local_sgd import LocalSGD as LocalSGD
    from sparkdl.training.strategies.parameter_server.significance import Significance as Significance
    from sparkdl.training.strategies.parameter_server.strategy import ParameterServer as ParameterServer
    from sparkdl.training.strategies.reducers.cast import Cast as Cast
    from sparkdl.training.strategies.reducers.layered import Layered as Layered
    from sparkdl.training.strategies.reducers.one_bit import OneBit as OneBit
    from sparkdl.training.strategies.reducers.powersgd import PowerSGD as PowerSGD
    from sparkdl.training.strategies.reducers.topk import TopK as TopK

__version__ = "0.1.0"

_NAMES = {
    "cluster.inline": "InlineCluster",
    "cluster.local": "LocalCluster",
    "cluster.supervisor": "Supervisor",
    "data.columns": "Columns InputColumn",
    "ensembles.bagging": "Bagging",
    "ensembles.best_of": "BestOf BestOfModel",
    "ensembles.boosting.estimator": "Boosting",
    "ensembles.model": "EnsembleModel",
    "ensembles.stacking": "Stacking StackingModel",
    "errors": "InvalidInput SparkdlError",
    "ml.estimator": "TorchClassifier TorchEstimator TorchRegressor",
    "ml.model": "TorchModel",
    "ml.tracking.mlflow": "MLflow",
    "ml.tracking.tensorboard": "TensorBoard",
    "ml.tuning.model": "TorchTunerModel",
    "ml.tuning.number_range": "Range",
    "ml.tuning.successive_halving": "SuccessiveHalving",
    "ml.tuning.tuner": "TorchTuner",
    "ml.warm_start": "WarmStart",
    "rounds.algorithms.admm": "ConsensusADMM",
    "rounds.algorithms.fedavg": "FederatedAveraging",
    "rounds.algorithms.lbfgs": "LBFGS",
    "rounds.algorithms.parallel_sgd": "ParallelSGD",
    "rounds.algorithms.scheduled": "Scheduled",
    "rounds.local_solvers": "ConjugateGradient LocalSGDSolver NewtonCG",
    "rounds.prox": "Box ElasticNet L1 L2",
    "serving.loading": "load_predictor",
    "spark.cluster": "SparkCluster",
    "training.callbacks.ema": "EMA",
    "training.layouts.mesh": "Mesh",
    "training.layouts.pipelined": "Pipelined",
    "training.layouts.replicated": "Replicated",
    "training.layouts.row_adagrad": "RowAdagrad",
    "training.layouts.sharded": "Sharded",
    "training.layouts.table": "Table",
    "training.layouts.tensor_parallel": "TensorParallel",
    "training.layouts.tensors.plans": "attention_plan mlp_plan transformer_plan",
    "training.loop": "Training",
    "training.objective.objective": "Objective",
    "training.strategies.allreduce": "AllReduce",
    "training.strategies.reducers.layered": "Layered",
    "training.strategies.elastic_averaging": "ElasticAveraging",
    "training.strategies.gossip": "Gossip",
    "training.strategies.local_sgd": "LocalSGD",
    "training.strategies.parameter_server.significance": "Significance",
    "training.strategies.parameter_server.strategy": "ParameterServer",
    "training.strategies.reducers.cast": "Cast",
    "training.strategies.reducers.one_bit": "OneBit",
    "training.strategies.reducers.powersgd": "PowerSGD",
    "training.strategies.reducers.topk": "TopK",
}
_HOMES = {name: f"sparkdl.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - the table has the names


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkdl' has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ModuleNotFoundError(
            f"sparkdl.{name} needs pyspark, which is not installed: pip install 'sparkdl-torch[spark]'.", name="pyspark"
        ) from error
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
