"""Checks of hyperparameters that algorithms and solvers have in common."""

from __future__ import annotations

from numbers import Integral

from sparkdl.errors import InvalidInput


def whole(owner: object, **least: int) -> None:
    """Refuse fields that are no whole numbers: a count of 1.5 or NaN fails late, or is never reached.

    Args:
        owner: what has the fields.
        **least: the smallest value of each field, by its name.

    Raises:
        InvalidInput: a field is no whole number, or smaller.
    """
    for name, smallest in least.items():
        given = getattr(owner, name)
        if isinstance(given, Integral) and int(given) >= smallest:
            continue
        kind = "" if isinstance(given, Integral) else "a whole number of "
        raise InvalidInput(f"{type(owner).__name__} has {name}={given!r}; expected {kind}at least {smallest}.")
