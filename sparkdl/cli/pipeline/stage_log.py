"""The ledger of a date: a file for each finished stage, and the run that works on the others.

    root/runs/<date>/attempts/0000.json          the first run began
    root/runs/<date>/<configuration>/etl.json    the result of its first stage, which is finished
    root/runs/<date>/done.json                   the result of the date, which is finished

A stage writes its files under names that nobody else uses, and in the end its own file in the ledger, which names them.
So a stage that was killed leaves files that nothing refers to, and the next run does that stage again.

Two runs of a date: the later one takes over, as the driver does that is started again while the first one still hangs
somewhere. The earlier one notices at the end of its stage, or when it saves a checkpoint, and ends. No filesystem here
can make "look, then write" one step: a run may look, be taken over, and write. What it writes is as whole as what the
later one writes, of the same rows and the same configuration.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.checkpoint.fencing import Attempts
from sparkdl.cli.exit_codes import Superseded
from sparkdl.errors import Fenced
from sparkdl.io.files import Folder

DONE = "done"


@dataclass(frozen=True)
class Ledger:
    """The ledger of a date, opened by one run.

    Attributes:
        folder: of the date.
        configuration: the hash of the configuration; stages of another configuration do not count.
        attempts: the runs that have opened it.
        number: of this run, from 0.
    """

    folder: Folder
    configuration: str
    attempts: Attempts
    number: int

    @staticmethod
    def open(uri: str, configuration: str) -> Ledger:
        """Take over a date.

        Args:
            uri: the date's folder, a path or URI.
            configuration: the hash of the configuration.

        Raises:
            Superseded: another run has taken it over in the same moment.
        """
        folder = Folder.of(uri)
        attempts = Attempts(folder, "pipeline", uuid.uuid4().hex)
        number = max(attempts.announced(), default=-1) + 1
        try:
            attempts.announce(number)
        except Fenced as error:  # another run has come in between
            raise Superseded(f"another run of this date has taken over: {error}") from error
        return Ledger(folder, configuration, attempts, number)

    @staticmethod
    def done(uri: str) -> dict[str, Any] | None:
        """The result of a date, if it is finished."""
        return _read(Folder.of(uri), f"{DONE}.json")

    @property
    def own(self) -> str:
        """A name that no other run has, not even one that has taken the same number in the same moment."""
        return f"{self.number:04d}-{self.attempts.writer[:8]}"

    def stage(
        self, name: str, work: Callable[[], dict[str, Any]], stands: Callable[[dict[str, Any]], bool] | None = None
    ) -> dict[str, Any]:
        """The result of a stage: of an earlier run that finished it, or of this one.

        Args:
            name: of the stage.
            work: does it, and returns JSON values by name.
            stands: whether an earlier result still holds, since its files may be gone; default: it always does.

        Raises:
            Superseded: a later run has taken over.
        """
        found = _read(self.folder, f"{self.configuration}/{name}.json")
        if found is not None and (stands is None or stands(found)):
            return found
        self.check()
        return self.note(name, work())

    def noted(self, name: str) -> bool:
        """Whether a stage is over."""
        return self.folder.exists(f"{self.configuration}/{name}.json")

    def forget(self, name: str) -> None:
        """Have a stage done again by the next run; raises what ``stage`` raises."""
        self.check()
        self.folder.delete(f"{self.configuration}/{name}.json")

    def note(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        """Write down that a stage is over; raises what ``stage`` raises."""
        self.check()
        self.folder.write(f"{self.configuration}/{name}.json", _text(found))
        return found

    def close(self, found: dict[str, Any]) -> None:
        """Write down that nothing is left to be done; raises what ``stage`` raises."""
        self.check()
        self.folder.write(f"{DONE}.json", _text(found))

    def check(self) -> None:
        """Check that this run is the latest of its date.

        Raises:
            Superseded: it is not.
        """
        try:
            self.attempts.check(self.number)
        except Fenced as error:
            raise Superseded(f"another run of this date has taken over: {error}") from error


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(folder.read(name))
    except FileNotFoundError:
        return None
    return found


def _text(found: dict[str, Any]) -> bytes:
    return (json.dumps(found, indent=2) + "\n").encode()
