"""Published versions of a model: a folder for each, and a pointer to the one that is in use.

    root/CURRENT                         the name of the version in use, and nothing else
    root/versions/<name>/model/          the model, as pyspark.ml saves it
    root/versions/<name>/version.json    what it is, written last: a version that has it is whole

A version is never changed once it is whole, and CURRENT is replaced in one piece, so whoever reads CURRENT and then the
version that it names has a whole model, however many publish at the time; of two that do, the later one's is in use.
That holds on local disks, HDFS and object stores. It stops where the version is pruned between the two reads, which
takes ``keep`` newer ones in that time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl import files
from sparkdl.errors import InvalidInput
from sparkdl.files import Folder

__all__ = ["Versions"]

CURRENT = "CURRENT"
_FOLDER, _ABOUT, _MODEL = "versions", "version.json", "model"


@dataclass(frozen=True)
class Versions:
    """The versions of a model.

    Attributes:
        root: the folder of them all, a path or URI; it need not exist.
    """

    root: str

    def current(self) -> str | None:
        """The name of the version in use; None before the first is published.

        Raises:
            InvalidInput: CURRENT names a version that is not whole; nobody but a person can have written that.
        """
        try:
            name = files.read(files.join(self.root, CURRENT)).decode().strip()
        except FileNotFoundError:
            return None
        if not self.whole(name):
            raise InvalidInput(
                f"{files.join(self.root, CURRENT)} names the version {name!r}, which is not whole; expected one of "
                f"{', '.join(self.names()) or 'none'}. Write the name of one that is there into it."
            )
        return name

    def model(self, name: str) -> str:
        """Where the model of a version is saved, a path or URI."""
        return files.join(self.root, f"{_FOLDER}/{name}/{_MODEL}")

    def whole(self, name: str) -> bool:
        """Whether a version is there, with all that belongs to it."""
        return bool(name) and files.exists(files.join(self.root, f"{_FOLDER}/{name}/{_ABOUT}"))

    def about(self, name: str) -> dict[str, Any]:
        """What ``complete`` was told of a version, and ``saved``, when that was, in unix seconds.

        Raises:
            FileNotFoundError: there is no such version, or it is not whole.
        """
        found: dict[str, Any] = json.loads(files.read(files.join(self.root, f"{_FOLDER}/{name}/{_ABOUT}")))
        return found

    def complete(self, name: str, about: Mapping[str, Any]) -> None:
        """Say that the version's model is saved in full.

        Args:
            name: of the version.
            about: JSON values by name, to be read by people.
        """
        text = json.dumps({**about, "saved": time.time()}, indent=2) + "\n"
        files.write(files.join(self.root, f"{_FOLDER}/{name}/{_ABOUT}"), text.encode())

    def publish(self, name: str) -> None:
        """Put a version into use.

        Raises:
            InvalidInput: it is not whole.
        """
        if not self.whole(name):
            raise InvalidInput(f"the version {name!r} in {self.root} is not whole; complete() it before.")
        files.write(files.join(self.root, CURRENT), f"{name}\n".encode())

    def names(self) -> list[str]:
        """The whole versions, in the order in which they were completed."""
        found = {}
        for name in self._folder().folders():
            with contextlib.suppress(FileNotFoundError):  # it is not whole, or another run prunes it just now
                found[name] = self.about(name)["saved"]
        return sorted(found, key=lambda name: (found[name], name))

    def prune(self, keep: int) -> list[str]:
        """Delete the oldest versions, never the one in use.

        Args:
            keep: how many of the newest stay, at least 1.

        Returns:
            The names of those that are gone.
        """
        if keep < 1:
            raise InvalidInput(f"keep is {keep}; expected the number of versions that stay, at least 1.")
        current = self.current()
        gone = [name for name in self.names()[:-keep] if name != current]
        for name in gone:
            with contextlib.suppress(FileNotFoundError):  # another run prunes as well
                self._folder().delete(f"{name}/{_ABOUT}")  # first, so that half of a version is never taken for one
                self._folder().delete(name)
        return gone

    def discard(self, name: str) -> None:
        """Delete what is left of a version that will never be whole; one that is whole stays."""
        if not self.whole(name):
            self._folder().delete(name)

    def _folder(self) -> Folder:
        return Folder.of(files.join(self.root, _FOLDER))
