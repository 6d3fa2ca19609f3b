"""The rows of trained tables in files: file ``r`` of ``n`` has the rows ``r, r + n, r + 2 n, ...``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import WeightsFile, mapped_rows, read_rows, rows_header
from sparkdl.training.layouts.table import Table, tables_of


@dataclass(frozen=True)
class TableFiles:
    """The rows of one table.

    Attributes:
        files: of ``sparkdl.io.weights_file.rows_file``, in the order of the workers that trained them.
    """

    files: tuple[WeightsFile, ...]

    def __call__(self, ids: Tensor) -> Tensor:
        """The rows ``[k, d]`` of ids ``[k]``, read from the files; neighbouring ids are read together."""
        rows, holder = torch.empty(len(ids), self.shape[1], dtype=self.dtype), ids % len(self.files)
        for number, file in enumerate(self.files):
            if len(places := (holder == number).nonzero().squeeze(1)):
                at = ids[places] // len(self.files)
                first, last = int(at.min()), int(at.max())
                rows[places] = read_rows(file, first, last + 1 - first)[at - first]
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


def keep_saved(module: nn.Module, saved: Mapping[str, tuple[WeightsFile, ...]], *, mapped: bool) -> dict[str, Tensor]:
    """Give tables without rows their saved rows, in memory or mapped; return their entries in the ``state_dict``.

    Raises InvalidInput as ``files_of`` does.
    """
    for table, files in files_of(module, saved) if saved else ():
        if mapped:
            table.keep(mapped_rows(files.files), mapped=True)
        else:
            table.keep(torch.empty(files.shape, dtype=files.dtype), mapped=False)
            table.read(files)
    return weights_of_tables(module) if saved else {}


def weights_of_tables(module: nn.Module) -> dict[str, Tensor]:
    """The entries of a module's tables in its ``state_dict``; a shared table has several names."""
    named = module.named_modules(remove_duplicate=False)
    return {f"{name}.weight".lstrip("."): part.weight for name, part in named if isinstance(part, Table)}
