"""Saves models in folders of this host, without Spark.

The folder has the format of ``TorchModel.write().save``, so ``TorchModel.load`` and ``load_predictor`` read it.
Spark's own writer writes metadata on an executor, which on a cluster is another host.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark
from pyspark.ml.util import DefaultParamsWriter

from sparkdl.io import files
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.reader_writer import Writer

_METADATA = "metadata/part-00000"


def write_folder(model: TorchModel, folder: str) -> None:
    """Save a model in a folder of this host; raises ``InvalidInput`` if a part cannot be pickled."""
    plain, fields = Writer(model).write_files(folder)
    version: Any = SimpleNamespace(version=pyspark.__version__)  # the only attribute that it reads of a session
    metadata = DefaultParamsWriter._get_metadata_to_save(plain, version, fields)
    files.write(f"{folder}/{_METADATA}", f"{metadata}\n".encode())
