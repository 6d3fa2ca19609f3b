"""Saves models and estimators: ``metadata/`` as pyspark.ml writes it, with files and parts beside it.

    <path>/metadata/         Params as JSON, and ``saved_fields`` of the class
    <path>/objects.pkl       Params that only a pickle holds
    <path>/<name>            files of the class, such as weights
    <path>/<folder>/00000/   parts: models, estimators and evaluators, each by its own writer

One writer and one reader serve every class: a ``Saveable`` declares its fields, files and parts. The writer writes
beside the path and then moves all of it into place.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.param import Params
from pyspark.ml.pipeline import PipelineSharedReadWrite
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.pickling import as_pickle, unpickled
from sparkdl.ml.persistence import factory as factories
from sparkdl.ml.persistence import param_values
from sparkdl.spark.jvm import qualify

METADATA = "metadata/part-00000"
"""The metadata file of a folder that is written without Spark."""

_FORMAT = 3
_OBJECTS = "objects.pkl"
TRUST = "spark.sparkdl.trust"
"""The setting of a session that trusts pickled parts."""

HOW = f"If you know who saved it, load it with trust=True, or set the session's {TRUST} to true."

Self = TypeVar("Self", bound="Reader")


class Saveable(Params, MLReadable[Any], MLWritable):
    """A model or an estimator that declares its saved fields, files and parts.

    Attributes:
        saved_fields: attributes with JSON values that are also keyword arguments of the constructor.
    """

    saved_fields: ClassVar[tuple[str, ...]] = ()

    def saved(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The files beside the metadata, and the JSON values in it."""
        return {}, {name: getattr(self, name) for name in self.saved_fields}

    def parts(self) -> dict[str, Params]:
        """The models, estimators and evaluators that their own writers save, by folder."""
        return {}

    def params_in_parts(self) -> set[str]:
        """The names of the Params whose values are saved as parts."""
        return set()

    @classmethod
    def restored(cls, saved: Saved) -> Any:
        """Make an instance without its Params."""
        return cls(**{name: saved.fields[name] for name in cls.saved_fields})

    def with_parts(self, saved: Saved) -> Any:
        """Set the Params that hold parts, after the other Params, and return the instance."""
        return self

    def write(self) -> Writer:
        """The writer; ``write().overwrite().save(path)`` replaces an older copy."""
        return Writer(self)

    @classmethod
    def read(cls) -> Reader:
        """The reader; ``load(path)`` is the short form."""
        return Reader(cls)

    @classmethod
    def load(cls, path: str, trust: bool = False) -> Any:
        """Load a saved instance of this class.

        Args:
            path: a path or URI.
            trust: also load pickled parts, which runs the code inside them.

        Raises:
            InvalidInput: the path holds no instance of this class, or one that is damaged, has another format, names a
                factory that cannot be imported, or, without ``trust``, has pickled parts.
        """
        return cls.read().trust(trust).load(path)


@dataclass(frozen=True)
class Saved:
    """One saved instance, as its class reads it.

    Attributes:
        reader: reads files and parts.
        path: of the instance.
        fields: JSON values that the instance declared.
    """

    reader: Reader
    path: str
    fields: dict[str, Any]

    def part(self, name: str) -> Any:
        """The part in the folder ``name``."""
        return self.reader.part(self.path, name)

    def numbered(self, folder: str, count: int) -> list[Any]:
        """The first ``count`` parts in ``folder``."""
        return [self.part(name) for name in numbered(folder, range(count))]

    def file(self, name: str) -> bytes:
        """The bytes of the file ``name``."""
        return self.reader.file(self.path, name)


def numbered(folder: str, values: Sequence[Any]) -> dict[str, Any]:
    """Name values ``folder/00000`` and so on."""
    return {f"{folder}/{index:05d}": value for index, value in enumerate(values)}


class Writer(MLWriter):
    """Writes beside the path and then moves the result into place; a failed save keeps the older copy."""

    def __init__(self, instance: Saveable) -> None:
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Save the instance.

        Raises:
            InvalidInput: the path exists and may not be overwritten, or a part cannot be pickled.
        """
        root = qualify(self.sparkSession, path)
        if not self.shouldOverwrite and files.exists(root):
            raise InvalidInput(f"{path} exists; use write().overwrite().save(path) to replace it.")
        staged = f"{root.rstrip('/')}.{uuid.uuid4().hex}.tmp"
        try:
            self.saveImpl(staged)
            files.replace(staged, root)
        except BaseException:
            files.delete(staged)
            raise

    def saveImpl(self, path: str) -> None:
        """Write files, parts and, last, the metadata: a path with metadata is complete."""
        written, plain, extra = self.packed()
        root = qualify(self.sparkSession, path)
        for name, data in written.items():
            files.write(f"{root}/{name}", data)
        for name, part in self._instance.parts().items():
            if not isinstance(part, MLWritable):
                raise InvalidInput(
                    f"{name} is a {type(part).__name__}, which has no write(); expected a class of pyspark.ml or "
                    "sparkdl, or another with write()."
                )
            part.write().session(self.sparkSession).save(f"{root}/{name}")
        DefaultParamsWriter.saveMetadata(plain, path, self.sparkSession, extraMetadata=extra)

    def packed(self) -> tuple[dict[str, bytes], Params, dict[str, Any]]:
        """The files beside the metadata, the Params in the metadata, and its other fields."""
        written, fields = self._instance.saved()
        plain, named, pickled = _sorted_params(self._instance, self._instance.params_in_parts())
        if pickled:
            written[_OBJECTS] = as_pickle(pickled, ", ".join(pickled))
        fields = {"format": _FORMAT, **fields, "objects": named, "pickled": sorted(pickled)}
        return written, plain, {"sparkdl": json.loads(json.dumps(fields))}


class Reader(MLReader[Any]):
    """Reads the files of ``Writer``; without trust it unpickles nothing."""

    def __init__(self, kind: type[Saveable]) -> None:
        super().__init__()
        self._kind, self._trust, self._local = kind, False, False

    def trust(self: Self, value: bool = True) -> Self:
        """Load pickled parts too, which runs the code inside them; the session's conf may also allow it."""
        self._trust = value
        return self

    def local(self: Self) -> Self:
        """Read a folder of this host without Spark; the instance may not have parts."""
        self._local = True
        return self

    def load(self, path: str) -> Any:
        """Load the instance; raises as ``Saveable.load`` does."""
        metadata = self._metadata(path)
        found = metadata["sparkdl"]
        try:
            saved = Saved(self, path, found)
            instance: Any = self._kind.restored(saved)
            instance._resetUid(metadata["uid"])
            DefaultParamsReader.getAndSetParams(instance, metadata)
            objects = found["objects"]
            given = {name: param_values.resolve(objects[name], param_values.kinds_of(name)) for name in objects}
            if found["pickled"]:
                self.refuse_pickled(path, found["pickled"])
                given |= unpickled(self.file(path, _OBJECTS), f"{path}/{_OBJECTS}")
            instance._set(**given)
            return instance.with_parts(saved)
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise InvalidInput(f"{path} is damaged: {type(error).__name__}: {error}.") from error

    def part(self, path: str, name: str) -> Any:
        """Load the part ``name`` with its own reader and with this reader's trust, stages of pipelines included.

        Raises:
            InvalidInput: the part is missing or damaged, its class cannot be imported, or it is pickled without trust.
        """
        where = f"{qualify(self.sparkSession, path)}/{name}"
        try:
            metadata = DefaultParamsReader.loadMetadata(where, self.sparkSession)
            kind = _class(metadata["class"])
            if issubclass(kind, (Pipeline, PipelineModel)) and metadata["paramMap"].get("language") == "Python":
                return self._pipeline(where, kind, metadata)
            reader = kind.read().session(self.sparkSession)
            return (reader.trust(self._trust) if isinstance(reader, Reader) else reader).load(where)
        except InvalidInput:
            raise
        except Exception as error:  # Spark's errors, and those of other libraries' readers
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            raise InvalidInput(f"{path} is damaged: {name} cannot be loaded: {reason}") from error

    def _pipeline(self, where: str, kind: Any, metadata: dict[str, Any]) -> Any:
        """Load a pipeline that Python wrote: pyspark.ml's own reader does not pass trust to the stages."""
        uids = metadata["paramMap"]["stageUids"]
        folders = [PipelineSharedReadWrite.getStagePath(uid, at, len(uids), "stages") for at, uid in enumerate(uids)]
        return kind(stages=[self.part(where, folder) for folder in folders])._resetUid(metadata["uid"])

    def file(self, path: str, name: str) -> bytes:
        """The bytes of the file ``name`` beside the metadata."""
        try:
            return files.read(f"{path if self._local else qualify(self.sparkSession, path)}/{name}")
        except OSError as error:
            raise InvalidInput(f"{path} is damaged: {name} cannot be read: {error}") from error

    @property
    def trusted(self) -> bool:
        """Whether pickled parts may be loaded."""
        if self._trust or self._local:
            return self._trust
        return self.sparkSession.conf.get(TRUST, "false").strip().lower() == "true"  # type: ignore[union-attr]

    def refuse_pickled(self, path: str, names: list[str]) -> None:
        """Raise ``InvalidInput`` for pickled parts unless they are trusted."""
        if not self.trusted:
            raise InvalidInput(f"{path} has pickled parts, whose code runs when they are loaded: {names}. {HOW}")

    def _metadata(self, path: str) -> dict[str, Any]:
        try:
            metadata: dict[str, Any] = (
                json.loads(files.read(f"{path}/{METADATA}"))
                if self._local
                else DefaultParamsReader.loadMetadata(path, self.sparkSession)
            )
            found, saved = metadata.get("sparkdl"), metadata["class"]
        except Exception as error:  # Spark's errors for a missing path, and those of damaged JSON
            reason = str(error).strip().partition("\n")[0]
            raise InvalidInput(f"{path} cannot be loaded as a {self._kind.__name__}: {reason}") from error
        if not isinstance(found, dict) or saved != f"{self._kind.__module__}.{self._kind.__name__}":
            raise InvalidInput(f"{path} holds a {saved}; expected a sparkdl {self._kind.__name__}.")
        if not isinstance(written := found.get("format"), int):
            raise InvalidInput(f"{path} has the format {written!r}; expected {_FORMAT}.")
        if written != _FORMAT:
            age, remedy = ("an older", ", or train it again") if written < _FORMAT else ("a newer", "")
            raise InvalidInput(
                f"{path} was written by {age} sparkdl (format {written}); expected {_FORMAT}. Load it with that "
                f"version{remedy}."
            )
        return metadata


def _class(name: str) -> Any:
    """The class named in the metadata; Spark's own classes have their names on the JVM."""
    module, _, own = name.replace("org.apache.spark", "pyspark").rpartition(".")
    found = factories.find(module, own)
    if not isinstance(found, type) or not issubclass(found, Params):
        raise TypeError(f"{name} is {found!r}; expected a class with Params")
    return found


def _sorted_params(instance: Params, apart: set[str]) -> tuple[Params, dict[str, Any], dict[str, Any]]:
    """Return a copy with the JSON Params, the other Params by name, and those to pickle, without those ``apart``.

    The copy has no defaults that are no JSON: the class sets them again.
    """
    plain, named, pickled = instance.copy(), {}, {}
    for values in (plain._paramMap, plain._defaultParamMap):
        for param in [param for param, value in values.items() if not param_values.is_plain(value)]:
            del values[param]
    for name in [
        param.name for param in instance._paramMap if param not in plain._paramMap and param.name not in apart
    ]:
        value = instance.getOrDefault(name)
        try:
            named[name] = param_values.describe(value, param_values.kinds_of(name))
        except param_values.NotDescribable:
            pickled[name] = value
    return plain, named, pickled
