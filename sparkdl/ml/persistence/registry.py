"""Published versions of a model: a folder for each, and a pointer to the one that is in use.

    root/CURRENT                         the name of the version in use, and nothing else
    root/versions/<name>/model/          the model, as pyspark.ml saves it
    root/versions/<name>/version.json    what it is, written last: a version that has it is whole
    root/versions/<name>/fate.json       whether it was published or refused, and when; none before that is decided

The model of a version is never changed once it is whole, and CURRENT is replaced in one piece, so whoever reads CURRENT
and then the version that it names has a whole model, however many publish at the time; of two that do, the later one's
is in use. On HDFS CURRENT is deleted and then renamed to, since Arrow's file system has no other way: ``current()``
then takes the version that was published last. It stops where the version is pruned between the two reads, which takes
``keep`` newer ones in that time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.files import Folder

__all__ = ["Versions"]

CURRENT = "CURRENT"
_FOLDER, _ABOUT, _FATE, _MODEL = "versions", "version.json", "fate.json", "model"
_PUBLISHED, _REFUSED = "published", "refused"


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
        name = self._pointed()
        while name is not None and not self.whole(name):
            before, name = name, self._pointed()
            if name == before:  # else another was published, and this one pruned, after it was read
                raise InvalidInput(
                    f"{files.join(self.root, CURRENT)} names the version {name!r}, which is not whole; expected one of "
                    f"{', '.join(self.names()) or 'none'}. Write the name of one that is there into it."
                )
        return name

    def _pointed(self) -> str | None:
        try:
            return files.read(files.join(self.root, CURRENT)).decode().strip()
        except FileNotFoundError:
            return next(reversed(self._decided(_PUBLISHED)), None)

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
        self._decide(name, _PUBLISHED)  # first: nobody prunes what was published last
        files.write(files.join(self.root, CURRENT), f"{name}\n".encode())

    def refuse(self, name: str) -> None:
        """Say that a version is not put into use; it may be published all the same, by a person."""
        self._decide(name, _REFUSED)

    def _decide(self, name: str, fate: str) -> None:
        text = json.dumps({"fate": fate, "at": time.time()}) + "\n"
        files.write(files.join(self.root, f"{_FOLDER}/{name}/{_FATE}"), text.encode())

    def _decided(self, fate: str) -> list[str]:
        """The whole versions of a fate, in the order in which it was decided."""
        found = {}
        for name in self._folder().folders():
            with contextlib.suppress(FileNotFoundError):
                told = json.loads(files.read(files.join(self.root, f"{_FOLDER}/{name}/{_FATE}")))
                if told["fate"] == fate and self.whole(name):
                    found[name] = told["at"]
        return sorted(found, key=lambda name: (found[name], name))

    def names(self) -> list[str]:
        """The whole versions, in the order in which they were completed."""
        found = {}
        for name in self._folder().folders():
            with contextlib.suppress(FileNotFoundError):  # it is not whole, or another run prunes it just now
                found[name] = self.about(name)["saved"]
        return sorted(found, key=lambda name: (found[name], name))

    def prune(self, keep: int) -> list[str]:
        """Delete the oldest versions, never the one in use, nor one that was neither published nor refused.

        Args:
            keep: how many stay of those that were published last, and as many that were refused last; at least 1.

        Returns:
            The names of those that are gone.
        """
        if keep < 1:
            raise InvalidInput(f"keep is {keep}; expected the number of versions that stay, at least 1.")
        gone = []
        for name in (*self._decided(_PUBLISHED)[:-keep], *self._decided(_REFUSED)[:-keep]):
            if name == self.current():  # which others may change at any time
                continue
            with contextlib.suppress(FileNotFoundError):  # another run prunes as well
                self._folder().delete(f"{name}/{_ABOUT}")  # first, so that half of a version is never taken for one
                self._folder().delete(name)
                gone.append(name)
        return gone

    def discard(self, prefix: str) -> None:
        """Delete what is left of versions whose names begin so and that will never be whole; whole ones stay."""
        for name in self._folder().folders():
            if name.startswith(prefix) and not self.whole(name):
                self._folder().delete(name)

    def _folder(self) -> Folder:
        return Folder.of(files.join(self.root, _FOLDER))
