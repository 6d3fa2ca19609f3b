"""Models and estimators on disk: ``metadata/`` as pyspark.ml writes it, and beside it files for what is no JSON."""

from __future__ import annotations

import json
import uuid
import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.param import Params
from pyspark.ml.pipeline import PipelineSharedReadWrite
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.pickles import as_pickle, unpickled
from sparkdl.io.weights import pack, read_state
from sparkdl.ml.persistence import describe
from sparkdl.ml.persistence import factory as factories
from sparkdl.ml.persistence.export import Program
from sparkdl.ml.persistence.exporting import as_program
from sparkdl.spark.resources import qualified

if TYPE_CHECKING:
    from sparkdl.ml.estimator import GangEstimator
    from sparkdl.ml.model import TorchModel

METADATA = "metadata/part-00000"
"""The file that is written without Spark in the place of those that Spark writes."""

_FORMAT = 2
_WEIGHTS = "weights.safetensors"
_PROGRAM = "program.pt2"
_PICKLE = "model.pkl"
_OBJECTS = "objects.pkl"
_TRUST = "spark.sparkdl.trust"

Loaded = TypeVar("Loaded", bound=MLReadable[Any])
Self = TypeVar("Self", bound="Reader[Any]")


class Writer(MLWriter):
    """Writes beside the path and then puts what it wrote in its place: a save that fails leaves what was there."""

    def __init__(self, instance: Params) -> None:
        super().__init__()
        self._instance = instance

    @abstractmethod
    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The files beside the metadata, and what the metadata says of them."""

    def parts(self) -> dict[str, Params]:
        """What has writers of its own, by the folders that it is written to."""
        return {}

    def apart(self) -> set[str]:
        """The names of the Params whose values are among the parts."""
        return set()

    def save(self, path: str) -> None:
        """Save it.

        Raises:
            InvalidInput: the path exists and is not to be overwritten; a part of it cannot even be pickled.
        """
        root = qualified(self.sparkSession, path)
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
        """Write it, the metadata last: a path with metadata is whole."""
        written, plain, said = self.packed()
        root = qualified(self.sparkSession, path)
        for name, data in written.items():
            files.write(f"{root}/{name}", data)
        for name, part in self.parts().items():
            _writer_of(part, name).session(self.sparkSession).save(f"{root}/{name}")
        DefaultParamsWriter.saveMetadata(plain, path, self.sparkSession, extraMetadata=said)

    def packed(self) -> tuple[dict[str, bytes], Params, dict[str, Any]]:
        """The files beside the metadata, the Params that go into it, and what it says beside them."""
        written, said = self.contents()
        plain, named, pickled = _sorted_params(self._instance, self.apart())
        if pickled:
            written[_OBJECTS] = as_pickle(pickled, ", ".join(pickled))
        said = {"format": _FORMAT, **said, "objects": named, "pickled": sorted(pickled)}
        return written, plain, {"sparkdl": json.loads(json.dumps(said))}


class Reader(MLReader[Loaded]):
    """Reads what ``Writer`` wrote; nothing is unpickled without trust."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._kind, self._trust, self._local = kind, False, False

    def trust(self: Self, value: bool = True) -> Self:
        """Load even what is pickled: unpickling runs code that is in it. The session's conf can say so as well."""
        self._trust = value
        return self

    def local(self: Self) -> Self:
        """Read a folder of this host, without Spark; only what has no parts can be read so."""
        self._local = True
        return self

    @abstractmethod
    def made(self, path: str, found: dict[str, Any]) -> Loaded:
        """The instance, without its Params.

        Args:
            path: where it was saved.
            found: what the metadata says beside the Params.
        """

    def completed(self, path: str, found: dict[str, Any], instance: Loaded) -> Loaded:
        """The instance, when its Params have been set.

        Args:
            path: where it was saved.
            found: what the metadata says beside the Params.
            instance: what ``made`` has made.
        """
        return instance

    def load(self, path: str) -> Loaded:
        """Load it.

        Raises:
            InvalidInput: the path holds none, a damaged one, one of a newer format, one that names what cannot be
                imported, or without trust one with pickled parts.
        """
        metadata = self._metadata(path)
        found = metadata["sparkdl"]
        try:
            instance: Any = self.made(path, found)
            instance._resetUid(metadata["uid"])
            DefaultParamsReader.getAndSetParams(instance, metadata)
            given = {
                name: describe.resolve(described, describe.kinds_of(name))
                for name, described in found["objects"].items()
            }
            if found["pickled"]:
                self.refuse_pickled(path, found["pickled"])
                given |= unpickled(self.file(path, _OBJECTS), f"{path}/{_OBJECTS}")
            instance._set(**given)
            return self.completed(path, found, instance)
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise InvalidInput(f"{path} is damaged: {type(error).__name__}: {error}.") from error

    def part(self, path: str, name: str) -> Any:
        """What has been written by a writer of its own; trust is handed on, to stages of pipelines as well.

        Args:
            path: where the whole was saved.
            name: the part's folder.

        Raises:
            InvalidInput: it is not there, damaged, of a class that is not here, or pickled and not trusted.
        """
        where = f"{qualified(self.sparkSession, path)}/{name}"
        try:
            metadata = DefaultParamsReader.loadMetadata(where, self.sparkSession)
            kind = _class(metadata["class"])
            if issubclass(kind, (Pipeline, PipelineModel)) and metadata["paramMap"].get("language") == "Python":
                return self._pipeline(where, kind, metadata)
            reader = kind.read()
            return (
                (reader.trust(self._trust) if isinstance(reader, Reader) else reader)
                .session(self.sparkSession)
                .load(where)
            )
        except InvalidInput:
            raise
        except Exception as error:  # Spark's own, and those of other libraries' readers
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            raise InvalidInput(f"{path} is damaged: {name} cannot be loaded: {reason}") from error

    def _pipeline(self, where: str, kind: Any, metadata: dict[str, Any]) -> Any:
        """A pipeline that Python wrote; pyspark.ml's own reader hands nothing on to the stages."""
        uids = metadata["paramMap"]["stageUids"]
        folders = [PipelineSharedReadWrite.getStagePath(uid, at, len(uids), "stages") for at, uid in enumerate(uids)]
        return kind(stages=[self.part(where, folder) for folder in folders])._resetUid(metadata["uid"])

    def file(self, path: str, name: str) -> bytes:
        """The bytes of a file beside the metadata."""
        try:
            return files.read(f"{path if self._local else qualified(self.sparkSession, path)}/{name}")
        except OSError as error:
            raise InvalidInput(f"{path} is damaged: {name} cannot be read: {error}") from error

    @property
    def trusted(self) -> bool:
        """Whether what is pickled may be loaded."""
        if self._trust or self._local:
            return self._trust
        return self.sparkSession.conf.get(_TRUST, "false").strip().lower() == "true"  # type: ignore[union-attr]

    def refuse_pickled(self, path: str, names: list[str]) -> None:
        """Refuse what is pickled, unless it is trusted."""
        if not self.trusted:
            raise InvalidInput(f"{path} has pickled parts, and loading them runs code that is in them: {names}. {HOW}")

    def _metadata(self, path: str) -> dict[str, Any]:
        try:
            metadata: dict[str, Any] = (
                json.loads(files.read(f"{path}/{METADATA}"))
                if self._local
                else DefaultParamsReader.loadMetadata(path, self.sparkSession)
            )
            found, saved = metadata.get("sparkdl"), metadata["class"]
        except Exception as error:  # Spark's own, for a path that is not there, and what damaged JSON gives
            reason = str(error).strip().partition("\n")[0]
            raise InvalidInput(f"{path} cannot be loaded as a {self._kind.__name__}: {reason}") from error
        if not isinstance(found, dict) or saved != f"{self._kind.__module__}.{self._kind.__name__}":
            raise InvalidInput(f"{path} holds a {saved}; expected a sparkdl {self._kind.__name__}.")
        if not isinstance(found.get("format"), int) or found["format"] < _FORMAT:
            raise InvalidInput(
                f"{path} has the format {found.get('format')!r}, which is not known; expected {_FORMAT}."
            )
        if found["format"] > _FORMAT:
            raise InvalidInput(f"{path} was written by a newer sparkdl (format {found['format']}); expected {_FORMAT}.")
        return metadata


HOW = f"Load it with trust=True, or set the session's {_TRUST} to true, if you know who saved it."


class ModelWriter(Writer):
    """Writes a model: by its factory's name, as a torch.export program, or where that fails with a pickle.

    Args:
        model: what is written.
    """

    _instance: TorchModel

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The architecture and the weights."""
        model = self._instance
        said = {
            "kind": model._kind,
            "precision": model._precision,
            "scalar": model._scalar,
            "signature": model._signature,
            "history": model.history,
            "report": model.report,
        }
        try:
            described = None if isinstance(model._factory, Program) else factories.describe(model._factory)
        except InvalidInput:
            described = None
        if described is not None:
            return {_WEIGHTS: model._weights}, said | {"architecture": "factory", "factory": described}
        try:
            return {_PROGRAM: as_program(model)}, said | {"architecture": "program"}
        except InvalidInput as error:
            reason = error.message
        written = {
            _PICKLE: as_pickle(model._factory, "the model"),
            _WEIGHTS: model._weights or pack(model.module()),
        }
        warnings.warn(
            f"the model's architecture is saved as a pickle, which loads with trust=True alone: {reason} A factory "
            "that can be imported is saved by its name.",
            stacklevel=4,
        )
        return written, said | {"architecture": "pickle"}


class ModelReader(Reader["TorchModel"]):
    """Reads a model.

    Args:
        kind: TorchModel.
    """

    def made(self, path: str, found: dict[str, Any]) -> TorchModel:
        """The model, without its Params."""
        factory, weights = self._architecture(path, found)
        signature = found["signature"]
        made: TorchModel = self._kind(
            factory=factory,
            weights=weights,
            kind=found["kind"],
            precision=found["precision"],
            history=found["history"],
            report=found["report"],
            scalar=found["scalar"],
            signature=None if signature is None else [(list(shape), str(dtype)) for shape, dtype in signature],
        )
        return made

    def _architecture(self, path: str, found: dict[str, Any]) -> tuple[Any, bytes]:
        if found["architecture"] == "program":
            program = Program(self.file(path, _PROGRAM), self.trusted)
            try:
                program()
            except InvalidInput as error:
                how = f" The session's {_TRUST} = true says so as well." if "can run code" in error.message else ""
                raise InvalidInput(f"{path}: {error.message}{how}") from error
            return program, b""
        weights = self.file(path, _WEIGHTS)
        try:
            read_state(weights)
        except InvalidInput as error:
            raise InvalidInput(f"{path} is damaged: {error.message}") from error
        if found["architecture"] == "factory":
            return factories.resolve(found["factory"]), weights
        if found["architecture"] != "pickle":
            raise KeyError(found["architecture"])
        self.refuse_pickled(path, ["the model's architecture"])
        return unpickled(self.file(path, _PICKLE), f"{path}/{_PICKLE}"), weights


class EstimatorWriter(Writer):
    """Writes an estimator: its Params.

    Args:
        estimator: what is written.
    """

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Nothing but Params."""
        return {}, {}


class EstimatorReader(Reader["GangEstimator"]):
    """Reads an estimator.

    Args:
        kind: its class.
    """

    def made(self, path: str, found: dict[str, Any]) -> GangEstimator:
        """An estimator whose Params are all at their defaults."""
        made: GangEstimator = self._kind()
        return made


def _writer_of(part: Any, name: str) -> MLWriter:
    if not isinstance(part, MLWritable):
        raise InvalidInput(
            f"{name} is a {type(part).__name__}, which cannot be saved; expected what has write(), as all of "
            "pyspark.ml and sparkdl has."
        )
    return part.write()


def _class(name: str) -> Any:
    """The class that metadata names, Spark's own by their names on the JVM."""
    module, _, own = name.replace("org.apache.spark", "pyspark").rpartition(".")
    found = factories.find(module, own)
    if not isinstance(found, type) or not issubclass(found, Params):
        raise TypeError(f"{name} is {found!r}; expected a class with Params")
    return found


def _sorted_params(instance: Params, apart: set[str]) -> tuple[Params, dict[str, Any], dict[str, Any]]:
    """A copy with the Params that are JSON, the others by name, and those that have none; but for those ``apart``.

    Defaults that are no JSON are left out: the class sets them again.
    """
    plain, named, pickled = instance.copy(), {}, {}
    for param, value in instance._paramMap.items():
        if describe.is_plain(value):
            continue
        del plain._paramMap[plain.getParam(param.name)]
        if param.name in apart:
            continue
        try:
            named[param.name] = describe.describe(value, describe.kinds_of(param.name))
        except describe.Nameless:
            pickled[param.name] = value
    for param, value in instance._defaultParamMap.items():
        if not describe.is_plain(value):
            del plain._defaultParamMap[plain.getParam(param.name)]
    return plain, named, pickled
