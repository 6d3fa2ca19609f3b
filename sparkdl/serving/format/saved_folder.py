"""The folder of a saved instance, read without Spark and without pyspark.

``sparkdl.ml.persistence.reader_writer`` describes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.pickling import unpickled
from sparkdl.io.weights import LARGE
from sparkdl.io.weights_file import Weights, WeightsFile
from sparkdl.serving.format.factory import Trust
from sparkdl.serving.format.param_values import allowed_types

TRUST = "spark.sparkdl.trust"
"""The setting of a session that trusts pickled parts."""

FORMAT = 5
OBJECTS = "objects.pkl"


@dataclass(frozen=True)
class SavedFolder:
    """One saved instance.

    Attributes:
        path: as the user gave it, without credentials, for messages.
        root: the path or URI that ``sparkdl.io.files`` reads.
        fields: the JSON values that its class declared.
        trust: what the user trusts in it.
    """

    path: str
    root: str
    fields: dict[str, Any]
    trust: Trust

    def file(self, name: str) -> bytes:
        """The bytes of the file ``name`` beside the metadata."""
        try:
            return files.read(files.join(self.root, name))
        except OSError as error:
            raise InvalidInput(f"{self.path} is damaged: {name} cannot be read: {error}") from error

    def weights(self, name: str) -> Weights:
        """The weights in the file ``name``: large ones are a file, which the model then needs."""
        try:
            if self.stays_in_file(files.size(files.join(self.root, name))):
                return self.large(name)
        except OSError as error:
            raise InvalidInput(f"{self.path} is damaged: {name} cannot be read: {error}") from error
        return self.file(name)

    def stays_in_file(self, size: int) -> bool:
        """Whether weights of so many bytes are a file."""
        return size > LARGE

    def large(self, name: str) -> WeightsFile:
        """The file ``name`` with weights, which the model then needs."""
        try:
            return WeightsFile.of(files.join(self.root, name))
        except OSError as error:
            raise InvalidInput(f"{self.path} is damaged: {name} cannot be read: {error}") from error

    def objects(self) -> dict[str, Any]:
        """The values of the Params that are no JSON, by name; raises ``InvalidInput`` if they are not trusted."""
        objects = self.fields["objects"]
        values = {name: allowed_types(name).resolve(value, self.trust) for name, value in objects.items()}
        if self.fields["pickled"]:
            self.refuse_pickled(self.fields["pickled"])
            values |= unpickled(self.file(OBJECTS), f"{self.path}/{OBJECTS}")
        return values

    def refuse_pickled(self, names: list[str]) -> None:
        """Raise ``InvalidInput`` for pickled parts unless they are trusted."""
        if not self.trust.pickles:
            raise InvalidInput(
                f"{self.path} has pickled parts, whose code runs when they are loaded: {names}. If you know who saved "
                f"it, load it with trust=True, or set the session's {TRUST} to true."
            )


def fields_of(path: str, metadata: Mapping[str, Any], class_name: str) -> dict[str, Any]:
    """The JSON values that a class declared; raises ``InvalidInput`` if another class or format wrote the metadata."""
    fields = metadata.get("sparkdl")
    if not isinstance(fields, dict) or metadata["class"] != class_name:
        raise InvalidInput(f"{path} holds a {metadata['class']}; expected a sparkdl {class_name.rpartition('.')[2]}.")
    if not isinstance(written := fields.get("format"), int):
        raise InvalidInput(f"{path} has the format {written!r}; expected {FORMAT}.")
    if written != FORMAT:
        age, remedy = ("an older", ", or train it again") if written < FORMAT else ("a newer", "")
        raise InvalidInput(
            f"{path} was written by {age} sparkdl (format {written}); expected {FORMAT}. Load it with that "
            f"version{remedy}."
        )
    return fields
