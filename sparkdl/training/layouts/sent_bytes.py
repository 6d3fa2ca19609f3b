"""Counts what a worker sends for its layout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SentBytes:
    """Bytes that this worker sent for its layout since the step began."""

    count: int = 0
