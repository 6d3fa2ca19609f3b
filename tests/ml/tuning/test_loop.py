"""The loop of a search: what it trains, what a failure costs, and what a restarted driver does."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.errors import ClusterUnavailable, Fenced, InvalidInput, Stopped, WorkerFailed
from sparkdl.ml.tuning.loop import SearchLoop
from sparkdl.ml.tuning.number_range import Range
from sparkdl.ml.tuning.rung import RungWork, TrialCheckpoints
from sparkdl.ml.tuning.samplers import SuggestionRule
from sparkdl.ml.tuning.search_space import SearchSpace
from sparkdl.ml.tuning.successive_halving import Schedule, SuccessiveHalving
from sparkdl.ml.tuning.trial import Trial
from sparkdl.ml.tuning.trial_fits import RungResult
from sparkdl.ml.tuning.trial_table import TrialTable
from tests.faults import tear

SPACE = SearchSpace({"rate": Range(0.0, 1.0)})
HALVING = SuccessiveHalving()  # rungs 1, 3, 9

Events = list[tuple[int, int]]
"""Trials and the epochs that they trained, in order."""


@dataclass
class Fits:
    """Trials whose value after epoch e is the rate plus 1 / e; ``checkpoints`` outlive a driver."""

    checkpoints: dict[int, int]
    trained: Events
    fault: Callable[[Trial, int], Any] = lambda trial, epoch: None  # called before each epoch, and with 0 at the end
    patience: int | None = None
    lock: Any = field(default_factory=threading.Lock)

    def run(self, trial: Trial) -> RungResult:
        done = self.checkpoints.get(trial.number, 0)
        for epoch in range(done + 1, min(trial.rung, self.patience or trial.rung) + 1):
            self.fault(trial, epoch)
            with self.lock:
                self.trained.append((trial.number, epoch))
        end = self.checkpoints[trial.number] = max(done, min(trial.rung, self.patience or trial.rung))
        self.fault(trial, 0)
        history = [{"valid_loss": trial.params["rate"] + 1 / epoch} for epoch in range(1, end + 1)]
        return RungResult(history, 1.0, end, stopped=end < trial.rung)

    def model(self, trial: Trial) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def search(folder: Path | None, fits: Fits, *, trials: int = 9, threads: int = 1, **options: Any) -> SearchLoop:
    """Run a search in threads, as a driver does, which may have stopped before."""
    schedule = Schedule(trials, 9, "min", options.pop("halving", HALVING))
    table = None if folder is None else TrialTable(str(folder))
    settings = {"failures": 3, "deadline": math.inf, "notify": lambda *_: None, "call_spark": lambda: None, **options}
    earlier = {} if table is None else table.begin({"rows": "9 rows"})
    rule = SuggestionRule(options.get("space", SPACE), "random", 0, "min")
    settings.pop("space", None)
    loop = SearchLoop(rule, schedule, fits, table, monitor=None, trials=earlier, **settings)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            loop()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return loop


def quiet() -> SearchLoop:
    return search(None, Fits({}, []))


@pytest.mark.parametrize("threads", [1, 3])
def test_each_epoch_of_a_trial_trains_once(threads):
    fits = Fits({}, [])
    rows = search(None, fits, trials=27, threads=threads).rows
    assert len({*fits.trained}) == len(fits.trained) == sum(len(trial.history) for trial in rows) < 27 * 9 * 0.4
    best = min(rows, key=lambda trial: trial.params["rate"])
    assert (best.state, best.rung) == ("finished", 9)
    assert best.values == {rung: pytest.approx(best.params["rate"] + 1 / rung) for rung in (1, 3, 9)}
    assert {trial.state for trial in rows} == {"finished", "paused"}


class Killed(BaseException):
    """Ends the driver at once."""


@pytest.mark.parametrize(
    "moment", ["in a rung", "after a rung", "between checkpoint and table", "before the first row"]
)
def test_a_driver_that_is_killed_continues_without_training_twice(tmp_path, monkeypatch, moment):
    calm, checkpoints, trained = quiet(), dict[int, int](), Events()
    write, rows = TrialTable.write, []

    def killing(trial: Trial, epoch: int) -> None:
        at = {"in a rung": (3, 3), "between checkpoint and table": (3, 0)}
        if (trial.rung, epoch) == at.get(moment):
            raise Killed

    def writing(table: TrialTable, trial: Trial) -> None:
        if moment == "before the first row" and not rows:
            rows.append(trial)
            raise Killed
        write(table, trial)
        rows.append(trial)
        if moment == "after a rung" and trial.state == "paused" and trial.rung == 3 and len(rows) < 99:
            rows.extend([trial] * 99)
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrialTable, "write", writing)
        with pytest.raises(Killed):
            search(tmp_path, Fits(checkpoints, trained, killing))
    again = search(tmp_path, Fits(checkpoints, trained))
    assert [(trial.params, trial.state, trial.values) for trial in again.rows] == [
        (trial.params, trial.state, trial.values) for trial in calm.rows
    ]
    assert again.best().number == calm.best().number
    repeated = len(trained) - len({*trained})
    assert repeated == (1 if moment == "in a rung" else 0)  # the epoch of the rung that no checkpoint has
    more = search(tmp_path, Fits(checkpoints, trained), trials=12)
    assert [trial.number for trial in more.rows] == [*range(12)]
    assert len(trained) - len({*trained}) == repeated


def test_damaged_rows_start_again(tmp_path):
    checkpoints, trained = dict[int, int](), Events()
    calm = search(tmp_path, Fits(checkpoints, trained)).rows
    tear(tmp_path / "trials/00004.json")
    (tmp_path / "trials/00002.json").unlink()
    del checkpoints[2], checkpoints[4]
    with pytest.warns(RuntimeWarning, match=r"trial [24] in .* is missing or damaged; it starts again"):
        again = search(tmp_path, Fits(checkpoints, trained)).rows
    assert [trial.params for trial in again] == [trial.params for trial in calm]
    # A folder without its file is what is left of a trial; a driver that was lost may leave one.
    (tmp_path / "trials/00009").mkdir()
    with pytest.warns(RuntimeWarning, match="trial 9 in .* is missing or damaged"):
        assert TrialTable(str(tmp_path)).begin({"rows": "9 rows"}).keys() == {*range(9)}
    assert not (tmp_path / "trials/00009").exists()
    with pytest.raises(InvalidInput, match=r"the trials of another search; .* rows was .9 rows. and is .8 rows"):
        TrialTable(str(tmp_path)).begin({"rows": "8 rows"})


def test_a_second_search_fences_the_first(tmp_path):
    def second(trial: Trial, epoch: int) -> None:
        if trial.number == 3 and epoch == 1:
            search(tmp_path, Fits({}, []))

    with pytest.raises(Fenced, match="another fit has begun to store trials in"):
        search(tmp_path, Fits({}, [], second))


def test_a_directory_that_a_task_does_not_see_ends_the_search(tmp_path):
    saved = TrialCheckpoints(
        TrialTable(str(tmp_path)), Checkpoints(str(tmp_path / "checkpoints"), "run"), CheckpointInterval.of("auto")
    )
    work: Any = RungWork(None, saved, weights=False)  # type: ignore[arg-type] - it raises before
    with pytest.raises(ClusterUnavailable, match=r"does not share the driver's directory .* set runDir to a directory"):
        work.map(0, None)


def test_a_trial_that_fails_is_a_row():
    def failing(trial: Trial, epoch: int) -> None:
        if trial.number in (1, 4):
            raise WorkerFailed("no memory")

    rows = search(None, Fits({}, [], failing)).rows
    assert [trial.number for trial in rows if trial.state == "failed"] == [1, 4]
    assert rows[1].error == "WorkerFailed: no memory"


def test_errors_that_end_a_search(tmp_path):
    def raising(error: BaseException, number: int = 0) -> Callable[[Trial, int], None]:
        def fault(trial: Trial, epoch: int) -> None:
            if trial.number >= number:
                raise error

        return fault

    # A failure of others does not end a search whose first trial still runs.
    def others(trial: Trial, epoch: int) -> None:
        if trial.number > 0:
            failed.append(trial.number)
            raise WorkerFailed("not the first")
        while len(failed) < 4:
            time.sleep(0.001)

    failed = list[int]()
    assert search(None, Fits({}, [], others), threads=2, trials=5).best().number == 0
    fits = Fits({}, [], raising(WorkerFailed("the same for all")))
    with pytest.raises(WorkerFailed, match="the same for all"):
        search(tmp_path / "all", fits)
    assert len([*(tmp_path / "all/trials").glob("*.json")]) == 3
    with pytest.raises(WorkerFailed, match="the same"):
        search(None, fits, trials=2).best()
    with pytest.raises(ClusterUnavailable):
        search(None, Fits({}, [], raising(ClusterUnavailable("no slots"))))
    cancelled = WorkerFailed("[SPARK_JOB_CANCELLED] Job 7 cancelled by the user")
    with pytest.raises(Stopped, match="the user cancelled"):
        search(None, Fits({}, [], raising(cancelled)))

    def gone() -> None:
        raise ConnectionError("Spark is gone")

    with pytest.raises(ConnectionError):
        search(tmp_path / "gone", Fits({}, [], raising(WorkerFailed("lost"), number=2)), call_spark=gone)
    assert [trial.state for trial in search(tmp_path / "gone", Fits({}, [])).rows].count("failed") == 0
    with pytest.raises(InvalidInput, match="the loss of every trial is NaN"):
        search(None, NotANumber({}, []), trials=2).best()


class NotANumber(Fits):
    def run(self, trial: Trial) -> RungResult:
        return RungResult([{"valid_loss": math.nan}], 1.0, None, stopped=False)


def test_a_stop_request_ends_the_search_and_it_continues(tmp_path):
    checkpoints, trained = dict[int, int](), Events()

    def stopping(trial: Trial, epoch: int) -> None:
        if trial.number == 2:
            request_stop("SIGTERM")

    try:
        with pytest.raises(Stopped, match=r"had not finished its trials. The same fit continues the search"):
            search(tmp_path, Fits(checkpoints, trained, stopping))
    finally:
        forget_stop()
    assert [row.values for row in search(tmp_path, Fits(checkpoints, trained)).rows] == [
        row.values for row in quiet().rows
    ]
    assert len(trained) == len({*trained})


def test_after_max_seconds_nothing_starts():
    loop = search(None, Fits({}, []), deadline=-math.inf)
    assert loop.rows == []
    with pytest.raises(InvalidInput, match="no trial began before maxSeconds"):
        loop.best()


def test_values_of_the_last_and_of_the_best_epoch_and_of_stopped_trials():
    stopped = search(None, Fits({}, [], patience=2), trials=1).rows[0]
    rate = stopped.params["rate"]
    assert (stopped.state, len(stopped.history)) == ("finished", 2)
    assert stopped.values == {1: rate + 1, 3: rate + 0.5, 9: rate + 0.5}
    worse = [{"valid_loss": 1.0}, {"valid_loss": math.nan}, {"valid_loss": 2.0}]

    class Worse(Fits):
        def run(self, trial: Trial) -> RungResult:
            return RungResult.of(worse, report, 0.0, None)

    for keeps_best, value in ((True, 1.0), (False, 2.0)):
        report = {"best_epoch": 1, "keeps_best": keeps_best}
        [row] = search(None, Worse({}, []), trials=1, halving=None).rows
        assert row.value == value
