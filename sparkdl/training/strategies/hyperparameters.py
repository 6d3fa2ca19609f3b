"""Checks of hyperparameters; each raises InvalidInput with the name and value of the field."""

from __future__ import annotations

from numbers import Integral

from sparkdl.errors import InvalidInput


def check(owner: object, name: str, valid: bool, expected: str) -> None:
    """Check that the field ``name`` of ``owner`` is valid."""
    if not valid:
        raise InvalidInput(f"{type(owner).__name__} has {name}={getattr(owner, name)!r}; expected {expected}.")


def check_integers(owner: object, **least: int) -> None:
    """Check that these fields of ``owner`` are integers of at least the given values."""
    for name, smallest in least.items():
        value = getattr(owner, name)
        kind = "" if isinstance(value, Integral) else "a whole number of "
        check(owner, name, not kind and value >= smallest, f"{kind}at least {smallest}")


def check_at_least(owner: object, **least: float) -> None:
    """Check that these fields of ``owner`` are numbers of at least the given values, and not NaN."""
    for name, smallest in least.items():
        check(owner, name, getattr(owner, name) >= smallest, f"at least {smallest}")
