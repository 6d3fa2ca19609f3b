"""Faults at a chosen rank, step and place in the program; each happens once, and none depends on time."""

from __future__ import annotations

from tests.faults.damage import flip, newest, tear
from tests.faults.fault import PHASES, Fault
from tests.faults.places import Decode, fed

__all__ = ["PHASES", "Decode", "Fault", "fed", "flip", "newest", "tear"]
