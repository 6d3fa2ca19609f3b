"""Saves models and estimators: ``metadata/`` as pyspark.ml writes it, with files and parts beside it.

    <path>/metadata/         Params as JSON, and ``saved_fields`` of the class
    <path>/objects.pkl       Params that only a pickle holds
    <path>/<name>            files of the class, such as weights
    <path>/<folder>/00000/   parts: models, estimators and evaluators, each by its own writer

One writer and one reader serve every class: a ``Saveable`` declares its fields, files and parts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.param import Params
from pyspark.ml.pipeline import PipelineSharedReadWrite
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.pickling import as_pickle
from sparkdl.ml.persistence.factory import find
from sparkdl.ml.persistence.param_values import NotDescribable, allowed_types, is_plain
from sparkdl.ml.persistence.saved_folder import FORMAT, OBJECTS, TRUST, SavedFolder, fields_of
from sparkdl.spark.jvm import qualify


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
class Saved(SavedFolder):
    """One saved instance, as its class reads it with Spark; ``reader`` loads its parts with the same trust."""

    reader: Reader

    def part(self, name: str) -> Any:
        """Load the part in the folder ``name`` with its own reader and with this reader's trust.

        Raises:
            InvalidInput: the part is missing or damaged, its class cannot be imported, or it is pickled without trust.
        """
        path, session = f"{self.root}/{name}", self.reader.sparkSession
        try:
            metadata = DefaultParamsReader.loadMetadata(path, session)
            # Spark's own classes have their names on the JVM.
            module, _, class_name = metadata["class"].replace("org.apache.spark", "pyspark").rpartition(".")
            kind = find(module, class_name)
            if not isinstance(kind, type) or not issubclass(kind, Params):
                raise TypeError(f"{metadata['class']} is {kind!r}; expected a class with Params")
            if issubclass(kind, (Pipeline, PipelineModel)) and metadata["paramMap"].get("language") == "Python":
                # pyspark.ml's own reader does not pass trust to the stages.
                uids = metadata["paramMap"]["stageUids"]
                path_of, pipeline = PipelineSharedReadWrite.getStagePath, replace(self, path=path, root=path)
                stages = [pipeline.part(path_of(uid, at, len(uids), "stages")) for at, uid in enumerate(uids)]
                return kind(stages=stages)._resetUid(metadata["uid"])
            reader = kind.read().session(session)  # type: ignore[attr-defined]
            return (reader.trust(self.reader.trusts) if isinstance(reader, Reader) else reader).load(path)
        except InvalidInput:
            raise
        except Exception as error:  # Spark's errors, and those of other libraries' readers
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            raise InvalidInput(f"{self.path} is damaged: {name} cannot be loaded: {reason}") from error

    def numbered(self, folder: str, count: int) -> list[Any]:
        """The first ``count`` parts in ``folder``."""
        return [self.part(name) for name in numbered(folder, range(count))]


def trusts(session: SparkSession) -> bool:
    """Whether a session trusts pickled parts."""
    return str(session.conf.get(TRUST, "false")).strip().lower() == "true"


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
        root = qualify(self.sparkSession, path)
        plain, fields = self.write_files(root)
        for name, part in self._instance.parts().items():
            if not isinstance(part, MLWritable):
                raise InvalidInput(
                    f"{name} is a {type(part).__name__}, which has no write(); expected a class of pyspark.ml or "
                    "sparkdl, or another with write()."
                )
            part.write().session(self.sparkSession).save(f"{root}/{name}")
        DefaultParamsWriter.saveMetadata(plain, path, self.sparkSession, extraMetadata=fields)

    def write_files(self, root: str) -> tuple[Params, dict[str, Any]]:
        """Write the files beside the metadata; return the Params in the metadata, and its other fields.

        The Params are a copy without defaults that are no JSON: the class sets them again.
        """
        written, fields = self._instance.saved()
        plain, named, pickled = self._instance.copy(), {}, {}
        for values in (plain._paramMap, plain._defaultParamMap):
            for param in [param for param, value in values.items() if not is_plain(value)]:
                del values[param]
        in_parts = self._instance.params_in_parts()
        for param, value in self._instance._paramMap.items():
            if param not in plain._paramMap and (name := param.name) not in in_parts:
                try:
                    named[name] = allowed_types(name).describe(value)
                except NotDescribable:
                    pickled[name] = value
        if pickled:
            written[OBJECTS] = as_pickle(pickled, ", ".join(pickled))
        fields = {"format": FORMAT, **fields, "objects": named, "pickled": sorted(pickled)}
        for name, data in written.items():
            files.write(f"{root}/{name}", data)
        return plain, {"sparkdl": json.loads(json.dumps(fields))}


class Reader(MLReader[Any]):
    """Reads the files of ``Writer``; without trust it unpickles nothing."""

    def __init__(self, kind: type[Saveable]) -> None:
        super().__init__()
        self._kind, self.trusts = kind, False

    def trust(self, value: bool = True) -> Reader:
        """Load pickled parts too, which runs the code inside them; the session's conf may also allow it."""
        self.trusts = value
        return self

    def load(self, path: str) -> Any:
        """Load the instance; raises as ``Saveable.load`` does."""
        metadata, fields = self._metadata(path)
        trusted = self.trusts or trusts(self.sparkSession)
        saved = Saved(path, qualify(self.sparkSession, path), fields, trusted, self)
        try:
            instance: Any = self._kind.restored(saved)
            instance._resetUid(metadata["uid"])
            DefaultParamsReader.getAndSetParams(instance, metadata)
            instance._set(**saved.objects())
            return instance.with_parts(saved)
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise InvalidInput(f"{path} is damaged: {type(error).__name__}: {error}.") from error

    def _metadata(self, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            metadata: dict[str, Any] = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        except Exception as error:  # Spark's errors for a missing path, and those of damaged JSON
            reason = str(error).strip().partition("\n")[0]
            raise InvalidInput(f"{path} cannot be loaded as a {self._kind.__name__}: {reason}") from error
        return metadata, fields_of(path, metadata, f"{self._kind.__module__}.{self._kind.__name__}")
