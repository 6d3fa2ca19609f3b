"""Finished members, kept in the run's directory: what is there is never trained again.

    <runDir>/ensemble.json             whose members they are: configuration and rows
    <runDir>/members/member-00005      of a task: its weights, history and report, written by the task itself
    <runDir>/members/model-00005/      of a fit of the driver: the saved model
    <runDir>/members/driver-<token>    while members train: by it a task knows that it sees the driver's directory

Each comes into its place whole. Two tasks that train the same member write the same bits.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.ml import Model

from sparkdl.files import absolute


@dataclass(frozen=True)
class Kept:
    """The finished members of an ensemble. Copies of one object, pickled ones too, are the same.

    Attributes:
        directory: of the run, a local path or a ``pyarrow.fs`` URI; not shown, for a URI may hold credentials.
        token: by which tasks know that the directory they see is the driver's.
    """

    directory: str = field(repr=False)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", absolute(self.directory))

    def begin(self, configuration: Mapping[str, Any]) -> None:
        """Say on the driver whose members they are, and leave the token for the tasks.

        Args:
            configuration: JSON values by name: everything that the members depend on, with the rows' fingerprint.

        Raises:
            InvalidInput: those that are there are of another configuration; the message names what differs.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Take the token away, on the driver."""
        raise NotImplementedError

    def read(self, index: int) -> dict[str, Any] | None:
        """What a task has written of a member; None where it is not finished, or with a warning where it is damaged."""
        raise NotImplementedError

    def write(self, index: int, state: Mapping[str, Any]) -> None:
        """Keep what a task has made of a member, plain data as ``sparkdl.state`` packs it.

        Raises:
            InvalidInput: this host sees another directory than the driver.
        """
        raise NotImplementedError

    def load(self, index: int) -> Model | None:
        """The model that a fit of the driver has left; None where there is none, or with a warning if damaged."""
        raise NotImplementedError

    def save(self, index: int, model: Model, seconds: float) -> None:
        """Keep the model of a fit of the driver; one that cannot be saved is a warning, and is not kept."""
        raise NotImplementedError
