"""Settings that nobody meant, such as NaN, True or a class, raise InvalidInput where they are given.

The tests find every frozen dataclass of the package, so that a new one is tested as well.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
from dataclasses import MISSING, fields
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, get_args

import numpy as np
import pytest
from pyspark.ml.evaluation import Evaluator, RegressionEvaluator
from torch import nn

import sparkdl
from sparkdl.cli.data import Data
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import checked, fits
from sparkdl.training.cost.traffic import Traffic
from sparkdl.training.layouts import Layout
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce

# sparkdl makes the objects of these classes itself, from checked values or from measurements.
OWN = """
    AllowedTypes AllRows Archive AssembledInputs Attempts Axis BarrierTask Batch Batcher Binarizer BroadcastScorer
    Bucket Bucketizer Capacity ChannelProbe Chart Checkpoint CheckpointName CheckResult ChunkHeader ClassicSession
    ClassifierMetrics Clocks Column Combining Command Compatibility ConfiguredDirectory ConnectionReport
    ConnectionTask ConnectSession Cost CutTask DataSummary DerivedColumns Describer DeviceCache DeviceChoice Digest
    Endpoint ErrorContext Event Exact Failure FeatureHasher FeaturePipeline FeatureStage Fingerprint FinishedReduce
    FitResult FitSpec FittedMembers Folder GangFits Gpus ImputerModel IndependentTask IndexToString
    InitialPrediction InitialWeights InlineBytes InspectShard LayerOutput Ledger LineSearch LinkSpeed LocalState
    LocalTraining LookUp LossMetrics Manifest MappedFactory MapTask MaskedFactory Member member.Plan MemberResult
    MemberStore MemberWork MetaFeatureAssembler MinMaxScalerModel MLflowDestination ModelMemory MultilabelMetrics
    Normalizer NumberTask OneExchange OneHotEncoderModel OutputColumns Outputs PackedData PackedFrame PackTask
    PartFolder PartitionTask PendingMessages PickledTask PipelineRun PlannedLayer Portion Predictor Program
    PromoteTrial Push Ragged Reader ReadRows ReduceTask RegressorMetrics RendezvousResult RendezvousSpec Reporting
    Round RowPush RowScorer RowSums Rule Run RunData RungResult RungWork RunName Samme SavedFolder SavedInstance
    SavedStage SaveStatus Schedule Scorer SearchedEstimator SearchPoint SearchSpace ServedModel Shard ShardClients
    ShardedData ShardProblem SharedDirectory SharedFile Slice SqlCombiner StandardScalerModel StartTrial StepChunk
    StoredTensor StringIndexerModel SuggestionRule Table TableCell TableFiles TableReader Target TaskFits TaskResult
    TaskSettings TaylorExpansion TimeUnit TorchStage TrainedModule TrainingResult TrainingSummary Transforms
    TrialCheckpoints TrialTable Trust Validation VectorAssembler VerifiedColumns VmapFactory WarmStart
    WeightsByClass WeightsFile WorkerAddress WorkerResult Workers WorkerTask
"""
SAMPLES: dict[str, Any] = {"evaluator": Evaluator.__new__(RegressionEvaluator), "traffic": Traffic(), "data": Data("x")}
SAMPLES |= {"model": partial(nn.Linear, 1, 1), "loss": nn.MSELoss(), "unit": "steps", "size": "sqrt", "path": "x"}
SAMPLES |= {"inputs": (sparkdl.InputColumn("x"),), "rows": (3,), "replace": True, "ragged": "padded", "high": 9}
SAMPLES["objective"] = sparkdl.Objective(SAMPLES["model"], SAMPLES["loss"])
TEXTS = ("client", "directory", "run", "name", "root")
# Values, and the words in annotations that allow them.
NUMBERS = "float Positive NonNegative Share BelowOne Fraction _Factor Size"
CALLED = "Any Factory LossFunction Collate Augment Callable"
ODD = [(math.nan, "Any"), (10**400, "Any"), (True, "Any bool"), (2.5, f"Any {NUMBERS}"), ("text", "Any str")]
ODD += [(None, "Any None"), (sparkdl.TopK, CALLED), ({}, "Any dict Mapping")]
UNBOUNDED = {math.inf: "low high max_grad_norm", -1: "low high ignored padding least seed"}


@cache
def settings() -> list[tuple[Any, str, str]]:
    """The fields of each frozen dataclass that users make: its class, name and annotation."""
    package, found, own = Path(sparkdl.__file__).parent, [], {*OWN.split()}
    for path in package.rglob("*.py"):
        module = ".".join(("sparkdl", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            frozen = isinstance(node, ast.ClassDef) and "frozen=True" in "".join(map(ast.unparse, node.decorator_list))
            if frozen and (names := {node.name, f"{path.stem}.{node.name}"}) & {*OWN.split()}:
                own -= names
            elif frozen and node.name[0] != "_":
                kind = getattr(importlib.import_module(module), node.name)
                found += [(kind, each.name, str(each.type)) for each in fields(kind) if each.init]
    assert not own  # names of classes that are gone
    return sorted(found, key=lambda field: (field[0].__name__, field[1]))


def made(kind: Any, /, **values: Any) -> Any:
    missing = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
    wanted = [*missing, *(name for name in ("path", "ragged") if hasattr(kind, name) and name not in values)]
    tensor = {"size": 2, "plan": {"x": "rows"}, "outer": sparkdl.Sharded()}
    tensor |= {"inner": sparkdl.TensorParallel(2, tensor["plan"])}
    samples = SAMPLES | tensor if kind in (sparkdl.TensorParallel, sparkdl.Mesh) else SAMPLES
    return kind(**{name: samples.get(name, "x" if name in TEXTS else 2) for name in wanted} | values)


@pytest.mark.parametrize(("kind", "name", "text"), settings(), ids=lambda part: getattr(part, "__name__", None))
def test_odd_values_raise(kind, name, text):
    numbers = any(word in text for word in (*NUMBERS.split(), "int", "Count", "Natural", "Several", "Seed"))
    unbounded = [(value, "Any" if name not in names.split() else "") for value, names in UNBOUNDED.items()]
    for value, words in [*ODD, *(unbounded if numbers else [])]:
        allowed = any(word in text for word in words.split()) or not words
        try:
            made(kind, **{name: value})
        except InvalidInput as error:
            first = numbers and value is ODD[0][0]
            message = rf"{kind.__name__}(\('\w+'\))?\.{name} is nan; expected" if first else "expected"
            assert re.search(message, str(error))  # noqa: PT017 - other values are valid
        else:
            assert allowed, f"{kind.__name__}({name}={value!r})"


def test_numbers_of_numpy_become_those_of_python():
    for kind, name, _ in settings():
        value = getattr(made(kind), name)
        if type(value) in (int, float, bool, str):
            scalar = {int: np.int32, float: np.float64, bool: np.bool_, str: np.str_}[type(value)](value)
            stored = getattr(made(kind, **{name: scalar}), name)
            assert (type(stored), stored) == (type(value), value)


KINDS = {tuple[sparkdl.InputColumn, ...]: "a tuple whose items are each an InputColumn", bool: "True or False"}
KINDS |= {dict[str, int] | None: "a dict whose values are each a whole number, or None"}


class Own(Protocol):  # without abstract members
    def place(self) -> None: ...


def test_protocols_are_structural_and_errors_name_items():
    own = SimpleNamespace(place=print)  # no subclass of a protocol
    assert [fits(own, kind) for kind in (Layout, Own, Strategy)] == [True, True, False]
    assert not fits(SimpleNamespace(), Own)
    for kind, text in KINDS.items():
        with pytest.raises(InvalidInput, match=f"x is 2.5; expected {text}\\.$"):
            checked(2.5, kind, "x")


CALLS = {
    "EMA.decay": sparkdl.EMA,
    "size": sparkdl.LocalCluster,
    "workers": lambda value: AllReduce().explain(nn.Linear(1, 1), value, 1.0, 0.0),
    "compute": lambda value: AllReduce().explain(nn.Linear(1, 1), 2, 1.0, 0.0, compute=value),
    "HuberLoss": lambda value: sparkdl.Objective(nn.Linear(1, 1), nn.HuberLoss(delta=value)),
}
LIMITS = ("heartbeat_timeout", "stall_timeout", "back_off", "max_restarts", "elastic_timeout", "min_size")
CALLS |= {name: lambda value, name=name: Supervisor(InlineCluster(), **{name: value}) for name in LIMITS}


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_of_calls_raise(name):
    for value in (math.nan, math.inf, *(() if name == "HuberLoss" else (-1, "text", True, sparkdl.TopK))):
        with pytest.raises(InvalidInput, match=rf"{name} (is|has) .*expected"):
            CALLS[name](value)


def test_odd_params_raise():
    for kind in (sparkdl.TorchClassifier, sparkdl.Bagging, sparkdl.Boosting, sparkdl.Stacking, sparkdl.BestOf):
        for param in kind.declared().values():
            types = {param.kind, *get_args(param.kind)}
            if {int, float} & types and not {str, list[float]} & types:
                for value in (math.nan, "text", True, sparkdl.TopK, *([2.5] if float not in types else [])):
                    with pytest.raises((InvalidInput, TypeError)):
                        param.typeConverter(value)
                assert type(param.typeConverter(np.float32(0.5) if float in types else np.int32(2))) in (int, float)
    with pytest.raises(InvalidInput, match=r"thresholds is \[0.5, nan\]; expected"):
        sparkdl.TorchClassifier(thresholds=[0.5, math.nan])
    with pytest.raises(InvalidInput, match=r"thresholds is \[0.5, 1.5\]; expected numbers from 0 to 1"):
        sparkdl.TorchClassifier(model=partial(nn.Linear, 2, 3), multiLabel=True, thresholds=[0.5, 1.5]).training()
