"""The folder of a run in which workers write their parts of large weights, for the driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.io.files import Buffer, join
from sparkdl.io.weights_file import WeightsFile, rows_file


@dataclass(frozen=True)
class PartFolder:
    """Writes workers' parts of large weights, as ``sparkdl.training.spec.PartWriter``.

    Attributes:
        directory: the folder, which the driver announces, and deletes after the fit.
        tables: the folder of the files of tables, which stay.
    """

    directory: SharedDirectory
    tables: str = field(repr=False)

    def check(self) -> None:
        """Raise InvalidInput if this worker does not share the folder with the driver."""
        self.directory.check("the workers' parts of large weights")

    def write(self, name: str, pieces: Sequence[Buffer]) -> bytes:
        """Write a part, and return what ``part`` reads."""
        file = WeightsFile.write(join(self.directory.directory, name), pieces)
        return json.dumps([name, file.size, file.sha256]).encode()

    def write_rows(self, name: str, table: str, rows: Tensor) -> str:
        """Write a worker's rows of a table, and return what ``rows`` reads."""
        path = join(table or "table", f"{name}.safetensors")
        file = WeightsFile.write(join(self.tables, path), rows_file(rows))
        return json.dumps([path, file.size, file.sha256])

    def part(self, written: bytes) -> WeightsFile:
        """The file of a part."""
        name, size, sha256 = json.loads(written)
        return WeightsFile(join(self.directory.directory, name), size, sha256)

    def rows(self, written: str) -> WeightsFile:
        """The file of a worker's rows of a table."""
        path, size, sha256 = json.loads(written)
        return WeightsFile(join(self.tables, path), size, sha256)
