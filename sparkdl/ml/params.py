"""The Params of estimators and models, each declared once.

``make stubs`` generates the accessors and constructors in ``params.pyi``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pyspark.ml.param import Param, shared
from torch import nn

from sparkdl.cluster.group.devices import BACKENDS
from sparkdl.data.batching import CACHE_MODES
from sparkdl.data.columns import InputColumn
from sparkdl.io.fields import Natural, Positive, Rule
from sparkdl.ml.column_params import InputColumnParams, OutputColumnParams
from sparkdl.ml.param_declaration import ConstructedParams, Scope, param
from sparkdl.ml.param_types import (
    number,
    one_of,
    to_amount,
    to_arguments,
    to_boolean,
    to_class_weights,
    to_columns,
    to_count,
    to_float,
    to_fraction,
    to_function,
    to_interval,
    to_labels,
    to_layout,
    to_list,
    to_metrics,
    to_optimizer,
    to_path,
    to_seed,
    to_several,
    to_strategy,
    to_string,
    to_strings,
    to_thresholds,
)
from sparkdl.rounds import Algorithm
from sparkdl.telemetry.log_forwarding import LEVELS
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.loss import LossFunction
from sparkdl.training.objective.module_factory import ModelFactory
from sparkdl.training.objective.monitored_value import MODES
from sparkdl.training.objective.objective import INTERVALS, PRECISIONS, OptimizerFactory, SchedulerFactory
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce

# Used by optimizer steps; algorithms of rounds have their own fields for the rest.
_STEPS = ~Scope.ROUNDS
_NOT_IN_ROUNDS = ~(Scope.ROUNDS | Scope.STEPS)
# How a fit runs; other values give the same result.
_HOW = Scope.FITS | Scope.MEMBERS
_ONLY_ROUNDS = ~(Scope.GANG | Scope.TASK | Scope.RUN)
_RESTARTS = Scope.GANG | Scope.MEMBERS


class PredictionParams(
    OutputColumnParams,
    shared.HasPredictionCol,
    shared.HasRawPredictionCol,
    shared.HasProbabilityCol,
    shared.HasThresholds,
):
    """Output columns of a model."""

    thresholds: Param[list[float] | None] = param(
        "one per class; the prediction has the largest probability / threshold; with None each is 1. With multiLabel "
        "one per label; a prediction is 1 if the probability exceeds it; with None each is 0.5",
        to_thresholds,
    )
    predictionCol: Param[str] = param(
        "column of the predicted class or value, or of the raw output", to_string, "prediction"
    )
    rawPredictionCol: Param[str] = param(
        "column of a classifier's scores, a vector; '' for none", to_string, "rawPrediction"
    )
    probabilityCol: Param[str] = param(
        "column of a classifier's probabilities, a vector; '' for none", to_string, "probability"
    )


class OutputParams(InputColumnParams, PredictionParams, shared.HasFeaturesCol, shared.HasInputCols, shared.HasLabelCol):
    """Input, label and output columns, shared by estimators and models."""

    inputCols: Param[list[str]] = param(
        "input columns; each is one argument of forward(), in order", to_strings, ["features"]
    )
    featuresCol: Param[str] = param("the only input column: short for inputCols=[featuresCol]", to_string, "features")
    labelCol: Param[str | list[str] | None] = param(
        "label column, or several, side by side [B, labels]; None if the target is the first input", to_labels, "label"
    )
    columnSpecs: Param[list[InputColumn]] = param(
        "details of input columns, and of the label column, that the schema lacks: a list of sparkdl.data.InputColumn",
        to_columns,
        [],
    )
    assembleInputs: Param[bool] = param(
        "whether forward() gets one argument, all input columns side by side [B, numbers]", to_boolean, False
    )
    device: Param[str] = param(
        "cpu or cuda; a fitted model scores on the CPU until its own device is set", one_of(("cpu", "cuda")), "cpu"
    )
    collate: Param[Callable[..., Any] | None] = param(
        "collate(inputs, target) -> (inputs, target), applied to every batch; None leaves batches unchanged",
        to_function,
    )


class RunParams(ConstructedParams):
    """Limits, recovery and reporting of a run."""

    runDir: Param[str | None] = param(
        "the run's directory, a path or URI; a fit with a param map uses a folder in it; None saves nothing",
        to_path,
        scope=(_HOW | Scope.PIPELINE) & ~Scope.TASK,
    )
    backend: Param[str] = param(
        "how a gang exchanges gradients: nccl, gloo, or auto, which is nccl on GPUs and gloo on CPUs",
        one_of(BACKENDS),
        "auto",
        _RESTARTS,
    )
    taskCpus: Param[int | None] = param(
        "cores of each task that trains; None takes spark.task.cpus", to_count, scope=_HOW
    )
    taskGpus: Param[float | None] = param(
        "GPUs of each task that trains, below 1 if tasks share one; with device='cuda' None is 1, if the executors "
        "have GPUs",
        number(Positive | None, to_float),
        scope=_HOW,
    )
    resourceTimeout: Param[float] = param("seconds to wait for task slots", to_amount, 120.0, _RESTARTS)
    collectiveTimeout: Param[float] = param(
        "seconds that a worker waits for the others in a collective, such as a sum of gradients",
        number(Positive, to_float),
        600.0,
        _RESTARTS,
    )
    allowUnencrypted: Param[bool] = param(
        "whether a gang may use unencrypted connections if Spark encrypts its own", to_boolean, False, _HOW
    )
    checkpointInterval: Param[int | str] = param(
        "steps between two checkpoints, or '2 epochs', '30 seconds', 'never', or 'auto', which weighs their cost "
        "against failures. The next attempt and the next fit in the same runDir resume from the newest. Without a "
        "runDir, a temporary directory of the driver's host holds them. Rounds in a runDir are all saved, or 'never'",
        to_interval,
        "auto",
        _HOW & ~Scope.TASK,
    )
    maxRestarts: Param[int] = param(
        "restarts of a failed gang; a failure that would recur causes none", number(Natural), 3, _RESTARTS
    )
    minWorkers: Param[int | None] = param(
        "smallest gang that starts if slots are missing; None takes numWorkers", to_count, scope=_RESTARTS
    )
    elasticTimeout: Param[float] = param(
        "seconds to wait for the slots of all workers before fewer start", to_amount, 300.0, _RESTARTS
    )
    maxRounds: Param[int | None] = param(
        "largest number of rounds of an algorithm; None sets no limit", to_count, scope=_ONLY_ROUNDS
    )
    maxSeconds: Param[float | None] = param(
        "seconds after which no other round begins; None sets no limit", to_amount, scope=_ONLY_ROUNDS
    )
    telemetry: Param[bool] = param(
        "whether workers report progress, phases and events; False sends only heartbeats", to_boolean, True, _HOW
    )
    logLevel: Param[str] = param(
        "lowest level of workers' log lines that the driver prints: debug, info (with their prints), warning, error "
        "or off",
        one_of(LEVELS),
        "warning",
        _HOW,
    )


class TrainingParams(OutputParams, RunParams, shared.HasWeightCol, shared.HasValidationIndicatorCol, shared.HasSeed):
    """The model, its objective and its training."""

    model: Param[ModelFactory | nn.Module] = param(
        "model factory or class, called with modelArgs, such as a sparkdl.WarmStart; or a module whose weights are the "
        "start"
    )
    loss: Param[LossFunction | nn.Module] = param(
        "nn loss module, with class weights and ignore_index as in torch on the global batch, or loss(output, target) "
        "that returns losses [B, ...] or their mean"
    )
    modelArgs: Param[dict[str, Any]] = param("arguments of the model factory or class", to_arguments, {})
    optimizer: Param[str | OptimizerFactory] = param(
        "name of an optimizer, such as 'adamw', a class, or a factory that is called with the "
        "parameters, or with pairs of a name and a parameter if its argument is named_parameters",
        to_optimizer,
        "adam",
        _STEPS,
    )
    learningRate: Param[float | None] = param(
        "learning rate of the optimizer; None takes the optimizer's default", to_amount, scope=_STEPS
    )
    optimizerArgs: Param[dict[str, Any]] = param(
        "other arguments of the optimizer by name, such as weight_decay", to_arguments, {}, _STEPS
    )
    scheduler: Param[SchedulerFactory | None] = param(
        "called with the optimizer, and with steps_per_epoch and epochs if it takes them; ReduceLROnPlateau gets the "
        "value of monitor. Rounds step it once a round. With None the learning rate is constant",
        to_function,
        scope=_STEPS,
    )
    schedulerInterval: Param[str] = param(
        "when the scheduler steps: after each 'epoch', or after each optimizer 'step'",
        one_of(INTERVALS),
        "epoch",
        _NOT_IN_ROUNDS,
    )
    metrics: Param[dict[str, Any]] = param(
        "name -> torchmetrics metric; computed over validation rows if there are any", to_metrics, {}
    )
    strategy: Param[Strategy | Algorithm] = param(
        "how the replicas of a gang agree, such as AllReduce(), or an algorithm of rounds, such as ParallelSGD(), with "
        "its own fields for batches, epochs and penalties",
        to_strategy,
        AllReduce(),
    )
    layout: Param[Layout] = param(
        "how a replica of the model is placed on the workers of a gang; docs/layouts.md compares layouts",
        to_layout,
        Replicated(),
        _RESTARTS,
    )
    weightCol: Param[str | None] = param(
        "column of the rows' weights in the loss, at least 0; with None each row weighs 1", to_string
    )
    validationIndicatorCol: Param[str | None] = param(
        "boolean column; true marks a validation row, which training does not see; None marks no row", to_string
    )
    validationFraction: Param[float | None] = param(
        "share of the rows that are validation rows, as a hash of idCol decides, or without it of inputs and labels; "
        "with None all rows are training rows",
        to_fraction,
    )
    classWeights: Param[list[float] | str | None] = param(
        "weights of a classifier's classes in the loss, by which row weights are multiplied: 'balanced', inverse to "
        "their training rows, or a list of one for each class; with None each class weighs 1",
        to_class_weights,
    )
    idCol: Param[str | None] = param(
        "unique integer column that fixes the order of rows; None numbers them on arrival", to_string
    )
    numWorkers: Param[int | None] = param(
        "workers of a gang, or shards of rounds; one task each. With None a gang takes all slots, at most one for each "
        "batchSize rows; rounds have spark.default.parallelism shards, on GPUs one for each slot, and an ensemble's "
        "member has one worker",
        to_count,
        scope=~(Scope.RUN | Scope.PIPELINE),
    )
    batchSize: Param[int] = param("rows of the GLOBAL batch", to_count, 256, _NOT_IN_ROUNDS)
    dropLast: Param[bool] = param(
        "whether an epoch leaves out its last step if that has fewer rows than batchSize, unless it is the only one",
        to_boolean,
        False,
        _NOT_IN_ROUNDS,
    )
    epochs: Param[int] = param("passes over the data", to_count, 10, _NOT_IN_ROUNDS & ~Scope.RUN)
    seed: Param[int] = param("seed of weights, permutations and dropout", to_seed, 0)
    precision: Param[str] = param(
        "fp32, bf16 or fp16 (autocast; fp16 scales the loss), or fp64", one_of(PRECISIONS), "fp32"
    )
    channelsLast: Param[bool] = param(
        "whether weights and inputs [B, C, H, W] have their channels last in memory", to_boolean, False, _STEPS
    )
    compile: Param[str | None] = param(
        "backend that compiles the model, such as inductor; if it fails, the model runs uncompiled, with a "
        "warning. With None nothing compiles the model",
        to_string,
        scope=_NOT_IN_ROUNDS,
    )
    cacheOnDevice: Param[str] = param(
        "whether a GPU holds its worker's rows: auto, if they take at most half of the free memory; always or never",
        one_of(CACHE_MODES),
        "auto",
        _NOT_IN_ROUNDS & ~Scope.RUN,
    )
    tf32: Param[bool] = param("whether GPUs multiply float32 matrices in TF32", to_boolean, False, _STEPS)
    syncBatchNorm: Param[bool] = param(
        "whether batch normalisation on GPUs takes the statistics of the global batch, not of each worker's rows; with "
        "another layout set that layout's own field",
        to_boolean,
        False,
        _NOT_IN_ROUNDS,
    )
    maxGradNorm: Param[float | None] = param(
        "largest L2 norm of the global gradient, or with local steps of each worker's own; None sets no limit",
        number(Annotated[float, Rule("a number above 0", lambda number: number > 0)] | None, to_float),
        scope=_STEPS,
    )
    microBatches: Param[int] = param("micro-batches of each worker per step", to_count, 1, _STEPS)
    numClasses: Param[int | None] = param(
        "number of classes, which bounds labels; None takes the width of the model's output", to_several
    )
    multiLabel: Param[bool] = param(
        "whether a TorchClassifier's labels are independent, each 0 or 1, in several columns or an array column; the "
        "default loss then is nn.BCEWithLogitsLoss()",
        to_boolean,
        False,
    )
    patience: Param[int | None] = param(
        "epochs, or rounds, without a better value of monitor before training ends; None trains all epochs", to_count
    )
    monitor: Param[str | None] = param(
        "column of the history that patience, keepBest and ReduceLROnPlateau compare, such as 'valid_auc' for a metric "
        "'auc'; None takes valid_loss, or without validation rows loss or objective",
        to_string,
    )
    monitorMode: Param[str] = param(
        "better value of monitor: 'min' or 'max'; 'auto' asks the metric, and minimizes a loss", one_of(MODES), "auto"
    )
    minDelta: Param[float] = param(
        "improvement of monitor below which an epoch, or round, is no better", to_amount, 0.0
    )
    keepBest: Param[bool | None] = param(
        "whether the model has the weights of the epoch, or round, with the best value of monitor, not the last; with "
        "None it has them if there are validation rows or patience is set",
        to_boolean,
    )
    augment: Param[Callable[..., Any] | None] = param(
        "augment(inputs, target, generator) -> (inputs, target), for training batches; None leaves them unchanged",
        to_function,
        scope=_STEPS,
    )
    callbacks: Param[list[Any]] = param(
        "objects with methods such as on_step(run) and on_epoch(run), called on every rank, with every_rank=False on "
        "rank 0",
        to_list,
        [],
        Scope.GANG | Scope.TASK | Scope.MEMBERS,
    )
    replicaCheckInterval: Param[int | None] = param(
        "steps between two checks that all replicas are equal; None checks after each epoch alone. Strategies whose "
        "replicas are equal only at an epoch's end ignore it",
        to_count,
        scope=_RESTARTS,
    )
    trackers: Param[list[Any]] = param(
        "objects with any of on_start, on_step, on_epoch, on_end(run), called on the driver",
        to_list,
        [],
        Scope.GANG | Scope.ROUNDS | Scope.MEMBERS,
    )
