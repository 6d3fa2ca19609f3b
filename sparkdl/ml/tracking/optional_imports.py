"""Imports of optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from sparkdl.errors import InvalidInput

_DISTRIBUTION = "sparkdl-torch"


def required(module: str, extra: str) -> Any:
    """Import a module that an extra of this package installs.

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
