"""One run: a directory and the resolved configuration in it.

runDir/config.json      what the run was asked to do, resolved
runDir/history.json     a row per epoch
runDir/report.json      seconds, rows, bytes, skew
runDir/events/          events that could not be sent to the driver (a directory that members see too)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl import files


@dataclass(frozen=True)
class Run:
    """Where a run keeps what it leaves behind.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI; None keeps nothing.
    """

    directory: str | None = None

    @property
    def events(self) -> str | None:
        """The folder in which members leave events that they could not send; None where there is none."""
        if self.directory is None:
            return None
        local = files.local_path(self.directory)
        return None if local is None else f"{local}/events"

    def save(self, name: str, values: Mapping[str, Any] | list[Any]) -> None:
        """Write ``<directory>/<name>.json`` whole; does nothing without a directory."""
        if self.directory is not None:
            text = json.dumps(values, indent=2, default=str) + "\n"
            files.write(files.join(self.directory, f"{name}.json"), text.encode())
