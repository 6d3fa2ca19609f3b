"""Patterns of module names, as units and plans take them."""

from __future__ import annotations

from fnmatch import fnmatchcase


def has_name(name: str, pattern: str) -> bool:
    """Whether the name of a module, such as ``"layers.0.linear1"``, has a pattern, such as ``"layers.*.linear*"``."""
    levels, patterns = name.split("."), pattern.split(".")
    return len(levels) == len(patterns) and all(map(fnmatchcase, levels, patterns))
