"""The ledger of a date: a file for each finished stage, and the run that does the others.

    root/runs/<date>/attempts/0000.json          the first run began
    root/runs/<date>/<configuration>/etl.json    the result of its first stage, which is finished
    root/runs/<date>/done.json                   the result of the date, which is finished

A stage writes its files under unique names, and last its own file in the ledger, which names them. So nothing refers to
the files of a killed stage, and the next run repeats the stage.

Of two runs of a date the later one takes over. The earlier one notices at the end of its stage, or when it saves a
checkpoint, and ends. Checking and writing are not atomic, so a run may still write after the takeover. Its files are
complete, and of the same rows and the same configuration.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from sparkdl.checkpoint.fencing import Attempts
from sparkdl.cli.exit_codes import Superseded
from sparkdl.errors import Fenced, InvalidInput
from sparkdl.io.files import Folder

_DONE = "done.json"
_ADVICE = "Delete it, and the same command does this part again; --redo does everything again."


@dataclass(frozen=True)
class Ledger:
    """The ledger of a date, opened by one run."""

    folder: Folder
    configuration: str  # its hash; stages of another configuration are ignored
    attempts: Attempts  # the runs that opened it
    number: int  # of this run, from 0

    @staticmethod
    def open(uri: str, configuration: str) -> Ledger:
        """Take over the date with the folder ``uri``.

        Raises:
            Superseded: another run took over at the same time.
        """
        folder = Folder.of(uri)
        attempts = Attempts(folder, "pipeline", uuid.uuid4().hex)
        number = max(attempts.announced(), default=-1) + 1
        with _superseded():  # if another run announces this number first
            attempts.announce(number)
        return Ledger(folder, configuration, attempts, number)

    @staticmethod
    def done(uri: str) -> dict[str, Any] | None:
        """The result of a finished date; None if it is unfinished. Raises InvalidInput if the file is damaged."""
        return _read(Folder.of(uri), _DONE, version=str, configuration=str, metrics=dict, passed=bool, published=bool)

    @property
    def run(self) -> str:
        """A name that no other run has, even with the same number."""
        return f"{self.number:04d}-{self.attempts.writer[:8]}"

    def stage(
        self, name: str, work: Callable[[], dict[str, Any]], stands: Callable[[dict[str, Any]], bool] | None = None
    ) -> dict[str, Any]:
        """Return the result of a stage, from an earlier run or by doing it now; its files may be deleted meanwhile.

        Args:
            name: of the stage.
            work: does it, and returns JSON values by name.
            stands: whether an earlier result is valid; default: always.

        Raises:
            Superseded: a later run took over.
            InvalidInput: the file of an earlier result is damaged.
        """
        result = self.result(name)
        try:
            valid = result is not None and (stands is None or stands(result))
        except (AttributeError, KeyError, TypeError) as error:
            path = self.folder.at(self._file(name))
            raise InvalidInput(f"{path} is damaged ({type(error).__name__}: {error}). {_ADVICE}") from error
        if result is None or not valid:
            self.check()
            result = work()
            self._write(self._file(name), result)
        return result

    def result(self, name: str) -> dict[str, Any] | None:
        """The result of a stage; None if it is unfinished."""
        return _read(self.folder, self._file(name))

    def noted(self, name: str) -> bool:
        """Whether a stage is finished."""
        return self.folder.exists(self._file(name))

    def forget(self, name: str) -> None:
        """Make the next run repeat a stage; raises as ``stage`` does."""
        self.check()
        self.folder.delete(self._file(name))

    def restart(self) -> None:
        """Forget all finished stages and the result, so that this run does everything again; raises as ``stage``."""
        self.check()
        self.folder.delete(self.configuration)
        self.folder.delete(_DONE)  # last: a killed restart begins again

    def close(self, result: dict[str, Any]) -> None:
        """Record that the date is finished; raises as ``stage`` does."""
        self._write(_DONE, result)

    def _file(self, stage: str) -> str:
        return f"{self.configuration}/{stage}.json"

    def _write(self, name: str, result: dict[str, Any]) -> None:
        self.check()
        self.folder.write(name, (json.dumps(result, indent=2) + "\n").encode())

    def check(self) -> None:
        """Raise Superseded if a later run took over, and Fenced if the date's folder is gone."""
        with _superseded() if self.attempts.announced() else nullcontext():
            self.attempts.check(self.number)


@contextmanager
def _superseded() -> Iterator[None]:
    try:
        yield
    except Fenced as error:
        raise Superseded(f"another run of this date has taken over: {error}") from error


def _read(folder: Folder, name: str, **fields: type) -> dict[str, Any] | None:
    with suppress(FileNotFoundError):
        return folder.read_json(name, _ADVICE, **fields)
    return None
