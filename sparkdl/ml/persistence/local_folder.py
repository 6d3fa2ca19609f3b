"""Saved models in folders of this host, written and read without Spark.

The folder has the format of ``TorchModel.write().save``, so ``TorchModel.load`` reads it if Spark can. Spark's own
writer writes metadata on an executor, which on a cluster is another host.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark
from pyspark.ml.util import DefaultParamsWriter

from sparkdl.io import files
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.reader_writer import METADATA, Reader, Writer

__all__ = ["read_folder", "write_folder"]


def write_folder(model: TorchModel, folder: str) -> None:
    """Save a model in a folder of this host, and replace its content.

    Raises:
        InvalidInput: a part of the model cannot be pickled.
    """
    written, plain, fields = Writer(model).packed()
    for name, data in written.items():
        files.write(f"{folder}/{name}", data)
    version: Any = SimpleNamespace(version=pyspark.__version__)  # the only attribute that it reads of a session
    metadata = DefaultParamsWriter._get_metadata_to_save(plain, version, fields)
    files.write(f"{folder}/{METADATA}", f"{metadata}\n".encode())


def read_folder(folder: str, *, trust: bool = False) -> TorchModel:
    """Load a model that ``write_folder`` saved; ``trust`` also loads pickled parts, which runs the code inside them.

    Raises:
        InvalidInput: as ``TorchModel.load``.
    """
    model: TorchModel = Reader(TorchModel).local().trust(trust).load(folder)
    return model
