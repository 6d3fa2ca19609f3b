"""Imports of optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from sparkdl.errors import InvalidInput


def required(module: str, extra: str) -> Any:
    """Import a module that an extra of this package installs; raises InvalidInput if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"{module} cannot be imported: {error}. Install the extra: pip install 'sparkdl-torch[{extra}]'."
        raise InvalidInput(message) from error
