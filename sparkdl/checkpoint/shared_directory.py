"""Checks that processes on several hosts share a directory: one writes a file, and the others try to read it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import cached_property

from sparkdl.checkpoint.manifest import SHARD
from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder, absolute

PREFIX = "visible-"


@dataclass(frozen=True)
class SharedDirectory:
    """A directory that all processes should share, and the token that proves it; pickled copies are equal.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI. Hidden in ``repr``, since a URI may hold credentials.
        token: a unique string of letters, digits, ``.``, ``_`` and ``-``; default: a new UUID.

    Raises:
        InvalidInput: the token has other characters.
    """

    directory: str = field(repr=False)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if not SHARD.fullmatch(self.token):
            raise InvalidInput(f"{self.token!r} cannot be a token; expected letters, digits, '.', '_' and '-'.")
        object.__setattr__(self, "directory", absolute(self.directory))

    @cached_property
    def folder(self) -> Folder:
        """The directory, opened once per process."""
        return Folder.of(self.directory)

    def announce(self) -> None:
        """Write the file that the other processes try to read."""
        self.folder.write(self._name, self.token.encode())

    def withdraw(self) -> None:
        """Delete the file, once all have tried."""
        self.folder.delete(self._name)

    def take_over(self) -> None:
        """Write the file, and delete the files of other tokens, left by earlier processes."""
        for name in self.folder.sizes(""):
            if name.startswith(PREFIX) and name != self._name:
                self.folder.delete(name)
        self.announce()

    def sees(self) -> bool:
        """Whether this process sees the file, and so shares the directory."""
        try:
            return self.folder.read(self._name) == self.token.encode()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False

    def check(self, content: str) -> None:
        """Raise InvalidInput if this process does not see the file; ``content`` names the contents in the message."""
        if not self.sees():
            raise InvalidInput(
                f"this host does not share the driver's directory {self.folder.path}, which holds {content}, or "
                "something deleted it; set runDir to a directory that all hosts share, such as hdfs:// or s3://."
            )

    def workers_without_access(self, world: World, key: str) -> list[str]:
        """The workers that do not see the file, by rank and host; all call it together, with a unique ``key``."""
        answers = world.all_gather_json(key, {"sees": self.sees(), "host": world.host})
        return [f"rank {rank} on {answer['host']}" for rank, answer in enumerate(answers) if not answer["sees"]]

    @property
    def _name(self) -> str:
        return PREFIX + self.token
