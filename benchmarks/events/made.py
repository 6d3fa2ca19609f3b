"""The directory of a run that nobody ran, with as many events as one is wanted to have.

Members' events come from the code that makes them in a run (``StepTimer``, ``record``, ``span``), only by a clock that
is set by hand, and an ``EventLog`` writes them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sparkdl.ml.run import Run
from sparkdl.telemetry.bottlenecks import spending
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import record, recording
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.recorder import Recorder
from sparkdl.telemetry.step_timer import StepTimer, end_step, enter_phase, measuring

BEGAN = 1_800_000_000.0
ROWS = 256  # of a step, on each member
PHASES = {"feed": 0.001, "forward": 0.006, "backward": 0.012, "exchange": 0.004, "update": 0.002}  # seconds of a step
SLOW = 1.4  # times as long as the others the last member takes
STEPS = 600  # of an epoch

_STARTED = 8.0  # seconds until members have started
_PROGRESS, _HEARTBEAT, _CHECKPOINT = 0.25, 10.0, 30.0  # seconds between two of them
_SPREAD = 0.2  # of the seconds of a step


@dataclass
class Watch:
    """A clock that is set by hand.

    Attributes:
        now: seconds.
    """

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Member:
    """One rank of the run, whose events go to a listener.

    Args:
        rank: of the member.
        listener: called with its events.
        slow: how many times longer than that of others its computing takes; the others wait for the slowest.
        slowest: the same of the slowest.
    """

    def __init__(self, rank: int, listener: Callable[[Event], None], slow: float = 1.0, slowest: float = 1.0) -> None:
        self.history: list[dict[str, Any]] = []
        self._rank, self._listener = rank, listener
        computing = {phase: seconds * slow for phase, seconds in PHASES.items() if phase != "exchange"}
        self._step_phases = computing | {
            "exchange": PHASES["exchange"] + sum(computing.values()) * (slowest / slow - 1)
        }
        self._watch, self._clock, self._random = Watch(_STARTED), Clock(), random.Random(rank)
        self._laps = StepTimer(now=self._watch)
        self._told = 0
        self._next = {"progress": 0.0, "heartbeat": 0.0, "checkpoint": _STARTED + _CHECKPOINT}

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        return self._laps.seconds

    def run(self, events: int) -> None:
        """Train until so many events are told."""
        recorder = Recorder(None, rank=self._rank, listener=self._hear)
        with recording(recorder), measuring(self._laps):
            record("started", pid=1000 + self._rank, host="")
            for name, seconds in (("feed", 2.0), ("join", 0.5), ("set up", 1.5)):
                self._span(name, seconds)
            for step in itertools.count(1):
                if self._told >= events - 1:
                    break
                self._step()
                if step % STEPS == 0:
                    self._end_epoch()
            record("finished")

    def _hear(self, event: Event) -> None:
        at, payload = BEGAN + self._watch.now, event.payload
        if event.kind == "step":
            payload = {**payload, "start": at - payload["end"]}
        self._told += 1
        self._listener(replace(event, time=at, payload=payload, host=f"worker-{self._rank // 2}", received=at + 0.001))

    def _spend(self, phase: str, seconds: float) -> None:
        enter_phase(phase)
        self._watch.now += seconds * self._random.uniform(1 - _SPREAD, 1 + _SPREAD)

    def _span(self, name: str, seconds: float, **told: Any) -> None:
        self._watch.now += seconds
        record("span", name=name, start=BEGAN + self._watch.now - seconds, seconds=seconds, **told)

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
            told = {"thread": "sparkdl-saver"}
            record("span", name="save checkpoint", start=BEGAN + self._watch.now, seconds=0.4, **told)
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


def write_run(directory: str, *, members: int, events: int) -> None:
    """Write a run's directory, as a fit leaves it behind.

    Args:
        directory: of the run.
        members: of the gang.
        events: of all members together, about.
    """
    run = Run(directory)
    with EventLog(run.events, capacity=events + 1_000) as logbook:
        environment = {"python": "3.11", "torch": "2.13", "spark": "4.3"}
        for kind, payload in (("begin", {"environment": environment}), ("attempt", {"size": members})):
            logbook(Event(kind, -1, 0, BEGAN, None, payload, "driver", BEGAN))
        gang = [Member(rank, logbook, SLOW if rank == members - 1 else 1.0, SLOW) for rank in range(members)]
        for member in gang:
            member.run(events // members)
        end = BEGAN + max(sum(member.phases.values()) for member in gang) + 20
        logbook(Event("end", -1, 0, end, None, {"error": None}, "driver", end))
        told = logbook.received
    seconds, steps = end - BEGAN, gang[0].history[-1]["step"] if gang[0].history else 0
    run.save("config", {"class": "TorchClassifier", "numWorkers": members, "batchSize": ROWS * members})
    run.save("history", gang[0].history)
    hosts = [f"worker-{rank // 2}" for rank in range(members)]
    figures = {"rows": 1_000_000, "rows_per_second": ROWS * members * steps / seconds, "bytes": 2_000_000 * steps}
    report = {"seconds": seconds, "restarts": 0, "workers": [members], "events": told, **figures}
    run.save("report", {**report, **spending([member.phases for member in gang], hosts)})


def count(directory: str) -> int:
    """Lines of events that a run's directory has."""
    from sparkdl.io.files import Folder

    folder = Folder.of(f"{directory}/events")
    return sum(len(folder.read(name).splitlines()) for name in folder.sizes(""))
