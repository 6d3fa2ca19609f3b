"""Rounds in this process, one part after the other: for debugging, and for data that are small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import Columns
from sparkdl.feed.part import Part, numbers
from sparkdl.feed.spool import Spool
from sparkdl.feed.tables import Batches, deal
from sparkdl.map_reduce import Mapped, RoundWork, Tensors, Tree, mapped, settle
from sparkdl.shipping import ship
from sparkdl.state import pack_state, unpack_state


class InlineJobs:
    """See ``Jobs``: every part is mapped here."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = tuple(part.rows for part in parts)
        self._parts = parts

    def run(self, work: RoundWork, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """See ``Jobs``."""
        shipped, packed, tree = ship(work), pack_state(state), Tree(work.reduce)
        notes = []
        for part in self._parts:
            found: Mapped = mapped(shipped, unpack_state(packed), part)
            settle([found], number)
            tree.push(found.tensors)
            notes.append(found.note)
        return tree.result(), notes


@contextmanager
def inline_jobs(data: Any, columns: Columns | Sequence[str] | None, parts: int) -> Iterator[InlineJobs]:
    """See ``MapReducing.map_reduce``."""
    tables, wanted = deal(data, columns, parts)
    if wanted is None:
        raise InvalidInput("there are no data; expected rows to map.")
    yield InlineJobs(sealed([_spooled(table, wanted, index) for index, table in enumerate(tables)], wanted))


def _spooled(batches: Batches, columns: Columns, index: int) -> Spool:
    spool = Spool(columns, part=index)
    for batch in batches:
        spool.append(batch)
    spool.check()
    return spool


def sealed(spools: Sequence[Spool], columns: Columns) -> list[Part]:
    """The spools' parts, of one layout; an empty one takes that of the others."""
    layout = {name: found for spool in spools for name, found in spool.layout().items()}
    rows = tuple(spool.rows for spool in spools)
    found = []
    for index, spool in enumerate(spools):
        tensors = spool.seal(layout)
        order = None if columns.row_id is None else spool.order(numbers(tensors, columns.row_id.name))
        found.append(Part(index, len(spools), rows[index], rows, columns, tensors, order))
    return found
