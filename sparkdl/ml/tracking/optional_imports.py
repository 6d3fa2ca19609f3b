"""Modules of packages that not everybody has."""

from __future__ import annotations

import importlib
from typing import Any

from sparkdl.errors import InvalidInput

_DISTRIBUTION = "sparkdl-torch"


def required(module: str, extra: str) -> Any:
    """A module that comes with an extra of this package.

    Args:
        module: its dotted name.
        extra: the extra's name.

    Raises:
        InvalidInput: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(
            f"{module} cannot be imported: {error}. Expected the extra {extra!r}: "
            f"pip install '{_DISTRIBUTION}[{extra}]'."
        ) from error
