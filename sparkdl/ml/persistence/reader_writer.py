"""Saves models and estimators without Spark: ``metadata/`` as pyspark.ml writes it, with files and parts beside it.

    <path>/metadata/         Params as JSON, and ``saved_fields`` of the class
    <path>/objects.pkl       Params that only a pickle holds
    <path>/<name>            files of the class, such as weights
    <path>/<folder>/00000/   parts: models, estimators and evaluators, each by its writer; Spark writes pyspark.ml's

One writer and one reader serve every class: a ``Saveable`` declares its fields, files and parts.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.param import Params
from pyspark.ml.pipeline import PipelineSharedReadWrite
from pyspark.ml.util import DefaultParamsReader, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.pickling import ship, unpickled
from sparkdl.io.weights import fits
from sparkdl.io.weights_file import Weights, WeightsFile
from sparkdl.ml.persistence import metadata_files
from sparkdl.ml.persistence.nested_params import within
from sparkdl.serving.format.factory import MODULES, NO_TRUST, Trust
from sparkdl.serving.format.param_values import NotDescribable, allowed_types, is_plain
from sparkdl.serving.format.saved_folder import FORMAT, OBJECTS, TRUST, SavedFolder, fields_of
from sparkdl.spark.session import qualify, session_of, setting

_STAGE = re.compile(r"(.+)/stages/\d+_(.+)", re.DOTALL)  # the folders of a pipeline and of a stage, with its uid


class Saveable(Params, MLReadable[Any], MLWritable):
    """A model or an estimator that declares its saved fields, files and parts.

    Attributes:
        saved_fields: attributes with JSON values that are also keyword arguments of the constructor.
    """

    saved_fields: ClassVar[tuple[str, ...]] = ()

    def __copy__(self) -> Any:
        """Copy without a pickle."""
        return _revived(type(self), super().__reduce_ex__(2)[2])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle functions and classes of a notebook or of a function by value; raises ``InvalidInput`` as ``ship``."""
        return _revived, (type(self), ship(super().__reduce_ex__(2)[2], "pickled"))

    def saved(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        """The files beside the metadata, and the JSON values in it."""
        return {}, {name: getattr(self, name) for name in self.saved_fields}

    def parts(self) -> dict[str, Params]:
        """The models, estimators and evaluators that their own writers save, by folder."""
        return {}

    def params_in_parts(self) -> set[str]:
        """The names of the Params whose values are saved as parts."""
        return set()

    @classmethod
    def restored(cls, saved: SavedInstance) -> Any:
        """Make an instance without its Params."""
        return cls(**{name: saved.fields[name] for name in cls.saved_fields})

    def with_parts(self, saved: SavedInstance) -> Any:
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
    def load(cls, path: files.StrPath, trust: bool = False, modules: Sequence[str] = ()) -> Any:
        """Load a saved instance of this class.

        Args:
            path: a path or URI.
            trust: also load pickled parts, which runs the code inside them, and import any name.
            modules: names of your modules, such as ``["my_nets"]``, whose functions and classes are called with the
                saved arguments. A factory that is a class needs no name if your program has imported its module.

        Raises:
            InvalidInput: the path holds no instance of this class, or one that is damaged, has another format, names a
                factory that is not trusted or cannot be imported, or, without ``trust``, has pickled parts.
        """
        return cls.read().trust(trust, modules).load(path)


def _revived(kind: Any, state: Any) -> Any:
    stage = kind.__new__(kind)
    stage.__dict__.update(unpickled(state, "the pickle") if isinstance(state, bytes) else state)
    return stage


@dataclass(frozen=True)
class SavedInstance(SavedFolder):
    """One saved instance, as its class reads it in a session."""

    session: SparkSession

    def stays_in_file(self, size: int) -> bool:
        """Whether weights of so many bytes are a file; all are that no query of the session carries."""
        return super().stays_in_file(size) or not fits(size, session_of(self.session).query_limit())

    def part(self, name: str) -> Any:
        """Load the part in the folder ``name`` with its own reader and the same trust, as ``load_saved`` does."""
        return load_saved(f"{self.root}/{name}", self.session, self.trust, f"{self.path} is damaged: {name}")

    def numbered(self, folder: str, count: int) -> list[Any]:
        """The first ``count`` parts in ``folder``."""
        return [self.part(name) for name in numbered(folder, range(count))]


def load_saved(path: str, session: SparkSession, trust: Trust = NO_TRUST, what: str = "") -> Any:
    """Load an instance of any class with a reader; pyspark.ml's own readers do not pass trust to stages and parts.

    ``path`` has its filesystem; the session's settings add to ``trust``; ``what`` begins the message of an error.

    Raises:
        InvalidInput: it is missing or damaged, a class is not trusted, or it is pickled without trust.
    """
    try:
        return _load(path, session, trust | session_trust(session))
    except InvalidInput:
        raise
    except Exception as error:  # errors of Spark, and of other libraries' readers
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        raise InvalidInput(f"{what or path} cannot be loaded: {reason}") from error


def _load(path: str, session: SparkSession, trust: Trust) -> Any:
    metadata = metadata_files.read(path, session)
    kind = _class(metadata["class"], trust)
    if issubclass(kind, (Pipeline, PipelineModel)) and metadata["paramMap"].get("language") == "Python":
        uids, path_of = metadata["paramMap"]["stageUids"], PipelineSharedReadWrite.getStagePath
        paths = [path_of(uid, at, len(uids), f"{path}/stages") for at, uid in enumerate(uids)]
        return kind(stages=[_load(stage, session, trust) for stage in paths])._resetUid(metadata["uid"])
    reader = kind.read().session(session)
    if isinstance(reader, Reader):
        return reader.trust(trust.pickles, trust.modules).load(path)
    if not trust.pickles:
        _check_stages(path, session, trust)
    return reader.load(metadata_files.escaped(path))


def _check_stages(path: str, session: SparkSession, trust: Trust) -> None:
    """Check what Spark's reader, which imports any class, will read: each line of all metadata below the path."""
    for name, metadata in metadata_files.lines(path, session):
        _class(metadata["class"], trust)
        params = metadata["paramMap"]  # the values of param maps that are no JSON have folders
        values = [value for one in params.get("estimatorParamMaps", []) for value in one]
        inner = [value["value"] for value in values if value.get("isJson", True) not in (True, "true")]
        if not all(re.fullmatch(r"[^/\\]*\w[^/\\]*", one) for one in [*params.get("stageUids", []), *inner]):
            raise InvalidInput(f"{path}/{name} names stages outside its folder.")


def _class(name: str, trust: Trust) -> Any:
    """Import a class by its name in metadata; Spark's own classes have their names on the JVM."""
    module, _, name = name.replace("org.apache.spark", "pyspark").rpartition(".")
    return trust.imported(f"{module}:{name}", (MLReadable,), ("pyspark.ml", "sparkdl"))


def modules_of(*roots: Params) -> list[str]:
    """The modules of the classes and functions that estimators and their values name: a program trusts its own."""
    modules: set[str] = set()
    for params in (inner for root in roots for inner in within(root)):
        modules.add(type(params).__module__.rpartition(".")[0] or type(params).__module__)
        for param, value in params._paramMap.items():
            with suppress(NotDescribable):
                described = {} if is_plain(value) else allowed_types(param.name).describe(value)
                modules |= {*re.findall(r'"(?:name|partial|make)": "([\w.]+):', json.dumps(described))}
    return sorted(name for name in modules if name.partition(".")[0] not in ("pyspark", "sparkdl"))


def session_trust(session: SparkSession) -> Trust:
    """What the settings of a session trust."""
    pickles, modules = setting(session, TRUST), setting(session, MODULES).split(",")
    return Trust.of(pickles.strip().lower() == "true", [*filter(None, map(str.strip, modules))])


def numbered(folder: str, values: Sequence[Any]) -> dict[str, Any]:
    """Name values ``folder/00000`` and so on."""
    return {f"{folder}/{index:05d}": value for index, value in enumerate(values)}


class Writer(MLWriter):
    """Writes beside the path and then moves the result into place; a failed save keeps the older copy."""

    def __init__(self, instance: Saveable) -> None:
        super().__init__()
        self._instance = instance

    def save(self, path: files.StrPath) -> None:
        """Save the instance.

        Raises:
            InvalidInput: the path exists and may not be overwritten, a part cannot be pickled, or only Spark sees one.
        """
        path = os.fspath(path)
        root = qualify(self.sparkSession, path)
        if not self.shouldOverwrite and files.exists(root):
            raise InvalidInput(f"{path} exists; use write().overwrite().save(path) to replace it.")
        if (stage := _STAGE.fullmatch(root)) and stage[2] == self._instance.uid:
            metadata_files.check_shared(stage[1], self.sparkSession)  # Spark has written the pipeline's metadata
        staged = f"{root.rstrip('/')}.{uuid.uuid4().hex}.tmp"
        try:
            self.saveImpl(staged)
            files.replace(staged, root)
        except BaseException:
            files.delete(staged)
            raise

    def saveImpl(self, path: str) -> None:
        """Write files, parts and, last, the metadata: a path with metadata is complete. Only parts need a session."""
        plain, fields = self._write_files(path)
        for name, part in self._instance.parts().items():
            if not isinstance(part, MLWritable):
                raise InvalidInput(
                    f"{name} is a {type(part).__name__}, which has no write(); expected a class of pyspark.ml or "
                    "sparkdl, or another with write()."
                )
            part.write().session(self.sparkSession).save(f"{path}/{name}")
            metadata_files.check_shared(f"{path}/{name}", self.sparkSession)
        metadata_files.write(path, plain, fields)

    def _write_files(self, root: str) -> tuple[Params, dict[str, Any]]:
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
            written[OBJECTS] = ship(pickled, "pickled, and so not saved")
        fields = {"format": FORMAT, **fields, "objects": named, "pickled": sorted(pickled)}
        for name, data in written.items():
            pieces = data.copied() if isinstance(data, WeightsFile) else [data]
            files.Folder.of(root).write_stream(name, pieces)
        return plain, {"sparkdl": json.loads(json.dumps(fields))}


class Reader(MLReader[Any]):
    """Reads the files of ``Writer``; without trust it unpickles nothing."""

    def __init__(self, kind: type[Saveable]) -> None:
        super().__init__()
        self._kind, self._trust = kind, NO_TRUST

    def trust(self, value: bool = True, modules: Sequence[str] = ()) -> Reader:
        """Load pickled parts too, and trust ``modules``, as in ``Saveable.load``; the session's conf may also do so."""
        self._trust = Trust.of(value, modules)
        return self

    def load(self, path: files.StrPath) -> Any:
        """Load the instance; raises as ``Saveable.load`` does."""
        path = os.fspath(path)
        if not files.exists(qualify(self.sparkSession, path)):
            path = re.sub(r"\\(.)", r"\1", path)  # Spark's readers pass on the pattern that they get
        root = qualify(self.sparkSession, path)
        try:
            metadata = metadata_files.read(root, self.sparkSession)
        except Exception as error:  # of a missing path, or damaged JSON
            reason = str(error).strip().partition("\n")[0]
            raise InvalidInput(f"{path} cannot be loaded as a {self._kind.__name__}: {reason}") from error
        fields = fields_of(path, metadata, f"{self._kind.__module__}.{self._kind.__name__}")
        saved = SavedInstance(path, root, fields, self._trust | session_trust(self.sparkSession), self.sparkSession)
        try:
            instance: Any = self._kind.restored(saved)
            instance._resetUid(metadata["uid"])
            DefaultParamsReader.getAndSetParams(instance, metadata)
            instance._set(**saved.objects())
            return instance.with_parts(saved)
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise InvalidInput(f"{path} is damaged: {type(error).__name__}: {error}.") from error
