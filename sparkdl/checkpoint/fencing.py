"""Which attempt of a run may commit.

    attempts/0002.json      attempt 2 has begun: the run, and who announced it
    attempts/0002.stop      attempt 2 is asked to save and to stop

Whoever starts an attempt announces it first: ``fence(n)``. Rank 0 of an older attempt (a zombie: a
process that was stopped, or cut off, and wakes up) looks for newer announcements before it commits and before it
prunes, and raises ``Fenced``. No filesystem here can make "look, then write" one step. What holds on all of them:

- A zombie whose check comes after the announcement commits nothing.
- One that had checked already may finish that one commit, late. It is a state that all members of its attempt agreed
  on, complete and of the same run, so it is valid and is kept as such; but checkpoints are ordered by (attempt, epoch,
  step), never by step alone: once the new attempt commits, its checkpoints are the newest however far the zombie had
  come. Until then a third attempt may restore the late one: nothing of the second was committed, so nothing is undone.
- All members of an attempt restore the same checkpoint, because one picks and tells the others (``latest`` on rank 0,
  ``open`` on all), so a commit that appears between two looks splits no gang.
- A commit prunes only what is older than itself in that order: a zombie never deletes what a newer attempt wrote. With
  ``keep`` >= 2 one late commit never prunes the newest checkpoint before it, which the new attempt may be reading.
  Shards of older attempts that were never committed are pruned under the zombie, and its manifest is then damaged.
- Two drivers that announce the same attempt: the second is refused, or, if both were as quick, the one whose
  announcement was overwritten is ``Fenced`` at its first commit.

A request to stop is of one attempt, whose number is not used again: later attempts do not heed it, and nobody need
delete it.

This asks of the filesystem that a finished write is seen by every later read and listing. Local disks, HDFS, S3 and
GCS keep that; NFS with attribute caching shows news to other hosts late (typically within 60 s), which lengthens the
time in which a zombie may commit and changes nothing else.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import Fenced, InvalidInput
from sparkdl.io.files import Folder

ATTEMPTS = "attempts"


@dataclass(frozen=True)
class Attempts:
    """The announcements of a run's attempts.

    Attributes:
        folder: the checkpoints' directory.
        run: the run's identity.
        writer: who announces here; unlike any other.
    """

    folder: Folder
    run: str
    writer: str

    def announced(self) -> list[int]:
        """The attempts that have begun, in order."""
        return self._numbers("json")

    def known(self) -> list[int]:
        """The attempts that have begun or were asked to stop, in order; the same number may be there twice."""
        return self._numbers("json|stop")

    def ask_to_stop(self, attempt: int) -> None:
        """Ask an attempt to stop, as ``Checkpoints.ask_to_stop`` does."""
        self.folder.write(_path(attempt, "stop"), b"")

    def asked_to_stop(self, attempt: int) -> bool:
        """Whether an attempt has been asked to stop."""
        return self.folder.exists(_path(attempt, "stop"))

    def announce(self, attempt: int) -> None:
        """Begin an attempt, as ``Checkpoints.fence`` does."""
        newest = max(self.announced(), default=-1)
        if newest >= attempt:
            self.check(attempt)
            return
        self.check_owner()
        who = {"run": self.run, "attempt": attempt, "writer": self.writer, "host": socket.gethostname()}
        self.folder.write(_path(attempt), (json.dumps({**who, "pid": os.getpid()}) + "\n").encode())

    def check(self, attempt: int) -> None:
        """Whether an attempt of this writer may commit.

        Raises:
            Fenced: it may not: there is a newer one, or another writer has announced it, or nobody has.
            InvalidInput: the directory belongs to another run.
        """
        newest = max(self.announced(), default=-1)
        if newest < attempt:
            raise Fenced(
                f"attempt {attempt} was not announced in {self.folder.path}, or its announcement was deleted; call "
                f"fence({attempt}) before the attempt starts."
            )
        who = self._read(newest)
        if newest > attempt or who.get("writer") != self.writer:
            raise Fenced(
                f"attempt {attempt} may not commit to {self.folder.path}: attempt {newest} was announced by process "
                f"{who.get('pid')} on {who.get('host')}. Stop this one; for another fit, wait until that has ended."
            )

    def check_owner(self) -> None:
        """Check the run of the newest attempt that was announced.

        Raises:
            InvalidInput: it is another run.
        """
        for newest in self.announced()[-1:]:
            self._read(newest)

    def check_run(self, run: str) -> None:
        """Whether what was found belongs to this run.

        Raises:
            InvalidInput: it does not.
        """
        if run != self.run:
            raise InvalidInput(
                f"{self.folder.path} belongs to the run {run!r}, and this is the run {self.run!r}: its configuration "
                "or its data differ. Take another runDir for this run, or delete that one."
            )

    def _numbers(self, endings: str) -> list[int]:
        found = (re.fullmatch(rf"(\d{{4,}})\.(?:{endings})", name) for name in self.folder.sizes(ATTEMPTS))
        return sorted(int(match[1]) for match in found if match)

    def _read(self, attempt: int) -> dict[str, Any]:
        path = _path(attempt)
        try:
            values: dict[str, Any] = json.loads(self.folder.read(path))
            run = str(values["run"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(
                f"{self.folder.at(path)} is not an attempt's announcement ({error}); delete it, or take another runDir."
            ) from error
        self.check_run(run)
        return values


def _path(attempt: int, ending: str = "json") -> str:
    return f"{ATTEMPTS}/{attempt:04d}.{ending}"
