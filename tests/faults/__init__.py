"""Faults at a chosen rank, step and place in the program; each happens once, and none depends on time."""

from __future__ import annotations

import os

from tests.faults.fault import PHASES, Fault
from tests.faults.places import Decode, fed

__all__ = ["PHASES", "Decode", "Fault", "fed", "flip", "tear"]


def flip(path: str | os.PathLike[str], place: int = -1) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def tear(path: str | os.PathLike[str]) -> None:
    """Leave the first half of a file."""
    os.truncate(path, os.path.getsize(path) // 2)
