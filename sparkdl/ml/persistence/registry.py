"""Published versions of a model, with a pointer to the version in use.

    root/CURRENT                         the name of the version in use
    root/versions/<name>/model/          the model, as pyspark.ml saves it
    root/versions/<name>/version.json    its description, written last: a version that has it is complete
    root/versions/<name>/fate.json       whether and when it was published or rejected; missing before that

A complete version never changes, and CURRENT is replaced atomically. So a reader of CURRENT always finds a complete
model, however many processes publish. Of two that publish at once, the later one's version is in use.

HDFS has no atomic replacement in Arrow: CURRENT is deleted, then renamed to. In between, ``current()`` returns the
version published last. A reader fails only if ``keep`` newer versions are published between its two reads.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.fields import CheckedFields
from sparkdl.io.files import Folder

CURRENT = "CURRENT"
_FOLDER, _ABOUT, _FATE, _MODEL = "versions", "version.json", "fate.json", "model"
_PUBLISHED, _REJECTED = "published", "refused"
_FIELDS: dict[str, dict[str, Any]] = {_ABOUT: {"saved": (int, float)}, _FATE: {"fate": str, "at": (int, float)}}


@dataclass(frozen=True)
class Versions(CheckedFields):
    """The versions of a model.

    Attributes:
        root: the folder of all versions, a path or URI; it need not exist.
    """

    root: str

    def current(self) -> str | None:
        """The name of the version in use; None before the first is published.

        Raises:
            InvalidInput: CURRENT names an incomplete version, which only a person can have written.
        """
        name = self._pointed()
        while name is not None and not self.is_complete(name):
            before, name = name, self._pointed()
            if name == before:  # else another process has published, and pruned this version, since the read
                raise InvalidInput(
                    f"{files.join(self.root, CURRENT)} names the version {name!r}, which is incomplete; expected one "
                    f"of {', '.join(self.names()) or 'none'}. Write the name of a complete version into it."
                )
        return name

    def _pointed(self) -> str | None:
        try:
            return files.read(files.join(self.root, CURRENT)).decode(errors="replace").strip()
        except FileNotFoundError:
            return next(reversed(self._decided(_PUBLISHED)), None)

    def model(self, name: str) -> str:
        """The path or URI of a version's model."""
        return files.join(self.root, f"{_FOLDER}/{name}/{_MODEL}")

    def is_complete(self, name: str) -> bool:
        """Whether a version is complete."""
        return name.isprintable() and bool(name) and files.exists(files.join(self.root, f"{_FOLDER}/{name}/{_ABOUT}"))

    def about(self, name: str) -> dict[str, Any]:
        """The description given to ``complete``, with ``saved``, its time in unix seconds.

        Raises:
            FileNotFoundError: the version is missing or incomplete.
            InvalidInput: its file is damaged.
        """
        return self._load(name, _ABOUT)

    def complete(self, name: str, about: Mapping[str, Any]) -> None:
        """Mark a version whose model is saved as complete; ``about`` has JSON values by name, for people."""
        self._write(name, _ABOUT, {**about, "saved": time.time()})

    def publish(self, name: str) -> None:
        """Put a version into use; raises ``InvalidInput`` if it is incomplete."""
        if not self.is_complete(name):
            raise InvalidInput(f"the version {name!r} in {self.root} is incomplete; call complete() first.")
        # First: the version published last is never pruned.
        self._write(name, _FATE, {"fate": _PUBLISHED, "at": time.time()})
        files.write(files.join(self.root, CURRENT), f"{name}\n".encode())

    def refuse(self, name: str) -> None:
        """Mark a version as rejected; a person may still publish it."""
        self._write(name, _FATE, {"fate": _REJECTED, "at": time.time()})

    def _write(self, name: str, file: str, values: Mapping[str, Any]) -> None:
        self._folder().write(f"{name}/{file}", (json.dumps(values, indent=2) + "\n").encode())

    def _decided(self, fate: str) -> list[str]:
        fates = self._read(_FATE)
        decided = [name for name, values in fates.items() if values["fate"] == fate and self.is_complete(name)]
        return sorted(decided, key=lambda name: (fates[name]["at"], name))

    def names(self) -> list[str]:
        """The complete versions, in the order of their completion."""
        about = self._read(_ABOUT)
        return sorted(about, key=lambda name: (about[name]["saved"], name))

    def _read(self, file: str) -> dict[str, Any]:
        values = {}
        for name in self._folder().folders():
            with contextlib.suppress(FileNotFoundError):  # incomplete, undecided, or pruned by another run just now
                values[name] = self._load(name, file)
        return values

    def _load(self, name: str, file: str) -> dict[str, Any]:
        return self._folder().read_json(f"{name}/{file}", f"Write it again, or delete {name}.", **_FIELDS[file])

    def prune(self, keep: int) -> list[str]:
        """Delete the oldest versions, except the one in use and those neither published nor rejected.

        The last ``keep`` published and the last ``keep`` rejected versions stay. Returns the deleted names.

        Raises:
            InvalidInput: keep is less than 1.
        """
        if keep < 1:
            raise InvalidInput(f"keep is {keep}; expected the number of versions to keep, at least 1.")
        deleted = []
        for name in (*self._decided(_PUBLISHED)[:-keep], *self._decided(_REJECTED)[:-keep]):
            if name == self.current():  # another process may change it at any time
                continue
            with contextlib.suppress(FileNotFoundError):  # another run prunes as well
                self._folder().delete(f"{name}/{_ABOUT}")  # first: a version without it is incomplete
                self._folder().delete(name)
                deleted.append(name)
        return deleted

    def discard(self, owns: Callable[[str], bool]) -> None:
        """Delete the incomplete versions that killed runs left; ``owns`` chooses them by name."""
        for name in self._folder().folders():
            if owns(name) and not self.is_complete(name):
                self._folder().delete(name)

    def _folder(self) -> Folder:
        return Folder.of(files.join(self.root, _FOLDER))
