"""Pickles of work for workers and of values in files, with errors that name the culprit."""

from __future__ import annotations

import functools
import io
import pickle
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from sparkdl.errors import InvalidInput
from sparkdl.io.moved_modules import present_name

_DEPTH = 8  # levels of attributes to search for the culprit


def ship(work: object, how: str = "sent to the workers") -> bytes:
    """Pickle work for the workers; classes and functions of a notebook or ``__main__`` travel by value.

    Raises:
        InvalidInput: a value in the work cannot be pickled, or be ``how``; the message gives its path.
    """
    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:  # pickling runs the objects' code, which may raise anything
        path, culprit = _culprit(work, "", _DEPTH)
        raise InvalidInput(
            f"{path or 'the work'} is of type {type(culprit).__name__} and cannot be {how}: {error}. "
            "Make it where it is used, for example in the model's constructor, or leave it out in __getstate__."
        ) from error


def unship(packed: bytes) -> Any:
    """Unpickle work on a worker; raises InvalidInput if this host lacks a module that the work needs."""
    try:
        return cloudpickle.loads(packed)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the module {error.name!r} is on the driver but not on {socket.gethostname()}: {error}. Ship your own "
            "modules with --py-files or spark.addArtifacts(..., pyfile=True). Install packages on every host."
        ) from error


class _Unpickler(pickle.Unpickler):
    """Finds classes and functions of earlier versions in the modules that have them now."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(present_name(module), name)


def unpickled(data: bytes, where: str) -> Any:
    """Unpickle trusted bytes; raises InvalidInput, naming the source ``where``, if that fails."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # unpickling runs code, which may raise anything
        raise InvalidInput(f"{where} cannot be unpickled: {type(error).__name__}: {error}") from error


def _culprit(value: object, path: str, depth: int) -> tuple[str, object]:
    for name, inner in _inner(value) if depth else ():
        if not _pickles(inner):
            joined = f"{path}{name}" if name.startswith("[") or not path else f"{path}.{name}"
            return _culprit(inner, joined, depth - 1)
    return path, value


def _inner(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, functools.partial):
        yield "func", value.func
        yield from ((f"args[{index}]", argument) for index, argument in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set)):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif hasattr(value, "__closure__"):
        code = value.__code__  # type: ignore[attr-defined]
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            yield name, cell.cell_contents
        yield from ((name, value.__globals__[name]) for name in code.co_names if name in value.__globals__)  # type: ignore[attr-defined]
    elif not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).items()


def _pickles(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
        return True
    except Exception:
        return False
