"""One run: a directory and the resolved configuration in it.

runDir/config.json      what the run was asked to do, resolved
runDir/history.json     a row per epoch
runDir/report.json      seconds, rows, bytes, skew
runDir/events/          what happened on the members and on the driver, as JSON lines
runDir/tb/              TensorBoard's event files, with that hook
runDir/checkpoints/     the members' states, see ``sparkdl.checkpoint``
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.io import files


def identity(configuration: Mapping[str, Any], free: Collection[str]) -> str:
    """What a run is known by: the same for the same configuration, but for what makes no other run of it.

    Args:
        configuration: JSON values by name, as in ``config.json``.
        free: names whose values make no other run: it goes on longer, elsewhere, or is watched and saved otherwise.

    Returns:
        16 hexadecimal digits.
    """
    bound = {name: value for name, value in configuration.items() if name not in free}
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """Where a run keeps what it leaves behind.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI; None keeps nothing.
    """

    directory: str | None = None

    @property
    def events(self) -> str | None:
        """The folder of events, a path or URI; None where there is none."""
        if self.directory is None:
            return None
        local = files.local_path(self.directory)
        return files.join(self.directory, "events") if local is None else f"{local}/events"

    def save(self, name: str, values: Mapping[str, Any] | list[Any]) -> None:
        """Write ``<directory>/<name>.json`` whole; does nothing without a directory."""
        if self.directory is not None:
            text = json.dumps(values, indent=2, default=str) + "\n"
            files.write(files.join(self.directory, f"{name}.json"), text.encode())
