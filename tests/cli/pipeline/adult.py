"""The pipeline on UCI's Adult: its configuration with places below a folder, runs of it, and what they leave."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from sparkdl.ml.persistence.registry import Versions
from tests.rounds.data import real
from tests.sessions import ROOT
from tests.training.test_digits import IN_DRIVER, finish, submit

CONFIG = ROOT / "conf/train/adult.yaml"
MODULES = (ROOT / "examples/adult_net.py", ROOT / "tests/cli/pipeline/faulty.py")
DAY = "2026-11-22"
SCORED = 16281


@dataclass(frozen=True)
class Adult:
    """A pipeline in a folder.

    Attributes:
        folder: for all of it.
        options: of spark-submit; by default members are in the driver's JVM, which is quicker to start.
    """

    folder: Path
    options: tuple[str, ...] = IN_DRIVER

    @property
    def root(self) -> Path:
        """Where the pipeline leaves what it leaves."""
        return self.folder / "root"

    @property
    def versions(self) -> Versions:
        """The published models."""
        return Versions(str(self.root))

    def configured(self, stages: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
        """A configuration file: that of conf/train/adult.yaml, with changes.

        Args:
            stages: to be put before the others.
            changes: of the estimator's arguments, or of whole keys where there are such.
        """
        values = yaml.safe_load(CONFIG.read_text())
        values["root"] = str(self.root)
        values["data"]["path"] = str(real("adult.data"))
        values["score"]["data"]["path"] = str(real("adult.test"))
        network = values["stages"][-1]["init_args"]
        network["epochs"] = 3
        for name, value in changes.items():
            (values if name in values else network)[name] = value
        values["stages"][:0] = stages or []
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    def start(self, *arguments: object, date: str = DAY) -> Any:
        """Start the configured pipeline by spark-submit."""
        config = ("--config", self.folder / "pipeline.yaml", "--date", date)
        return submit(
            "etl_train", *config, *arguments, local=self.folder / "local", modules=MODULES, options=self.options
        )

    def run(self, *arguments: object, date: str = DAY) -> tuple[str, int]:
        """Run it: what it has printed, and its exit code."""
        return finish(self.start(*arguments, date=date))

    def done(self, date: str = DAY) -> dict[str, Any]:
        """How a date ended."""
        found: dict[str, Any] = json.loads((self.root / "runs" / date / "done.json").read_text())
        return found

    def stages(self, date: str = DAY) -> set[str]:
        """The stages of a date that are done."""
        return {file.stem for file in (self.root / "runs" / date).glob("*/*.json") if file.parent.name != "attempts"}

    def scored(self, date: str = DAY) -> list[str] | None:
        """The columns of a date's scores, which are all there; None where there are none."""
        folder = self.root / "scores" / f"date={date}"
        if not folder.exists():
            return None
        assert (folder / "_SUCCESS").exists()
        files = sorted(folder.glob("*.parquet"))
        assert sum(pq.read_metadata(file).num_rows for file in files) == SCORED
        return list(pq.read_schema(files[0]).names)

    def files(self) -> dict[str, int]:
        """All files, and when they were written."""
        return {str(path): path.stat().st_mtime_ns for path in self.root.rglob("*") if path.is_file()}
