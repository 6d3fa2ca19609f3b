"""The folder of a run in which workers write their parts of large weights, for the driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.io.files import Buffer, join
from sparkdl.io.weights_file import WeightsFile


@dataclass(frozen=True)
class PartFolder:
    """Writes workers' parts of large weights, as ``sparkdl.training.spec.PartWriter``.

    Attributes:
        directory: the folder, which the driver announces.
    """

    directory: SharedDirectory

    def check(self) -> None:
        """Raise InvalidInput if this worker does not share the folder with the driver."""
        self.directory.check("the workers' parts of large weights")

    def write(self, name: str, pieces: Sequence[Buffer]) -> bytes:
        """Write a part, and return what ``part`` reads."""
        file = WeightsFile.write(join(self.directory.directory, name), pieces)
        return json.dumps([name, file.size, file.sha256]).encode()

    def part(self, written: bytes) -> WeightsFile:
        """The file of a part."""
        name, size, sha256 = json.loads(written)
        return WeightsFile(join(self.directory.directory, name), size, sha256)
