"""What parts keep for themselves from round to round, as files that all tasks see.

    <directory>/round-000012/part-00003-<random>

A task writes a name of its own each time it runs, and the name counts once the round that it was written in is saved.
So neither a task that runs twice nor a driver that runs a round again changes what another one reads.
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
class Memories:
    """The memories of a run's parts. Copies of one object, pickled ones too, are the same.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI of their own; not shown, for a URI may hold credentials.
        token: by which tasks know that the directory they see is the driver's.
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

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: a filesystem is looked up anew where the copy arrives."""
        return {"directory": self.directory, "token": self.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the fields."""
        self.__dict__.update(state)

    def open(self) -> None:
        """Leave the token for the tasks, and take away those of drivers before; on the driver."""
        self._shared.withdraw_others()
        self._shared.announce()

    def close(self) -> None:
        """Take the token away."""
        self._shared.withdraw()

    def read(self, name: str) -> Any:
        """The memory that was written under a name.

        Raises:
            InvalidInput: this host sees another directory than the driver.
        """
        self._shared.check("parts keep their memories")
        return unpack_state(self._folder.read(name))

    def write(self, number: int, part: int, memory: Any) -> str:
        """Write a part's memory of a round.

        Returns:
            The name to read it by.

        Raises:
            InvalidInput: this host sees another directory than the driver.
        """
        self._shared.check("parts keep their memories")
        name = f"{_round(number)}/part-{part:05d}-{uuid.uuid4().hex}"
        self._folder.write(name, *pack_pieces(memory))
        return name

    def forget(self, number: int) -> None:
        """Delete what was written in a round, whether it counted or not."""
        self._folder.delete(_round(number))


def _round(number: int) -> str:
    return f"round-{number:06d}"
