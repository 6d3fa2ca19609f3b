"""The saved architecture of a model: its factory's name, a torch.export program, or a pickle.

factory     weights.safetensors, and the factory's name and arguments in the metadata
program     program.pt2, weights included
pickle      model.pkl and weights.safetensors; loading needs trust

Beside ``weights.safetensors``, the rows of large tables are in ``tables/<name>/00000-of-00004.safetensors`` and so on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship, unpickled
from sparkdl.io.weights import pack, read_state
from sparkdl.io.weights_file import Weights, WeightsFile
from sparkdl.serving.format.export import Program
from sparkdl.serving.format.param_values import NotDescribable, allowed_types
from sparkdl.serving.format.saved_folder import TRUST, SavedFolder

_WEIGHTS = "weights.safetensors"
_PROGRAM = "program.pt2"
_PICKLE = "model.pkl"


def save_architecture(
    factory: Any, weights: Weights, module: Callable[[], nn.Module], program: Callable[[], bytes]
) -> tuple[dict[str, Weights], dict[str, Any]]:
    """Make the files of an architecture with its weights, and its fields for the metadata.

    ``weights`` are empty if the factory carries them. ``program`` makes the bytes of a torch.export program, or raises.

    Raises:
        InvalidInput: the factory has no importable name, cannot be exported, and cannot be pickled.
    """
    tables = weights.tables if isinstance(weights, WeightsFile) else {}
    counts = {"tables": {name: len(files) for name, files in tables.items()}}
    rows: dict[str, Weights] = {
        _rows(name, number, len(files)): file for name, files in tables.items() for number, file in enumerate(files)
    }
    with suppress(NotDescribable):
        described = allowed_types("model").describe(factory)
        return {_WEIGHTS: weights, **rows}, {"architecture": "factory", "factory": described, **counts}
    try:
        return {_PROGRAM: program()}, {"architecture": "program"}
    except InvalidInput as error:
        reason = error.message
    pickled: dict[str, Weights] = {_PICKLE: ship(factory, "pickled, and so not saved")}
    pickled |= {_WEIGHTS: weights or pack(module()), **rows}
    warnings.warn(
        f"the model's architecture is saved as a pickle, which loads only with trust=True: {reason} To save it by "
        "name, use a factory that can be imported.",
        stacklevel=5,
    )
    return pickled, {"architecture": "pickle", **counts}


def load_architecture(saved: SavedFolder) -> tuple[Any, Weights]:
    """Load factory and weights; raises ``InvalidInput`` if they are damaged, not trusted or not importable."""
    architecture, path = saved.fields["architecture"], saved.path
    if architecture == "program":
        program = Program(saved.file(_PROGRAM), saved.trust.pickles)
        try:
            program()
        except InvalidInput as error:
            how = f" Or set the session's {TRUST} to true." if "can run code" in error.message else ""
            raise InvalidInput(f"{path}: {error.message}{how}") from error
        return program, b""
    counts = saved.fields.get("tables", {})  # models of earlier versions lack the field
    tables = {name: tuple(saved.large(_rows(name, at, count)) for at in range(count)) for name, count in counts.items()}
    weights = replace(saved.large(_WEIGHTS), tables=tables) if tables else saved.weights(_WEIGHTS)
    try:
        weights.check() if isinstance(weights, WeightsFile) else read_state(weights)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is damaged: {error.message}") from error
    if architecture == "factory":
        factory = allowed_types("model").resolve(saved.fields["factory"], saved.trust)
        if not callable(factory):
            raise TypeError(f"the factory is {factory!r}")
        return factory, weights
    if architecture != "pickle":
        raise KeyError(architecture)
    saved.refuse_pickled(["the model's architecture"])
    return unpickled(saved.file(_PICKLE), f"{path}/{_PICKLE}"), weights


def _rows(table: str, number: int, count: int) -> str:
    return f"tables/{table or 'table'}/{number:05d}-of-{count:05d}.safetensors"
