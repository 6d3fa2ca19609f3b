"""The directory of a run, and its checkpoints.

runDir/config.json      the resolved configuration
runDir/history.json     a row per epoch
runDir/report.json      seconds, rows, bytes, skew
runDir/events/          events of the workers and the driver, as JSON lines
runDir/tb/              TensorBoard's event files, with that tracker
runDir/weights-*.safetensors  weights of more than 256 MiB, or that no query of Spark Connect carries; the fit's models
                        need the file until they are saved, and no fit deletes it
runDir/parts-*/         the workers' parts of weights of more than 256 MiB, until the driver has merged them
runDir/checkpoints/     the trainer states, see ``sparkdl.checkpoint``; identity.json describes the Params they need
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.weights import fits
from sparkdl.io.weights_file import Weights, WeightsFile
from sparkdl.spark.session import session_of
from sparkdl.training.objective.module_factory import ModelFactory

IDENTITY = "checkpoints/identity"
"""The file of the descriptions in a run's directory, for ``Run.save``."""

_LONGEST = 100  # characters of a value in a message
_MISSING = object()


def identity(descriptions: Mapping[str, Any]) -> str:
    """Hash the descriptions of the Params that a run depends on to 16 hexadecimal digits, see ``Scope.RUN``.

    ``callbacks``, which earlier versions did not describe, are compared by ``differences`` alone.
    """
    hashed = {name: value for name, value in descriptions.items() if name != "callbacks"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield a clause with both values for each description that differs; ``above`` is the prefix of nested names."""
    for name in sorted({*before, *now}):
        old, new = (values.get(name, _MISSING) for values in (before, now))
        if name == "callbacks" and old is _MISSING:
            if new != "[]":
                warnings.warn(f"an earlier version began this run and did not record {new}; expected it.", stacklevel=3)
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{above}{name}.")
        elif old != new:
            yield f"{above}{name} was {_short(old)} and is {_short(new)}"


def _short(value: Any) -> str:
    """Cut the middle out of a long value: a description ends with its hash."""
    text, half = "not there" if value is _MISSING else repr(value), _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}...{text[-half:]}"


@dataclass(frozen=True)
class Run:
    """The files of one run.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI; None saves nothing.
    """

    directory: str | None = None

    @property
    def events(self) -> str | None:
        """The folder of events, a path or URI; None without a directory."""
        if self.directory is None:
            return None
        return files.join(files.local_path(self.directory) or self.directory, "events")

    def load(self, name: str) -> Any:
        """Read ``<directory>/<name>.json``; None if it is missing or damaged."""
        path = None if self.directory is None else files.join(self.directory, f"{name}.json")
        try:
            return None if path is None or not files.exists(path) else json.loads(files.read(path))
        except ValueError:
            return None

    def save(self, name: str, values: Mapping[str, Any] | list[Any]) -> None:
        """Write ``<directory>/<name>.json`` atomically; does nothing without a directory."""
        if self.directory is not None:
            text = json.dumps(values, indent=2, default=str) + "\n"
            files.write(files.join(self.directory, f"{name}.json"), text.encode())

    def keep(self, weights: Weights, factory: ModelFactory | nn.Module, session: SparkSession) -> Weights:
        """The weights of a model, written to the directory if no query of the session carries factory and weights."""
        limit = session_of(session).query_limit()
        if limit is None or self.directory is None or isinstance(weights, WeightsFile):
            return weights
        if fits(len(weights) + len(cloudpickle.dumps(factory)), limit):  # a module is pickled with its own weights
            return weights
        name = f"weights-{hashlib.sha256(weights).hexdigest()[:16]}.safetensors"
        return WeightsFile.once(files.join(files.absolute(self.directory), name), len(weights), [weights])


def previous_workers(run: Run) -> int | None:
    """The workers, or shards, of the newest checkpoint in a run's directory; None without one."""
    return None if run.directory is None else _checkpoints(run, {}).world_size()


def _checkpoints(run: Run, descriptions: Mapping[str, Any]) -> Checkpoints:
    return Checkpoints(files.join(str(run.directory), "checkpoints"), run=identity(descriptions))


def own_checkpoints(run: Run, descriptions: Mapping[str, Any]) -> Checkpoints:
    """Open the checkpoints in a run's directory; raise ``InvalidInput`` with the differences if another run's."""
    checkpoints, before = _checkpoints(run, descriptions), run.load(IDENTITY)
    clauses = "; ".join(differences(before, descriptions)) if isinstance(before, dict) else ""
    try:
        checkpoints.attempts.check_owner()
        newest = checkpoints.latest(verify=False)
        if clauses and checkpoints.next_attempt():
            raise InvalidInput(f"{checkpoints.folder.path} belongs to the run of other callbacks; take another runDir.")
    except InvalidInput as error:
        raise InvalidInput(f"{error.message} These differ: {clauses}." if clauses else error.message) from error
    earlier = 0.0 if newest is None else newest[1].manifest.extra.get("seconds", 0.0)
    return replace(checkpoints, began=checkpoints.began - earlier)


def ask_older_attempt_to_stop(run: Run, descriptions: Mapping[str, Any]) -> None:
    """Ask the newest attempt of a run to save and stop: it may hold the slots that the next fit needs.

    Over Spark Connect, the gang of a dead client trains on. An attempt of another run, which ``own_checkpoints``
    refuses, is not asked.
    """
    if run.load(IDENTITY) == descriptions:
        attempts = _checkpoints(run, descriptions).attempts
        for newest in attempts.announced()[-1:]:
            attempts.ask_to_stop(newest)
