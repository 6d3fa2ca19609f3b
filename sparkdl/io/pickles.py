"""What has no other form than a pickle, in files."""

from __future__ import annotations

from typing import Any

import cloudpickle

from sparkdl.errors import InvalidInput


def as_pickle(value: object, what: str) -> bytes:
    """The value as a pickle, in which what lives in a notebook or in ``__main__`` travels by value.

    Args:
        value: to be pickled.
        what: it is, for the message.

    Raises:
        InvalidInput: it cannot be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling runs the objects' own code, which raises anything
        raise InvalidInput(f"{what} cannot be saved, not even pickled: {type(error).__name__}: {error}") from error
    return data


def unpickled(data: bytes, where: str) -> Any:
    """What was pickled; only for what is trusted."""
    try:
        return cloudpickle.loads(data)
    except Exception as error:  # unpickling runs code, which raises anything
        raise InvalidInput(f"{where} cannot be unpickled: {type(error).__name__}: {error}") from error
