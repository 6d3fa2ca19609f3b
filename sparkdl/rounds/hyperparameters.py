"""Checks of hyperparameters for algorithms and solvers."""

from __future__ import annotations

from numbers import Integral

from sparkdl.errors import InvalidInput


def check_integers(owner: object, **least: int) -> None:
    """Raise InvalidInput unless these fields of ``owner`` are integers of at least the given values."""
    for name, smallest in least.items():
        given = getattr(owner, name)
        if isinstance(given, Integral) and int(given) >= smallest:
            continue
        kind = "" if isinstance(given, Integral) else "a whole number of "
        raise InvalidInput(f"{type(owner).__name__} has {name}={given!r}; expected {kind}at least {smallest}.")


def check_at_least(owner: object, **least: float) -> None:
    """Raise InvalidInput unless these fields of ``owner`` are numbers of at least the given values; NaN is none."""
    for name, smallest in least.items():
        if not getattr(owner, name) >= smallest:
            raise InvalidInput(
                f"{type(owner).__name__} has {name}={getattr(owner, name)!r}; expected at least {smallest}."
            )
