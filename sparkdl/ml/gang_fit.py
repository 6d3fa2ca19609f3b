"""Fits on a gang of workers, and the number of workers."""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.part_folder import PartFolder
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.cluster.protocol import Cluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.merged_weights import merge_files, merge_weights
from sparkdl.io.redaction import public
from sparkdl.io.weights import check_result
from sparkdl.io.weights_file import Weights
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.fit_spec import FitResult, FitSpec
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.report import make_report
from sparkdl.ml.run import IDENTITY, Run, own_checkpoints, previous_workers
from sparkdl.spark.slots.capacity import check_setting
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import choose_shards, choose_workers
from sparkdl.spark.warm_up import warm_up
from sparkdl.training.layouts import Layout, check_workers
from sparkdl.training.layouts.table import tables_of
from sparkdl.training.objective.module_factory import new_module, without_parameters
from sparkdl.training.rng import kept_random_state
from sparkdl.training.spec import TrainingResult

logger = logging.getLogger(__name__)


def fit_gang(fit: FitSpec, cluster: Cluster, watch: FitMonitor) -> FitResult:
    """Train on a gang, and again if it fails."""
    start = time.monotonic()
    _check_model(fit, cluster.size)
    with _open_checkpointer(fit) as checkpointer, part_folder(fit.run) as folder:
        supervisor = _make_supervisor(cluster, fit, checkpointer)
        earlier = 0.0 if checkpointer is None else time.time() - checkpointer.checkpoints.began
        attempt = 0 if checkpointer is None else checkpointer.checkpoints.next_attempt()
        watch.begin(fit.data.sparkSession)
        if checkpointer is not None and "callbacks" in (fit.run.load(IDENTITY) or fit.descriptions):
            fit.run.save(IDENTITY, fit.descriptions)
        training = replace(fit.training, checkpointer=checkpointer, part_writer=folder)
        workers: list[TrainingResult] = supervisor.gang(
            training, fit.data, fit.columns, listener=watch.event_log, attempt=attempt
        )
        if checkpointer is not None:  # the workers have compared the callbacks with the earlier version's
            fit.run.save(IDENTITY, fit.descriptions)
        weights = merged(workers, fit.run, folder)
    report = make_report(workers, earlier + time.monotonic() - start, supervisor)
    report["restarts"] += attempt  # the number of attempts of earlier fits
    return FitResult(
        weights,
        workers[0].history,
        report,
        next((worker.report["output"] for worker in workers if worker.report["output"] is not None), None),
        next((worker.report["inputs"] for worker in workers if worker.report["inputs"]), None),
    )


def _check_model(fit: FitSpec, workers: int) -> None:
    """Raise InvalidInput if the layout does not fit, or the weights exceed the driver's limit of results.

    With a directory for files, weights have no limit.
    """
    objective, layout = fit.training.objective, fit.training.layout
    alone = fit.run.directory is None
    limit = fit.training.result_limit if alone else None
    check_workers(layout, workers)
    if fit.min_workers is not None:
        check_workers(layout, fit.min_workers, "minWorkers")
    if limit is None and getattr(type(layout), "check", None) is Layout.check:
        return
    try:
        with kept_random_state(), without_parameters():
            # The checks may change the module, and so a user's module stays out: they get a copy without values.
            is_module = isinstance(objective.model, nn.Module)
            module = new_module(objective.model, parameters=False) if is_module else objective.model()
        state = module.state_dict(keep_vars=True)
        values = {id(one): one for one in state.values() if isinstance(one, Tensor)}.values()
    except (
        Exception
    ) as error:  # the factory may need values, or what the driver lacks; place and the workers check again
        logger.debug("the driver cannot make the model: %s: %s", type(error).__name__, error)
        return
    sizes = [one.numel() * (objective.dtype if one.is_floating_point() else one.dtype).itemsize for one in values]
    layout.check(objective, module, workers)
    if hasattr(fit.training.strategy, "check"):  # strategies of users may lack it
        fit.training.strategy.check(objective, module, layout, min(workers, fit.min_workers or workers))
    if alone:
        check_result(module, sum(sizes), limit, tables=bool(tables_of(module)))


def merged(workers: Sequence[TrainingResult], run: Run, folder: PartFolder | None) -> Weights:
    """The weights of all workers' parts; empty if the run paused."""
    parts = [worker.weights for worker in workers]
    if not any(parts):  # the run paused
        return b""
    if folder is None or not workers[0].in_file:
        return merge_weights(parts)
    return merge_files([folder.part(part) for part in parts], files.absolute(str(run.directory)), folder.rows)


@contextmanager
def part_folder(run: Run) -> Iterator[PartFolder | None]:
    """A folder of this fit alone in the run's directory, for the parts of large weights.

    The files of tables stay, unless the block fails.
    """
    if run.directory is None:
        yield None
        return
    fit = uuid.uuid4().hex
    directory = SharedDirectory(files.join(run.directory, f"parts-{fit}"))
    tables = files.absolute(files.join(run.directory, f"tables-{fit}"))
    directory.announce()
    try:
        yield PartFolder(directory, tables)
    except BaseException:
        _delete(tables)
        raise
    finally:
        _delete(directory.directory)


def _delete(folder: str) -> None:
    try:
        files.delete(folder)
    except OSError as error:
        logger.warning("%s cannot be deleted: %s", public(folder), error)


@contextmanager
def _open_checkpointer(fit: FitSpec) -> Iterator[Checkpointer | None]:
    if fit.checkpoint_interval == "never":
        yield None
        return
    interval, elastic = CheckpointInterval.of(fit.checkpoint_interval), fit.min_workers is not None
    if fit.run.directory is not None:
        yield Checkpointer(own_checkpoints(fit.run, fit.descriptions), interval, elastic=elastic)
        return
    # Serves the attempts of this fit if all workers are on this host.
    with tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True) as folder:
        checkpoints, token = own_checkpoints(Run(folder), fit.descriptions), uuid.uuid4().hex
        SharedDirectory(checkpoints.directory, token).announce()
        yield Checkpointer(checkpoints, interval, elastic=elastic, token=token)


def _make_supervisor(cluster: Cluster, fit: FitSpec, checkpointer: Checkpointer | None) -> Supervisor:
    least = fit.min_workers
    if least is not None and least > cluster.size:
        raise InvalidInput(f"minWorkers is {least}; expected at most numWorkers, which is {cluster.size}.")
    if least is not None and checkpointer is None:
        warnings.warn(
            f"minWorkers={least} without checkpoints (checkpointInterval='never'): each attempt starts anew, and a "
            "smaller gang never grows.",
            stacklevel=4,
        )
    stop = None if checkpointer is None or checkpointer.temporary else checkpointer.checkpoints.attempts.ask_to_stop
    return Supervisor(
        cluster,
        max_restarts=fit.max_restarts,
        min_size=least,
        multiple=fit.training.layout.multiple(cluster.size),
        elastic_timeout=fit.elastic_timeout,
        on_stop=stop,
    )


def chosen_workers(params: TrainingParams, fit: FitSpec) -> int | None:
    """The workers of a fit without ``numWorkers``, which its configuration keeps; None for Spark's partitions."""
    spark, previous = fit.data.sparkSession, previous_workers(fit.run)
    if not getattr(fit.algorithm, "shuffle", True):
        return None
    warm_up(spark)
    device = params.getDevice()
    requests = TaskResources.of_training(spark, device, cpus=params.getTaskCpus(), gpus=params.getTaskGpus())
    if fit.algorithm is not None:
        chosen = previous or choose_shards(spark, requests, device=device)
    else:
        check_setting(spark, allow_unencrypted=params.getAllowUnencrypted())
        least, batch = params.getMinWorkers(), params.getBatchSize()
        chosen = choose_workers(fit.data, batch, requests, device=device, least=least, previous=previous)
        multiple = fit.training.layout.multiple(chosen)
        chosen = max(chosen - chosen % multiple, multiple)
    logger.info("numWorkers is None; %s takes %d.", type(params).__name__, chosen)
    return chosen
