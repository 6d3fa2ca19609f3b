"""Local state of shards between rounds, as files that all tasks can read.

    <directory>/round-000012/shard-00003-<random>

Each run of a task writes a file of its own name. The name counts once its round is saved, so repeated tasks and
repeated rounds never change the files of others.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.io.serialization import pack_pieces, unpack_state


@dataclass(frozen=True)
class LocalState(SharedDirectory):
    """The local states of a run; the directory is for this run alone.

    ``read`` and ``write`` raise InvalidInput if this host sees another directory than the driver.
    """

    def read(self, name: str) -> Any:
        """Read the local state of this name."""
        self.check("the local states of shards")
        return unpack_state(self.folder.read(name))

    def write(self, number: int, shard: int, memory: Any) -> str:
        """Write a shard's local state of a round; return its name for ``read``."""
        self.check("the local states of shards")
        name = f"{_round(number)}/shard-{shard:05d}-{uuid.uuid4().hex}"
        self.folder.write(name, *pack_pieces(memory))
        return name

    def forget(self, number: int) -> None:
        """Delete all files of a round."""
        self.folder.delete(_round(number))


def _round(number: int) -> str:
    return f"round-{number:06d}"
