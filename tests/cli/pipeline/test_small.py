"""The pipeline on a few rows with dates, in this process: what it makes of rows that change, and of files that go."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sparkdl.io import files
from sparkdl.ml.persistence.registry import Versions

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

DAYS = [f"2026-11-{day}" for day in range(17, 24)]
DAY, NEXT = "2026-11-22", "2026-11-23"
ROWS = 60  # a day


def write(path: Path, **columns: Any) -> None:
    """Rows of a week as Parquet, with columns in place of its own."""
    drawn = np.random.default_rng(0).normal(size=(ROWS * len(DAYS), 2))
    table = {"day": np.repeat(DAYS, ROWS), "a": drawn[:, 0], "b": drawn[:, 1], "y": (drawn.sum(1) > 0).astype(int)}
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table(table | columns), path / "part.parquet")


@dataclass(frozen=True)
class Small:
    """A pipeline in a folder."""

    folder: Path
    call: Any

    @property
    def versions(self) -> Versions:
        return Versions(str(self.folder / "root"))

    def run(self, *arguments: object, date: str = DAY) -> int:
        """Call the job and return its exit code."""
        linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
        inputs = {"inputCols": ["a", "b"], "outputCol": "features"}
        values = {
            "root": str(self.folder / "root"),
            "data": {"path": str(self.folder / "raw"), "format": "parquet"},
            "clean": {"label": "y"},
            "split": {"date": "day", "days": 2},
            "stages": [
                {"class_path": "pyspark.ml.feature.VectorAssembler", "init_args": inputs},
                {"class_path": "sparkdl.TorchClassifier", "init_args": {"model": linear, "epochs": 2, "batchSize": 32}},
            ],
            "evaluator": {"class_path": "pyspark.ml.evaluation.BinaryClassificationEvaluator"},
            "score": {"data": {"path": str(self.folder / "new"), "format": "parquet"}},
        }
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(values))
        return int(self.call("--config", file, "--date", date, *arguments))

    def stages(self, date: str = DAY) -> dict[str, Path]:
        """The files of the stages of a date that are over."""
        found = (self.folder / "root/runs" / date).glob("*/*.json")
        return {file.stem: file for file in found if file.parent.name != "attempts"}


@pytest.fixture
def small(tmp_path, call) -> Small:
    for name in ("raw", "new"):
        write(tmp_path / name)
    return Small(tmp_path, call)


def test_days_are_held_out_a_first_model_may_be_refused_and_scores_wait_for_their_rows(small, capsys):
    assert small.run("--gate.least", "1.1") == 3
    said = capsys.readouterr()
    assert f"{5 * ROWS - ROWS} rows to train on, {2 * ROWS} held out" in said.out  # the day after is left out
    assert f"the model of {DAY} is not published; none is in use" in said.err
    assert small.versions.current() is None
    assert not (small.folder / "root/scores").exists()

    (small.folder / "new/part.parquet").unlink()
    (small.folder / "new").rmdir()
    assert small.run("--gate.compare", "false", date=NEXT) == 4
    assert "PATH_NOT_FOUND" in capsys.readouterr().err
    published = small.versions.current()
    assert set(small.stages(NEXT)) == {"etl", "start", "train", "gate", "publish"}
    before = {file: file.stat().st_mtime_ns for file in small.stages(NEXT).values()}
    write(small.folder / "new")
    assert small.run("--gate.compare", "false", date=NEXT) == 0
    assert f"{ROWS * len(DAYS)} rows scored by {published}" in capsys.readouterr().out
    assert before == {file: file.stat().st_mtime_ns for file in before}
    assert (small.folder / f"root/scores/date={NEXT}/_SUCCESS").exists()


@pytest.mark.parametrize(
    ("columns", "code", "told"),
    [
        ({"y": np.full(ROWS * len(DAYS), 5)}, 2, "5"),  # a class that the network does not have
        ({"a": pa.nulls(ROWS * len(DAYS), pa.float64())}, 4, "null"),
        ({"a": np.repeat("x", ROWS * len(DAYS))}, 4, "type string of column a is not supported"),
    ],
    ids=["class", "nulls", "type"],
)
def test_raw_rows_that_are_mended_are_read_again(small, capsys, columns, code, told):
    write(small.folder / "raw", **columns)
    assert small.run() == code
    assert told in capsys.readouterr().err
    assert small.versions.current() is None
    write(small.folder / "raw")
    assert small.run() == 0, capsys.readouterr().err
    assert small.versions.current() is not None


def test_a_date_whose_version_was_pruned_before_its_gate_trains_again(small):
    assert small.run() == 0
    first = small.versions.current()
    for name in ("gate", "publish", "score"):
        small.stages()[name].unlink()
    (small.folder / f"root/runs/{DAY}/done.json").unlink()
    files.delete(f"{small.versions.root}/CURRENT")
    files.delete(f"{small.versions.root}/versions/{first}")
    assert small.run() == 0
    assert small.versions.current() not in (None, first)
    assert len(small.versions.names()) == 1


def test_what_a_killed_run_has_left_goes_with_the_end_of_its_date(small):
    assert small.run() == 0
    (small.folder / f"root/runs/{DAY}/done.json").unlink()  # killed at the very end
    left = [
        small.folder / f"root/versions/{DAY}-cafecafecafe-0000-12345678/model",
        small.folder / f"root/scores/_{DAY}-cafecafecafe-0000-12345678",
        small.folder / f"root/runs/{DAY}/cafecafecafe/data-0000-12345678",
    ]
    other = small.folder / f"root/versions/{NEXT}-cafecafecafe-0000-12345678/model"  # of a date that is not over
    for folder in (*left, other):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    published = small.versions.current()
    assert small.run() == 0
    assert not any(folder.exists() for folder in left)
    assert other.exists()
    assert small.versions.current() == published
    assert json.loads((small.folder / f"root/runs/{DAY}/done.json").read_text())["version"] == published
