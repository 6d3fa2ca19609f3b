"""The table of trials, a file for each: the only state of a search.

<runDir>/search.json               what the trials depend on: space, estimator, sampler, rungs and rows
<runDir>/visible-<token>           present while the search runs, see ``ConfiguredDirectory``
<runDir>/trials/00012.json         a trial: written before it starts, and after each rung
<runDir>/trials/00012/             the directory of its run, with its newest checkpoint
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.files import Folder
from sparkdl.ml.trials.configured_directory import ConfiguredDirectory
from sparkdl.ml.tuning.trial import Trial


@dataclass(frozen=True)
class TrialTable(ConfiguredDirectory):
    """The files of a search."""

    title: ClassVar[str] = "search"
    content: ClassVar[str] = "trials"
    version: ClassVar[int] = 1

    def begin(
        self, configuration: Mapping[str, Any], more: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    ) -> dict[int, Trial]:
        """``configure`` for the stored trials, and read them, by number.

        A damaged file, and a missing one of a lower number, is a trial that starts again, with a warning.
        """
        numbers = self._numbers()  # also of folders whose file is gone
        self.configure(configuration, [*map(_name, numbers)], more)
        trials = {number: trial for number in numbers if (trial := self._read_trial(number)) is not None}
        for number in sorted({*range(max(numbers, default=-1) + 1)} - {*trials}):
            warnings.warn(
                f"trial {number} in {self.folder.path} is missing or damaged; it starts again.", RuntimeWarning, 3
            )
            files.delete(self.run_directory(number))
        return trials

    def write(self, trial: Trial) -> None:
        """Write a trial, on the driver; raises the errors of ``check_writable``."""
        self.check_writable()
        self.folder.write(f"{self.content}/{_name(trial.number)}.json", (json.dumps(vars(trial)) + "\n").encode())

    def run_directory(self, number: int) -> str:
        """The directory of a trial's run."""
        return files.join(self.directory, f"{self.content}/{_name(number)}")

    def _numbers(self) -> list[int]:
        folder = Folder(self.folder.system, self.folder.at(self.content))
        matches = (re.fullmatch(r"(\d{5,})(?:\.json)?", name) for name in (*folder.sizes(""), *folder.folders()))
        return sorted({int(match[1]) for match in matches if match})

    def _read_trial(self, number: int) -> Trial | None:
        try:
            row = json.loads(self.folder.read(f"{self.content}/{_name(number)}.json"))
            trial = Trial(**{**row, "values": {int(rung): value for rung, value in row["values"].items()}})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, InvalidInput):
            return None
        return trial if trial.number == number else None


def _name(number: int) -> str:
    return f"{number:05d}"
