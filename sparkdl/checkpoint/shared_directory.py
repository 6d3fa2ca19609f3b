"""Whether processes on several hosts see one directory: one leaves a file in it, and the others look for the file."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.checkpoint.manifest import SHARD
from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder

PREFIX = "visible-"


@dataclass(frozen=True)
class SharedDirectory:
    """A directory that should be the same for all processes, and the token by which they tell.

    Attributes:
        folder: the directory.
        token: letters, digits, ``.``, ``_`` and ``-``, unlike any other, such as a UUID.

    Raises:
        InvalidInput: such a token cannot be.
    """

    folder: Folder
    token: str

    def __post_init__(self) -> None:
        if not SHARD.fullmatch(self.token):
            raise InvalidInput(
                f"{self.token!r} cannot be a token; expected letters, digits, '.', '_' and '-', such as a UUID."
            )

    def announce(self) -> None:
        """Leave the file that the other processes look for."""
        self.folder.write(self._name, self.token.encode())

    def withdraw(self) -> None:
        """Delete the file, once all have looked."""
        self.folder.delete(self._name)

    def withdraw_others(self) -> None:
        """Delete the files of other tokens, which earlier processes have left."""
        for name in self.folder.sizes(""):
            if name.startswith(PREFIX) and name != self._name:
                self.folder.delete(name)

    def sees(self) -> bool:
        """Whether this process sees the file, and so the directory of the process that left it."""
        try:
            return self.folder.read(self._name) == self.token.encode()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False

    def check(self, content: str) -> None:
        """Refuse a directory that is not the driver's.

        Args:
            content: says what is kept there, for the message.

        Raises:
            InvalidInput: this process does not see the file.
        """
        if not self.sees():
            raise InvalidInput(
                f"the directory {self.folder.path} is not the driver's on this host, and {content} there; set runDir "
                "to one that all hosts share, such as hdfs:// or s3://."
            )

    def blind_members(self, world: World, key: str) -> list[str]:
        """The members of a gang that do not see the file, by rank and host; all members call it together.

        Args:
            world: the gang.
            key: of the agreement; another one for each call in a gang.
        """
        answers = world.agree(key, {"sees": self.sees(), "host": world.host})
        return [f"rank {rank} on {each['host']}" for rank, each in enumerate(answers) if not each["sees"]]

    @property
    def _name(self) -> str:
        return PREFIX + self.token
