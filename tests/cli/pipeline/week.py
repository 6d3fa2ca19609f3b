"""A pipeline on a week of small days."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from sparkdl.ml.persistence.registry import Versions

DAYS = [f"2026-11-{day}" for day in range(17, 24)]
DAY, NEXT = "2026-11-22", "2026-11-23"
ROWS = 60  # a day


class Killed(BaseException):
    """Ends a run in the driver, which handles no such error."""


def write(path: Path, **columns: Any) -> None:
    """A week of rows as Parquet; ``columns`` replace its own."""
    drawn = np.random.default_rng(0).normal(size=(ROWS * len(DAYS), 2))
    table = {"day": np.repeat(DAYS, ROWS), "a": drawn[:, 0], "b": drawn[:, 1], "y": (drawn.sum(1) > 0).astype(int)}
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table(table | columns), path / "part.parquet")


class Small:
    """A pipeline in a folder, and the command that runs it."""

    def __init__(self, folder: Path, job: Any) -> None:
        self.folder, self.job, self.root = folder, job, folder / "root"
        self.versions = Versions(str(self.root))
        self.keys: dict[str, Any] = {}  # of the configuration, in place of those below

    def configured(self, **network: Any) -> Path:
        """The configuration; ``network`` are more arguments of the classifier."""
        linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
        rate = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}}
        arguments = {"model": linear, "optimizer": rate, "epochs": 2, "batchSize": 32, **network}
        inputs = {"inputCols": ["a", "b"], "outputCol": "features"}
        values = {
            "root": str(self.root),
            "data": {"path": str(self.folder / "raw"), "format": "parquet"},
            "clean": {"label": "y"},
            "split": {"date": "day", "days": 2},
            "stages": [
                {"class_path": "pyspark.ml.feature.VectorAssembler", "init_args": inputs},
                {"class_path": "sparkdl.TorchClassifier", "init_args": arguments},
            ],
            "evaluator": {"class_path": "pyspark.ml.evaluation.BinaryClassificationEvaluator"},
            "score": {"data": {"path": str(self.folder / "new"), "format": "parquet"}},
        }
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(values | self.keys))
        return file

    def run(self, *arguments: object, date: str = DAY, **network: Any) -> tuple[int, str]:
        return self.job("etl_train", "--config", self.configured(**network), "--date", date, *arguments)

    def done(self, date: str = DAY) -> dict[str, Any]:
        """The result of a finished date, whose scores are complete."""
        scores = pq.read_table(self.root / "scores" / f"date={date}")
        assert scores.column_names == ["day", "a", "b", "y", "prediction", "probability"]
        assert scores.num_rows == ROWS * len(DAYS)
        return json.loads((self.root / "runs" / date / "done.json").read_text())

    def stages(self, date: str = DAY) -> dict[str, Path]:
        """The files of the finished stages of a date."""
        files = (self.root / "runs" / date).glob("*/*.json")
        return {file.stem: file for file in files if file.parent.name != "attempts"}

    def written(self, date: str | None = None) -> dict[Path, int]:
        """When all files, or those of the finished stages of a date, were written."""
        paths = self.root.rglob("*") if date is None else self.stages(date).values()
        return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}
