"""The rows of trained tables in files: file ``r`` of ``n`` has the rows ``r, r + n, r + 2 n, ...``.

A process maps the files from its own disk. A look-up reads the pages of its rows alone, and so memory does not grow
with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import WeightsFile, read_rows, rows_header
from sparkdl.training.layouts.table import Table, tables_of


@dataclass(frozen=True)
class TableFiles:
    """The rows of one table.

    Attributes:
        files: of ``sparkdl.io.weights_file.rows_file``, in the order of the workers that trained them.
        copies: True, since copies of a table share its files.
    """

    files: tuple[WeightsFile, ...]
    copies: bool = True

    def look_up(self, table: Table, ids: Tensor, counts: Tensor | None) -> Tensor:
        """The rows ``[k, d]`` of ids ``[k]``, on the device of the ids."""
        return self(ids.cpu()).to(ids.device)

    def __call__(self, ids: Tensor) -> Tensor:
        """The rows ``[k, d]`` of ids ``[k]``, all on the CPU."""
        size = len(self.files)
        if size == 1:
            return self._part(0)[ids]
        rows, holder = torch.empty(len(ids), self.shape[1], dtype=self.dtype), ids % size
        for number in range(size):
            if len(places := (holder == number).nonzero().squeeze(1)):
                rows[places] = self._part(number)[ids[places] // size]
        return rows

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and numbers of a row."""
        shapes = [rows_header(file)[1] for file in self.files]
        return sum(rows for rows, _ in shapes), shapes[0][1]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return rows_header(self.files[0])[0]

    def _part(self, number: int) -> Tensor:
        """The mapped rows of a file: a process copies only files that it reads to its disk."""
        if number not in self._mapped:
            self._mapped[number] = read_rows(self.files[number])
        return self._mapped[number]

    @cached_property
    def _mapped(self) -> dict[int, Tensor]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields alone: each process maps the files itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def files_of(module: nn.Module, saved: Mapping[str, tuple[WeightsFile, ...]]) -> list[tuple[Table, TableFiles]]:
    """The tables of a module with their saved rows; raises InvalidInput if they do not fit."""
    tables = tables_of(module)
    sizes = {name: (table.num_embeddings, table.embedding_dim) for name, table in tables.items()}
    files = {name: TableFiles(parts) for name, parts in saved.items()}
    if sizes != (shapes := {name: one.shape for name, one in files.items()}):
        raise InvalidInput(
            f"the saved weights do not fit {type(module).__name__}: the saved tables have the rows and numbers of a "
            f"row {shapes}, and the module's tables {sizes}."
        )
    return [(table, files[name]) for name, table in tables.items()]


def weights_of_tables(module: nn.Module) -> dict[str, Tensor]:
    """The entries of a module's tables in its ``state_dict``; a shared table has several names."""
    named = module.named_modules(remove_duplicate=False)
    return {f"{name}.weight".lstrip("."): part.weight for name, part in named if isinstance(part, Table)}
