"""What comes of a round's tasks, on the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from sparkdl.cluster.tasks import Mapped, RoundWork, Tensors, Tree
from sparkdl.spark.executor_tasks import Row, Title


class Results:
    """The results of the parts, each of which comes once.

    Args:
        parts: how many there are.

    Attributes:
        large: whether there was one that should have been cut into pieces.
        pieces: how many pieces each part's tensors were cut into; 0 where the results hold them.
        bytes: of the tensors that were cut.
        places: where parts were written to that were not there.
    """

    def __init__(self, parts: int) -> None:
        self.large = False
        self.pieces = self.bytes = 0
        self.places: set[str] = set()
        self._parts = parts
        self._found: dict[int, Mapped] = {}

    def take(self, rows: Iterable[Row]) -> None:
        """Take what a job has brought."""
        for part, _, name, payload in rows:
            if name == "written":
                self.places.add(bytes(payload).decode())
            if name in ("missing", "written"):
                continue
            if name == "large":
                self.large = True
            found = Mapped(part) if name == "large" else Mapped.unpacked(bytes(payload))
            if name == "cut":
                self.pieces, self.bytes, note = found.note
                found = replace(found, note=note)
            self._found[part] = found

    @property
    def absent(self) -> list[int]:
        """Parts of which nothing has come."""
        return [part for part in range(self._parts) if part not in self._found]

    @property
    def found(self) -> list[Mapped]:
        """What has come, in the parts' order."""
        return [self._found[part] for part in sorted(self._found)]

    @property
    def notes(self) -> list[Any]:
        """The parts' notes, in their order."""
        return [each.note for each in self.found]

    def reduced(self, work: RoundWork) -> Tensors:
        """What all parts come to, reduced here."""
        tree = Tree(work.reduce)
        for each in self.found:
            tree.push(each.tensors)
        return tree.result()


def assembled(rows: Iterable[Row]) -> Tensors:
    """Tensors from their pieces, which come in any order: one piece is held besides them."""
    flat: dict[str, tuple[int, tuple[int, ...], torch.Tensor]] = {}
    for _, piece, name, payload in rows:
        title = Title.of_json(name)
        values = title.values(payload)
        if title.name not in flat:
            size = torch.Size(title.shape).numel()
            flat[title.name] = piece, title.shape, torch.empty(size, dtype=values.dtype)
        earliest, shape, whole = flat[title.name]
        whole[title.first : title.first + len(values)] = values
        flat[title.name] = min(piece, earliest), shape, whole
    ordered = sorted(flat.items(), key=lambda item: item[1][0])
    return {name: whole.view(shape) for name, (_, shape, whole) in ordered}
