"""Fencing: which attempt of a run may commit.

    attempts/0002.json      attempt 2 has started: the run, and the announcing process
    attempts/0002.stop      attempt 2 is asked to save and stop, by its driver or by the next fit

The driver announces an attempt before it starts: ``fence(n)``. Rank 0 of an older attempt may be a zombie: stopped or
cut off, then awake again. It checks for newer announcements before it commits and before it prunes, and raises
``Fenced``. No filesystem here can check and write atomically. These rules hold on all of them:

- A zombie that checks after the announcement commits nothing. If it checked before, it may finish that one commit late.
  The late checkpoint is valid and of the same run. Names sort by (attempt, epoch, step), so the new attempt's first
  commit is newer. Until then a third attempt may restore the late one: the second attempt committed nothing to undo.
- Rank 0 calls ``latest`` and broadcasts the name, so a commit between two listings cannot split a gang.
- A commit prunes only older checkpoints, so a zombie deletes nothing of a newer attempt. With ``keep`` >= 2 one late
  commit never prunes its predecessor, which the new attempt may be reading. A new attempt may prune uncommitted shards
  of a zombie, whose manifest is then damaged.
- If two drivers announce one attempt, the second fails; if both write at once, the overwritten one is ``Fenced`` at its
  first commit.

A stop request names one attempt, and attempt numbers are unique. Later attempts ignore it, so it need not be deleted.

NFS with attribute caching shows a finished write late, typically within 60 s, in which a zombie may commit.
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
    """The announcements of a run's attempts; ``writer`` is the unique id of the announcing process."""

    folder: Folder
    run: str
    writer: str

    def announced(self, endings: str = "json") -> list[int]:
        """Numbers of the attempts with a file of these endings, in order; by default the started attempts."""
        matches = (re.fullmatch(rf"(\d{{4,}})\.(?:{endings})", name) for name in self.folder.sizes(ATTEMPTS))
        return sorted(int(match[1]) for match in matches if match)

    def ask_to_stop(self, attempt: int) -> None:
        """Ask the workers of an attempt to save and stop; later attempts ignore it.

        It writes a small file: workers and driver share the directory even if they cannot reach each other.
        """
        self.folder.write(_path(attempt, "stop"), b"")

    def asked_to_stop(self, attempt: int) -> bool:
        """Whether any process called ``ask_to_stop`` for this attempt."""
        return self.folder.exists(_path(attempt, "stop"))

    def announce(self, attempt: int) -> None:
        """Announce an attempt; see ``Checkpoints.fence``."""
        if max(self.announced(), default=-1) >= attempt:
            self.check(attempt)
            return
        self.check_owner()
        who = {"run": self.run, "attempt": attempt, "writer": self.writer, "host": socket.gethostname()}
        self.folder.write(_path(attempt), (json.dumps({**who, "pid": os.getpid()}) + "\n").encode())

    def check(self, attempt: int) -> None:
        """Raise Fenced if this writer's attempt may not commit: a newer one exists, or another writer's, or none.

        Raises InvalidInput if the directory belongs to another run.
        """
        newest = max(self.announced(), default=-1)
        if newest < attempt:
            raise Fenced(
                f"{self.folder.path} has no announcement of attempt {attempt}: something deleted or replaced the "
                f"directory during the run, or fence({attempt}) was not called. Call fit again, with a directory that "
                "nothing deletes."
            )
        who = self._read(newest)
        if newest > attempt or who.get("writer") != self.writer:
            raise Fenced(
                f"attempt {attempt} may not commit to {self.folder.path}: process {who.get('pid')} on "
                f"{who.get('host')} announced attempt {newest}. If that is another fit, wait until it ends; otherwise "
                "stop this one."
            )

    def check_owner(self) -> None:
        """Raise InvalidInput if the newest announced attempt belongs to another run."""
        for newest in self.announced()[-1:]:
            self._read(newest)

    def check_run(self, run: str) -> None:
        """Raise InvalidInput if ``run`` is another run."""
        if run != self.run:
            raise InvalidInput(
                f"{self.folder.path} belongs to the run {run!r}, not to the run {self.run!r}, which has another "
                "configuration or other data. Take another runDir, or delete this one."
            )

    def _read(self, attempt: int) -> dict[str, Any]:
        values = self.folder.read_json(_path(attempt), "Delete it, or take another runDir.", run=str)
        self.check_run(values["run"])
        return values


def _path(attempt: int, ending: str = "json") -> str:
    return f"{ATTEMPTS}/{attempt:04d}.{ending}"
