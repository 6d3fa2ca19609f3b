"""The directory of a synthetic run with a given number of events.

The library's code (``StepTimer``, ``record``, ``span``) makes the workers' events, on a clock that is set by hand; an
``EventLog`` writes them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sparkdl.data.clock import Clock
from sparkdl.ml.run import Run
from sparkdl.telemetry.bottlenecks import spending
from sparkdl.telemetry.emit import record, recording
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.recorder import Recorder
from sparkdl.telemetry.step_timer import StepTimer, end_step, enter_phase, measuring

BEGAN = 1_800_000_000.0
ROWS = 256  # of a step, on each worker
PHASES = {"feed": 0.001, "forward": 0.006, "backward": 0.012, "exchange": 0.004, "update": 0.002}  # seconds of a step
SLOW = 1.4  # compute time of the last worker, relative to the others
STEPS = 600  # of an epoch

_STARTED = 8.0  # seconds until workers have started
_PROGRESS, _HEARTBEAT, _CHECKPOINT = 0.25, 10.0, 30.0  # seconds between two events
_SPREAD = 0.2  # relative variation of a step's seconds


@dataclass
class Watch:
    """A clock that is set by hand.

    Attributes:
        now: seconds.
    """

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class SyntheticWorker:
    """One rank of the run.

    Args:
        rank: of the worker.
        listener: called with each event.
        slow: compute time, relative to the fastest worker; faster workers wait for the slowest.
        slowest: compute time of the slowest worker, relative to the fastest.
    """

    def __init__(self, rank: int, listener: Callable[[Event], None], slow: float = 1.0, slowest: float = 1.0) -> None:
        self.history: list[dict[str, Any]] = []
        self._rank, self._listener = rank, listener
        computing = {phase: seconds * slow for phase, seconds in PHASES.items() if phase != "exchange"}
        self._step_phases = computing | {
            "exchange": PHASES["exchange"] + sum(computing.values()) * (slowest / slow - 1)
        }
        self._watch, self._clock, self._random = Watch(_STARTED), Clock(), random.Random(rank)
        self._timer = StepTimer(now=self._watch)
        self._emitted = 0
        self._next = {"progress": 0.0, "heartbeat": 0.0, "checkpoint": _STARTED + _CHECKPOINT}

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        return self._timer.seconds

    def run(self, events: int) -> None:
        """Train until this many events are emitted."""
        recorder = Recorder(None, rank=self._rank, listener=self._receive)
        with recording(recorder), measuring(self._timer):
            record("started", pid=1000 + self._rank, host="")
            for name, seconds in (("feed", 2.0), ("join", 0.5), ("set up", 1.5)):
                self._span(name, seconds)
            for step in itertools.count(1):
                if self._emitted >= events - 1:
                    break
                self._step()
                if step % STEPS == 0:
                    self._end_epoch()
            record("finished")

    def _receive(self, event: Event) -> None:
        at, payload = BEGAN + self._watch.now, event.payload
        if event.kind == "step":
            payload = {**payload, "start": at - payload["end"]}
        self._emitted += 1
        self._listener(replace(event, time=at, payload=payload, host=f"worker-{self._rank // 2}", received=at + 0.001))

    def _spend(self, phase: str, seconds: float) -> None:
        enter_phase(phase)
        self._watch.now += seconds * self._random.uniform(1 - _SPREAD, 1 + _SPREAD)

    def _span(self, name: str, seconds: float, **payload: Any) -> None:
        self._watch.now += seconds
        record("span", name=name, start=BEGAN + self._watch.now - seconds, seconds=seconds, **payload)

    def _due(self, kind: str, every: float) -> bool:
        if self._watch.now < self._next[kind]:
            return False
        self._next[kind] = self._watch.now + every
        return True

    def _step(self) -> None:
        for phase in PHASES:
            self._spend(phase, self._step_phases[phase])
        enter_phase("other")
        self._clock.tick(ROWS)
        if self._due("checkpoint", _CHECKPOINT):
            self._spend("checkpoint", 0.05)
            start = BEGAN + self._watch.now
            record("span", name="save checkpoint", start=start, seconds=0.4, thread="sparkdl-saver")
        end_step(clock=self._clock, rows=ROWS, sent=2_000_000)
        if self._due("progress", _PROGRESS):
            rate = ROWS / sum(PHASES.values())
            record("progress", clock=self._clock, epochs=100, steps=STEPS, loss=self._loss(), rows_per_second=rate)
        if self._due("heartbeat", _HEARTBEAT):
            record("heartbeat", clock=self._clock, host="", phase="work")

    def _end_epoch(self) -> None:
        self._spend("validate", 0.8)
        self._clock.end_epoch()
        loss, epoch = self._loss(), self._clock.epoch
        row = {"epoch": epoch, "step": self._clock.step, "samples": self._clock.samples, "loss": loss}
        row |= {"valid_loss": 1.1 * loss, "valid_accuracy": 1 - loss / 3, "seconds": 16.0, "rows_per_second": 8e4}
        self.history.append(row)
        if self._rank == 0:
            record("epoch", clock=self._clock, **row)
        end_step(clock=self._clock, steps=0)

    def _loss(self) -> float:
        return 2.3 * math.exp(-self._clock.step / 6000) * self._random.uniform(0.95, 1.05)


def write_run(directory: str, *, workers: int, events: int) -> None:
    """Write a run's directory as ``fit`` does.

    Args:
        directory: of the run.
        workers: of the gang.
        events: approximate number of all workers' events.
    """
    run = Run(directory)
    with EventLog(run.events, capacity=events + 1_000) as event_log:
        environment = {"python": "3.11", "torch": "2.13", "spark": "4.3"}
        for kind, payload in (("begin", {"environment": environment}), ("attempt", {"size": workers})):
            event_log(Event(kind, -1, 0, BEGAN, None, payload, "driver", BEGAN))
        gang = [SyntheticWorker(rank, event_log, SLOW if rank == workers - 1 else 1.0, SLOW) for rank in range(workers)]
        for worker in gang:
            worker.run(events // workers)
        end = BEGAN + max(sum(worker.phases.values()) for worker in gang) + 20
        event_log(Event("end", -1, 0, end, None, {"error": None}, "driver", end))
        received = event_log.received
    seconds, steps = end - BEGAN, gang[0].history[-1]["step"] if gang[0].history else 0
    run.save("config", {"class": "TorchClassifier", "numWorkers": workers, "batchSize": ROWS * workers})
    run.save("history", gang[0].history)
    hosts = [f"worker-{rank // 2}" for rank in range(workers)]
    figures = {"rows": 1_000_000, "rows_per_second": ROWS * workers * steps / seconds, "bytes": 2_000_000 * steps}
    report = {"seconds": seconds, "restarts": 0, "workers": [workers], "events": received, **figures}
    run.save("report", {**report, **spending([worker.phases for worker in gang], hosts)})


def count(directory: str) -> int:
    """Number of events in a run's directory."""
    from sparkdl.io.files import Folder

    folder = Folder.of(f"{directory}/events")
    return sum(len(folder.read(name).splitlines()) for name in folder.sizes(""))
