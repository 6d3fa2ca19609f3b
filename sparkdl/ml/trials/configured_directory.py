"""A run's directory that holds finished fits, of one configuration and of one driver at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.errors import Fenced, InvalidInput
from sparkdl.ml.run import differences

_ADVICE = ". If the query returns other rows or another order each time, write its result to a table, or set idCol"


@dataclass(frozen=True)
class ConfiguredDirectory(SharedDirectory):
    """A directory with a file of the configuration that its fits depend on; subclasses name both.

    Attributes:
        title: what the directory is of, such as ``"ensemble"``; ``<title>.json`` holds the configuration.
        content: what the directory holds, such as ``"members"``.
        version: of the file's format.
    """

    title: ClassVar[str]
    content: ClassVar[str]
    version: ClassVar[int]

    def configure(
        self,
        configuration: Mapping[str, Any],
        stored: Sequence[str],
        more: Callable[[Any], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        """Write the configuration and the token, on the driver; ``withdraw`` deletes the token.

        Args:
            configuration: JSON values by name: everything that the fits depend on, and the rows' fingerprint.
            stored: names of finished fits; without a configuration they are unknown.
            more: further values, from the stored configuration, or from None without one.

        Raises:
            InvalidInput: the stored fits have another configuration; the message names the differences.
        """
        before = self._read(stored)
        current = json.loads(json.dumps({**configuration, **more(before)}))
        if clauses := "; ".join(differences(before or current, current)):
            assert before is not None
            clauses += _ADVICE if before.get("rows") != current.get("rows") else ""
            raise InvalidInput(
                f"{self.folder.path} has the {self.content} of another {self.title}; these settings differ: {clauses}. "
                "Set another runDir, or restore these settings to continue."
            )
        if before != current:
            text = json.dumps({"format": self.version, "configuration": current}, indent=2) + "\n"
            self.folder.write(self._file, text.encode())
        self.take_over()

    def check_writable(self) -> None:
        """Check whether a task can store a fit.

        Raises:
            InvalidInput: this host sees another directory than the driver.
            Fenced: a later driver has taken over.
        """
        if self.folder.exists(self._file) and not self.sees():
            raise Fenced(
                f"another fit has begun to store {self.content} in {self.folder.path}. When it ends, call fit again to "
                f"train only the missing {self.content}. If this host does not see the driver's directory, set runDir "
                "to one that all hosts share."
            )
        self.check(f"finished {self.content}")

    @property
    def _file(self) -> str:
        return f"{self.title}.json"

    def _read(self, stored: Sequence[str]) -> dict[str, Any] | None:
        path = self.folder.at(self._file)
        try:
            fields = self.folder.read_json(self._file, "Set another runDir, or delete this one.", format=int)
        except FileNotFoundError:
            if stored:
                raise InvalidInput(
                    f"{self.folder.at(self.content)} has {self.content}, but {path}, which describes them, is missing; "
                    "set another runDir, or delete them."
                ) from None
            return None
        version, configuration = fields["format"], fields.get("configuration")
        if version != self.version or not isinstance(configuration, dict):
            raise InvalidInput(f"{path} has the format {version!r}; expected {self.version}. Set another runDir.")
        return configuration
