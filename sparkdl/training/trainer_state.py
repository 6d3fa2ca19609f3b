"""The complete state of a run on one worker, saved and restored together."""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import Any

from torch import Tensor

from sparkdl.cluster.group.world import World
from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import LARGE, Slices, check_result, check_weights, fits
from sparkdl.telemetry.emit import record
from sparkdl.training.callbacks.callback import CallbackRequests, called_on, load_states, states_of
from sparkdl.training.callbacks.early_stopping import EarlyStopping, GangEarlyStopping
from sparkdl.training.dataloader import BatchLoader
from sparkdl.training.layouts import Replica
from sparkdl.training.objective.metrics import MetricAccumulator, load_metric_states, metric_states, open_metrics
from sparkdl.training.objective.objective import length_arguments
from sparkdl.training.rng import random_state, set_random_state
from sparkdl.training.spec import TrainingResult, TrainingSpec
from sparkdl.training.strategies import OPTIMIZER_OF, Sync
from sparkdl.training.weight_slices import whole_bytes

_RESUMED_BY = {"ParameterServer": "AllReduce"}  # a strategy, and another one that resumes its states
_FORMAT = 7  # version of the saved state
# Entries of a place that may differ at an epoch's start, and their names in errors.
_NAMES = {"workers": "number of workers", "shard_rows": "number of rows by shard"}


class TrainerState:
    """A worker's replica, counters, history and random numbers, from which a later attempt resumes.

    ``sync`` is the strategy, attached to ``replica``.
    """

    def __init__(self, world: World, training: TrainingSpec, replica: Replica, sync: Sync, rows: BatchLoader) -> None:
        self.world, self.training, self.replica, self.sync, self.rows = world, training, replica, sync, rows
        self.group = world.group()
        self.history: list[dict[str, Any]] = []  # one row per epoch, the same on every worker
        self.report: dict[str, Any] = {"train_seconds": 0.0, "phases": {}}
        self.metrics = open_metrics(training.objective.metrics, world.device)
        # Of the current epoch; with validation rows, the metrics are theirs.
        self.meter = MetricAccumulator(world.device, self.metrics if rows.validation is None else {})
        stopping = EarlyStopping(training.patience, training.min_delta, training.objective.mode)
        keep = training.keeps_best(validated=rows.validation is not None)
        self.stopping = GangEarlyStopping(replica, self.group, stopping, keep=keep)
        check_weights(replica.module)
        size, limit = whole_bytes(replica, self.stopping.slices), training.result_limit
        if not replica.has_all_modules:  # buffers differ in size
            size = max(self.group.gather(size))
        self._writer = None if size <= LARGE and fits(size, limit) else training.part_writer
        if self._writer is None:
            returns = training.last_epoch is None or not training.pauses
            check_result(replica.module, size, limit, tables=returns and bool(replica.divided))
        else:
            self._writer.check()
        # Copies, since another run of this process, such as another member of an ensemble, may have the same objects.
        self.callbacks = called_on(copy.deepcopy(list(training.callbacks)), world.rank)
        self.requests = CallbackRequests()  # of this worker's callbacks in the current epoch
        self._random: dict[str, Any] | None = None
        self._spent = 0.0  # seconds that an earlier attempt spent in the first epoch
        self._begun = 0  # first step of the current epoch
        self._started = time.monotonic()
        world.clock.load_state_dict(Clock().state_dict())

    @property
    def _strategy(self) -> str:
        return type(self.training.strategy).__qualname__

    @property
    def _equal(self) -> bool:
        """Whether the replicas are equal in each saved state."""
        return self.sync.replicated or self.sync.settles

    @property
    def position(self) -> int:
        """Finished steps of the current epoch."""
        return self.world.clock.step - self._begun

    @property
    def finished(self) -> bool:
        """Whether all epochs are finished, or early stopping, or ``last_epoch`` without a pause, ended training."""
        last = self.training.epochs if self.training.pauses else self.training.last_epoch or self.training.epochs
        return self.stopping.finished or self.world.clock.epoch >= last

    @property
    def paused(self) -> bool:
        """Whether training pauses before it is finished."""
        last = self.training.last_epoch
        return not self.finished and last is not None and self.world.clock.epoch >= last

    @property
    def epoch_seconds(self) -> float:
        """Seconds of the current epoch, an earlier attempt's included."""
        return time.monotonic() - self._started

    def start(self) -> None:
        """Start the clock of the first epoch; restore random numbers, since callbacks may have drawn some."""
        if self.training.checkpointer is not None:
            self.training.checkpointer.check(self.state())
        self._started = time.monotonic() - self._spent
        # They draw the same random numbers, also after a run in which they did not.
        state, self._random = self.replica.alike.gather(self._random)[0], None
        if state is not None:
            set_random_state(state, self.world.device)

    def start_epoch(self) -> None:
        """Start the clock of the next epoch at this step."""
        self._started, self._begun = time.monotonic(), self.world.clock.step

    def save(self) -> None:
        """Notify the checkpointer, if there is one, of a finished step; it saves the state if due.

        The last step of an epoch is finished with the epoch.
        """
        if self.training.checkpointer is not None and self.position < self.rows.plan.steps:
            self.training.checkpointer.after_step(self.world, self._settled, finished=self.finished or self.paused)

    def result(self) -> TrainingResult:
        """This worker's part of the weights, the history and this worker's report; without weights if it paused."""
        sent = self.sync.bytes_per_step + self.replica.bytes_per_step
        communication = {"bytes_per_step": sent, "host": self.world.host}
        best = {"best_epoch": self.stopping.epochs.best, "keeps_best": self.stopping.keep}
        self.report |= {**best, "stop_reason": self.stopping.reason}
        report = self.rows.report | self.report | communication
        if self.paused:
            return TrainingResult(b"", self.history, report)
        writer, name = self._writer, f"{self.world.attempt:04d}-{self.world.rank:05d}"
        if writer is None:
            return TrainingResult(b"".join(self.stopping.packed_weights()), self.history, report)
        part = writer.write(name, self.stopping.packed_weights(partial(writer.write_rows, name)))
        return TrainingResult(part, self.history, report, in_file=True)

    def state(self) -> dict[str, Any]:
        """The state that this worker's next steps depend on, for ``pack_state``; tensors and lists are live.

        ``"shared"`` has dicts of tensors that are equal on all workers, or this worker's ``"slices"`` of them, and
        ``"local"`` the rest of this worker: between epochs, for every strategy, the weights are equal as well. If the
        state is not ``"complete"``, this worker has only some of the parameters. Raises InvalidInput within a step.
        """
        replica, sync, stopping = self.replica.state_dict(), self.sync.state_dict(), self.stopping.state_dict()
        equal_states, rank_states = states_of(self.callbacks)
        shared: dict[str, Any] = {}
        if self._equal:
            shared = {"replica": replica.pop("shared"), "callbacks": equal_states}
        else:
            rank_states |= equal_states
        if "shared" in sync and self.replica.has_all_modules:  # else an index is another parameter on each worker
            shared["sync"] = sync.pop("shared")
        if "shared" in stopping:
            shared["stopping"] = stopping.pop("shared")
        local = {
            "format": _FORMAT,
            "strategy": self._strategy,
            "place": self._place(),
            "rank": self.world.rank,
            "slices": self._entries(),
            "clock": self.world.clock.state_dict(),
            "position": self.position,
            "replica": replica,
            "sync": sync,
            "meter": self.meter.state_dict(),
            "metrics": metric_states(self.metrics),
            "stopping": stopping,
            "callbacks": rank_states,
            "requests": vars(self.requests),
            "history": self.history,
            "report": self.report,
            "feed_wait_seconds": self.rows.report["feed_wait_seconds"],
            "epoch_seconds": self.epoch_seconds,
            "random": random_state(self.world.device),
        }
        complete = self.replica.has_all_modules
        about = {"complete": complete, "layout": dict(self.replica.layout_state)}
        return {"shared": shared, "local": local, "slices": self._slices(), "divided": self.replica.divided, **about}

    def resume(self) -> None:
        """Resume from the checkpointer's checkpoint; raises InvalidInput if training pauses without a checkpointer."""
        if self.training.checkpointer is None:
            if self.training.last_epoch is not None:
                raise InvalidInput(
                    "last_epoch is set, and there is no checkpointer; a run that pauses saves its state."
                )
        else:
            assert self.rows.fingerprint is not None
            self.restore(self.training.checkpointer.load(self.world, self.rows.fingerprint, self._live()))

    def restore(self, state: dict[str, Any] | None) -> None:
        """Resume from a state of ``state``, all workers from the same step; None starts anew.

        The state of an epoch's end may come from a gang of another size. Raises InvalidInput if the state is of another
        training, of different steps on the workers, or past the last of ``epochs``.
        """
        saved = None if state is None else state["local"]
        if saved is not None:
            self._check(saved)
        steps = self.group.gather(None if saved is None else saved["clock"]["step"])
        if len({*steps}) > 1:
            raise InvalidInput(f"the workers, by rank, have states of the steps {steps}; expected one step, or none.")
        if state is None or saved is None:
            return
        shared = state["shared"]
        self._check_slices(saved)
        if saved["strategy"] != self._strategy:
            self._move_optimizer(shared["replica"], shared.pop("sync"))
        self.replica.load_state_dict(saved["replica"] | ({"shared": shared["replica"]} if "replica" in shared else {}))
        self.meter.load_state_dict(saved["meter"])
        load_metric_states(self.metrics, saved["metrics"])
        self.world.clock.load_state_dict(saved["clock"])
        self._begun = self.world.clock.step - saved["position"]
        self.stopping.load_state_dict(saved["stopping"] | {"shared": shared.get("stopping", {})})
        self._restore_callbacks(saved, shared)
        self.history, self.report = saved["history"], saved["report"]
        self.rows.report["feed_wait_seconds"] = saved["feed_wait_seconds"]
        self._spent = saved["epoch_seconds"]
        common = {"shared": shared["sync"]} if "sync" in shared else {}
        # In another gang or with other slices, the strategy's per-worker state fits no worker.
        same = saved["strategy"] == self._strategy and saved["place"]["workers"] == self.world.size
        if same and saved.get("slices", {}) == self._entries():
            self.sync.load_state_dict(saved["sync"] | common)
        elif common:
            self.sync.load_state_dict(common)
        if saved["rank"] == self.world.rank:
            self._random = saved["random"]
        else:  # the phase times are of another rank
            self.report["phases"] = {}
        if self.world.rank == 0:
            record("restored", clock=self.world.clock, history=self.history)

    def _entries(self) -> dict[str, Any]:
        return {str(name): part.entry() for name, part in self.replica.slices.items()}

    def _check_slices(self, saved: dict[str, Any]) -> None:
        """Raise InvalidInput if the weights are this worker's alone, and the state has other slices of them."""
        if not self._equal and saved.get("slices", {}) != self._entries():
            raise InvalidInput(
                f"the replicas of {type(self.training.strategy).__name__} differ between its exchanges, and the saved "
                "state has slices of other workers; expected the numWorkers and the layout of the saved run."
            )

    def _live(self) -> dict[str, Any]:
        # Not the states of callbacks, which may have none before they start.
        shared = {"replica": self.replica.state_dict()["shared"]} if self._equal else {}
        return {"shared": shared, "slices": self._slices(), "settles": self.sync.settles}

    def _settled(self) -> dict[str, Any]:
        """The state to save: in asynchronous strategies, of a moment at which all workers wait for each other."""
        self.sync.settle()
        return self.state()

    def _slices(self) -> Slices:
        return {**self.replica.slices, **self.stopping.slices, **self.sync.slices}

    def _move_optimizer(self, replica: dict[str, Any], sync: dict[str, Any]) -> None:
        """Move the optimizer's state from parameter shards into the replica, which has no optimizer of its own yet."""
        if sync["kind"] != replica["kinds"]["optimizer"]:
            raise InvalidInput(
                f"the saved state is of parameter shards with the optimizer {sync['kind']}, and this training's is "
                f"{replica['kinds']['optimizer']}; resume with strategy=ParameterServer(...) of the saved run."
            )
        for key, values in sync["optimizer"].items():
            name = key.removeprefix(OPTIMIZER_OF)
            shape = replica["parameters"][name].shape  # on a shard, a scalar is one row
            replica["optimizer"]["state"][name] = {
                part: one.view(shape) if isinstance(one, Tensor) and one.dim() else one for part, one in values.items()
            }

    def _restore_callbacks(self, saved: dict[str, Any], shared: dict[str, Any]) -> None:
        states = saved["callbacks"] | shared.get("callbacks", {})
        if saved["rank"] == self.world.rank:
            self.requests = CallbackRequests(**saved["requests"])
        else:  # a new rank of a larger gang resumes from rank 0's state, which may have more callbacks
            states = {name: state for name, state in states.items() if name in self.callbacks}
        # Earlier versions called callbacks on rank 0 alone: the other ranks take its states.
        lacking = [name for name, one in self.callbacks.items() if hasattr(one, "state_dict") and name not in states]
        if missing := {name for names in self.group.gather(lacking) for name in names}:
            sent = {name: states[name] for name in missing & states.keys()} if self.world.rank == 0 else {}
            first = self.group.gather(sent)[0]
            states |= {name: first[name] for name in lacking if name in first}
        load_states(self.callbacks, states)

    def _check(self, state: dict[str, Any]) -> None:
        if state["format"] != _FORMAT:
            raise InvalidInput(
                f"the saved state has format {state['format']}; this version of sparkdl reads {_FORMAT}. Resume with "
                "the version that saved it, or start a new run elsewhere."
            )
        if self._strategy not in (state["strategy"], _RESUMED_BY.get(state["strategy"])):
            raise InvalidInput(
                f"the saved state is of the strategy {state['strategy']}, and this training's is {self._strategy}. "
                "Resume with the strategy of the saved run, or start a new run elsewhere."
            )
        for name, value in self._place().items():
            saved = state["place"][name]
            # At an epoch's end the state fits a gang of any size.
            if saved != value and (state["position"] or name not in _NAMES):
                raise InvalidInput(
                    f"the saved state is of another training: its {_NAMES.get(name, name)} is {saved}, expected "
                    f"{value}. Resume with its workers, data and settings, or start a new run elsewhere."
                )
        epoch, asked = state["clock"]["epoch"], self.training.epochs
        if epoch + bool(state["position"]) > asked:
            raise InvalidInput(
                f"the saved state is of step {state['clock']['step']}, past the end of {asked} epochs of "
                f"{self.rows.plan.steps} steps; set epochs at least as high as before."
            )

    def _place(self) -> dict[str, Any]:
        plan = self.rows.plan
        place = {"workers": self.world.size, "shard_rows": list(plan.rows)}
        place |= {"batchSize": plan.batch_size, "seed": plan.seed, "shuffle": plan.shuffle}
        # A schedule of the run's length, such as OneCycleLR, cannot be prolonged.
        fixed = "epochs" in length_arguments(self.training.objective.scheduler)
        return place | ({"epochs": self.training.epochs} if fixed else {})
