"""What the pipeline's tests plant in it: stages and hooks that kill the driver, once. Shipped by --py-files."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Transformer
from pyspark.ml.param import Param, Params
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame


def die_once(mark: str) -> None:
    """Kill this process, unless the file is there; leave it."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Dies(Transformer, DefaultParamsReadable["Dies"], DefaultParamsWritable):
    """Kills the driver where it is asked to transform rows with a label, or such without.

    Args:
        mark: a file; once it is there rows pass through.
        scoring: whether rows without a label are those to die of.
    """

    mark: Param[str] = Param(Params._dummy(), "mark", "a file that says that it has happened")
    scoring: Param[bool] = Param(Params._dummy(), "scoring", "whether rows without a label are meant")

    @keyword_only
    def __init__(self, *, mark: str = "", scoring: bool = False) -> None:
        super().__init__()
        self._set(**self._input_kwargs)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        scoring = "label" not in dataset.columns
        if scoring == self.getOrDefault(self.scoring):
            die_once(self.getOrDefault(self.mark))
        return dataset


class DiesInTraining:
    """Kills the driver when it hears that an epoch is over.

    Args:
        mark: a file; once it is there nothing happens.
        epoch: after so many.
    """

    on_driver = True

    def __init__(self, mark: str, epoch: int) -> None:
        self.mark, self.epoch = mark, epoch

    def on_epoch(self, run: Any) -> None:
        """See the class."""
        if len(run.history) >= self.epoch:
            die_once(self.mark)
