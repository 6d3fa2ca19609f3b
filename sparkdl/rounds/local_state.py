"""Local state of shards between rounds, as files that all tasks can read.

    <directory>/round-000012/shard-00003-<random>

Each run of a task writes a file of its own name. The name counts once its round is saved, so repeated tasks and
repeated rounds never change the files of others.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.io.files import Folder, absolute
from sparkdl.io.serialization import pack_pieces, unpack_state


@dataclass(frozen=True)
class LocalState:
    """The local states of a run; copies of it, pickled ones included, are equivalent.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI, for this run alone; not in the repr: it may hold credentials.
        token: identifies the directory, so that tasks can check that they see the driver's.
    """

    directory: str = field(repr=False)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", absolute(self.directory))

    @cached_property
    def _folder(self) -> Folder:
        return Folder.of(self.directory)

    @property
    def _shared(self) -> SharedDirectory:
        return SharedDirectory(self._folder, self.token)

    def open(self) -> None:
        """Write the token for the tasks and delete tokens of earlier drivers; for the driver."""
        self._shared.take_over()

    def close(self) -> None:
        """Delete the token."""
        self._shared.withdraw()

    def read(self, name: str) -> Any:
        """Read the local state of this name.

        Raises:
            InvalidInput: this host sees another directory than the driver.
        """
        self._shared.check("the local states of shards")
        return unpack_state(self._folder.read(name))

    def write(self, number: int, shard: int, memory: Any) -> str:
        """Write a shard's local state of a round; return its name for ``read``.

        Raises:
            InvalidInput: this host sees another directory than the driver.
        """
        self._shared.check("the local states of shards")
        name = f"{_round(number)}/shard-{shard:05d}-{uuid.uuid4().hex}"
        self._folder.write(name, *pack_pieces(memory))
        return name

    def forget(self, number: int) -> None:
        """Delete all files of a round."""
        self._folder.delete(_round(number))


def _round(number: int) -> str:
    return f"round-{number:06d}"
