"""Atomic, verified storage of pyspark.ml models, one directory each.

    <directory>/model/          files of the model's own writer
    <directory>/member.json     seconds of the fit, and a digest of all files of ``model/``

Both are staged beside the directory and moved into place together. Object stores copy file by file instead; the digest
reveals an incomplete copy.

Loading unpickles nothing and calls only modules that the estimators name: an attacker with write access to
the run's directory can replace weights but cannot run other code on the driver. A model with pickled parts, such as a
PyTorch module without a name or export, loads only if the session sets ``spark.sparkdl.trust``.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

from pyspark.ml import Model
from pyspark.ml.util import MLWritable
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.persistence.reader_writer import load_saved
from sparkdl.serving.format.factory import Trust

_MODEL = "model"
_RECORD = "member.json"


def save_model(folder: str, name: str, model: Model, seconds: float) -> None:
    """Save a model and the seconds of its fit in ``<folder>/<name>``, replacing an existing one.

    Raises:
        InvalidInput: the model has no writer, Spark cannot write to the folder, or executors write elsewhere.
        Exception: the writer fails.
    """
    if not isinstance(model, MLWritable):
        raise InvalidInput(f"{type(model).__name__} cannot be saved: it is no pyspark.ml.util.MLWritable.")
    staged = files.join(folder, f"{name}.{uuid.uuid4().hex}.tmp")
    inside = files.join(staged, _MODEL)
    try:
        model.write().overwrite().save(_as_spark_has_it(inside))
        record = {"seconds": seconds, "digest": _digest(inside)}
        files.write(files.join(staged, _RECORD), json.dumps(record).encode())
        files.replace(staged, files.join(folder, name))
    except BaseException:
        files.delete(staged)
        raise


def load_model(directory: str, modules: Sequence[str]) -> tuple[Model, float]:
    """Load a model that ``save_model`` saved, and the seconds of its fit; ``modules`` are trusted.

    Raises:
        FileNotFoundError: there is no model.
        InvalidInput: the model is damaged, is no pyspark.ml Model, names other modules, or has pickled parts.
    """
    inside, record = files.join(directory, _MODEL), json.loads(files.read(files.join(directory, _RECORD)))
    if record["digest"] != _digest(inside):
        raise InvalidInput("its files have changed.")
    model = load_saved(_as_spark_has_it(inside), SparkSession.active(), Trust.of(False, modules))
    if not isinstance(model, Model):
        raise InvalidInput(f"it is a {type(model).__name__}; expected a pyspark.ml Model.")
    return model, float(record["seconds"])


def _as_spark_has_it(uri: str) -> str:
    """A path or URI for Hadoop's filesystems, which read no credentials or options from URIs."""
    if (local := files.local_path(uri)) is not None:
        return f"file://{local}"
    parts = urlsplit(uri)
    if parts.query or parts.password:
        raise InvalidInput(
            "the URI of runDir has credentials or options, which Spark does not read from a URI; set them in the "
            "session's spark.hadoop settings and the environment."
        )
    return uri


def _digest(uri: str) -> str:
    folder = files.Folder.of(uri)
    # Hadoop stores checksums in hidden files, which some copies lack.
    names = [name for name in folder.walk() if not name.rpartition("/")[2].startswith(".")]
    parents = [name.rpartition("/")[0] for name in names]
    for name, parent in zip(names, parents, strict=True):
        if name.endswith("_SUCCESS") and parents.count(parent) == 1:
            raise InvalidInput(
                f"{folder.at(parent)} has no data: executors wrote it to their own disks. Set runDir to a "
                "directory that all hosts share, such as hdfs:// or s3a://."
            )
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {hashlib.sha256(folder.read(name)).hexdigest()}\n".encode())
    return digest.hexdigest()
