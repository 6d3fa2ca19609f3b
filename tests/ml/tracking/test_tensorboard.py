"""TensorBoard's event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.tracking import TensorBoard
from tests.ml.tracking.events_told import Told, epoch
from tests.object_store import object_store
from tests.sessions import ROOT


@pytest.fixture(autouse=True)
def _no_hook_fails():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* failed: ")
        yield


def read(folder: object) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def curve(folder: object, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def shown(folder: object, tag: str) -> list[int]:
    """The steps that both of TensorBoard's servers show, the slow and the fast one."""
    slow = plugin_event_accumulator.EventAccumulator(str(folder), tensor_size_guidance={"scalars": 0}).Reload()
    lying = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    fast: list[int] = []
    for step in (event.step for event in lying.Scalars(tag)):  # a step that does not grow voids those from it
        fast = [*(each for each in fast if each < step), step]
    assert fast == [event.step for event in slow.Tensors(tag)]
    return fast


def text(folder: object, tag: str) -> str:
    return read(folder).Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


def tell(folder: object, *rows: dict, restored: tuple = (), history: tuple | None = None) -> None:
    """A whole run of rows."""
    run = Told(TensorBoard(str(folder)))
    if restored:
        run.restored(*restored)
    run.rows(*rows)
    run.end((*restored, *rows) if history is None else history)


def test_every_number_of_a_row_is_a_point_of_its_epoch(tmp_path):
    rows = [epoch(1, accuracy=0.25), epoch(2, accuracy=0.5)]
    run = Told(TensorBoard(), directory=str(tmp_path))
    run.rows(*rows)
    run.end(rows)
    found = read(tmp_path / "tb")
    names = {"train/loss": "loss", "train/accuracy": "accuracy", "valid/loss": "valid_loss"}
    names |= {f"run/{name}": name for name in ("step", "samples", "seconds", "rows_per_second")}
    assert set(found.Tags()["scalars"]) == set(names)
    for tag, name in names.items():
        assert curve(tmp_path / "tb", tag) == [(row["epoch"], row[name]) for row in rows]


def test_rounds_are_told_by_their_number_and_statuses_and_limits_left_out(tmp_path):
    rows = [{"round": number, "primal": 1 / number, "status": "going", "seconds": 1.0} for number in (1, 2)]
    run = Told(TensorBoard(str(tmp_path)))
    run.rows(*({**row, "rounds": 5} for row in rows))
    run.end(rows)
    assert curve(tmp_path, "train/primal") == [(1, 1.0), (2, 0.5)]
    assert set(read(tmp_path).Tags()["scalars"]) == {"train/primal", "run/seconds"}


def test_metrics_of_several_numbers_are_several_curves(tmp_path):
    tell(tmp_path, epoch(1, valid_recall=[0.25, 0.5], range={"min": 0.0, "max": 2.0}, valid_table=[[1, 2], [3, 4]]))
    found = {"valid/recall/0": 0.25, "valid/recall/1": 0.5, "train/range/min": 0.0, "train/range/max": 2.0}
    assert {tag: curve(tmp_path, tag) for tag in found} == {tag: [(1, value)] for tag, value in found.items()}
    assert not [tag for tag in read(tmp_path).Tags()["scalars"] if "table" in tag]


def test_what_a_gang_tells_on_its_way_is_a_curve_by_step(tmp_path):
    run = Told(TensorBoard(str(tmp_path)))
    run.step(1, None)
    run.step(2, 0.5)
    run.step(5, 0.25)
    run.end()
    assert curve(tmp_path / "steps", "step/loss") == [(2, 0.5), (5, 0.25)]
    assert curve(tmp_path / "steps", "step/rows_per_second") == [(1, 64.0), (2, 64.0), (5, 64.0)]


def test_a_row_can_be_seen_before_the_next_one_comes(tmp_path):
    run = Told(TensorBoard(str(tmp_path)))
    run.step(1, 0.75)
    run.rows(epoch(1))
    assert curve(tmp_path, "train/loss") == [(1, 1.0)]
    assert curve(tmp_path / "steps", "step/loss") == [(1, 0.75)]
    run.end()


def test_configuration_environment_and_report_are_texts(tmp_path):
    run = Told(TensorBoard(str(tmp_path)), loss="a|b\nc")
    run.rows(epoch(1))
    run.end()
    assert "| batchSize | 32 |" in text(tmp_path, "configuration")
    assert "| loss | a\\|b c |" in text(tmp_path, "configuration")
    assert "| python | 3.11.7 |" in text(tmp_path, "environment")
    assert "| verdict | Compute-bound. |" in text(tmp_path, "report")
    assert "error" not in text(tmp_path, "report")


def test_a_run_that_failed_says_why(tmp_path):
    run = Told(TensorBoard(str(tmp_path)))
    run.rows(epoch(1))
    run.end(report=None, error="WorkerFailed: out of memory")
    assert "| error | WorkerFailed: out of memory |" in text(tmp_path, "report")
    assert curve(tmp_path, "train/loss") == [(1, 1.0)]


def test_a_run_that_resumes_shows_each_row_once(tmp_path):
    tell(tmp_path, epoch(1), epoch(2))
    tell(tmp_path, epoch(3), restored=(epoch(1), epoch(2)))
    assert shown(tmp_path, "train/loss") == [1, 2, 3]
    assert curve(tmp_path, "valid/loss") == [(1, 2.0), (2, 1.0), (3, np_float(2 / 3))]


def test_a_run_that_fails_before_its_first_row_keeps_the_curves_and_says_why(tmp_path):
    tell(tmp_path, epoch(1), epoch(2))
    run = Told(TensorBoard(str(tmp_path)), batchSize=64)
    run.end(report=None, error="WorkerFailed: out of memory")
    assert shown(tmp_path, "train/loss") == [1, 2]
    assert "| batchSize | 64 |" in text(tmp_path, "configuration")
    assert "| error | WorkerFailed: out of memory |" in text(tmp_path, "report")
    tell(tmp_path, epoch(3), restored=(epoch(1), epoch(2)))
    assert shown(tmp_path, "train/loss") == [1, 2, 3]


def test_a_row_that_is_done_again_takes_the_place_of_the_old_one(tmp_path):
    # The driver was lost after the third row was told, and the newest checkpoint was of the second epoch's end.
    run = Told(TensorBoard(str(tmp_path)))
    run.step(5, 0.5)
    run.step(6, 0.25)
    run.rows(epoch(1), epoch(2), epoch(3, seconds=0.5))
    again = Told(TensorBoard(str(tmp_path)))
    again.restored(epoch(1), epoch(2))
    again.step(5, 0.5, rate=32.0)
    again.step(7, 0.125)
    again.rows(epoch(3, seconds=0.75), epoch(4))
    again.end([epoch(1), epoch(2), epoch(3, seconds=0.75), epoch(4)])
    assert curve(tmp_path, "run/seconds") == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.5)]
    assert shown(tmp_path, "run/seconds") == [1, 2, 3, 4]
    assert curve(tmp_path / "steps", "step/loss") == [(5, 0.5), (7, 0.125)]
    assert shown(tmp_path / "steps", "step/loss") == [5, 7]


def test_another_run_in_the_same_folder_takes_the_place_of_the_first(tmp_path):
    tell(tmp_path, *(epoch(number) for number in (1, 2, 3)))
    tell(tmp_path, epoch(1, 10.0), epoch(2, 20.0))
    assert curve(tmp_path, "train/loss") == [(1, 10.0), (2, 20.0)]
    assert shown(tmp_path, "train/loss") == [1, 2]


def test_another_run_that_counts_from_zero_takes_the_place_of_the_first_and_keeps_the_texts(tmp_path):
    for loss in (1.0, 2.0):
        tell(tmp_path, *({"member": number, "loss": loss} for number in (0, 1)))
    assert curve(tmp_path, "train/loss") == [(0, 2.0), (1, 2.0)]
    assert shown(tmp_path, "train/loss") == [0, 1]
    assert "| batchSize | 32 |" in text(tmp_path, "configuration")


def test_steps_that_another_attempt_takes_again_are_shown_once(tmp_path):
    run = Told(TensorBoard(str(tmp_path)))
    for step in (1, 2, 3, 2, 3, 4):
        run.step(step, step / 8)
    run.end()
    assert curve(tmp_path / "steps", "step/loss") == [(step, step / 8) for step in (1, 2, 3, 4)]
    assert shown(tmp_path / "steps", "step/loss") == [1, 2, 3, 4]


def test_rows_that_were_lost_on_the_way_come_in_their_order_at_the_end(tmp_path):
    rows = [epoch(number) for number in (1, 2, 3, 4)]
    tell(tmp_path, rows[0], rows[2], history=tuple(rows))
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [1, 2, 3, 4]
    assert shown(tmp_path, "train/loss") == [1, 2, 3, 4]


def test_a_fit_that_takes_no_step_shows_its_rows_once(tmp_path):
    rows = (epoch(1), epoch(2))
    tell(tmp_path, history=rows)
    tell(tmp_path, history=rows)
    assert shown(tmp_path, "train/loss") == [1, 2]


def test_a_file_that_was_cut_short_by_a_kill_is_gone_on_from(tmp_path):
    tell(tmp_path, epoch(1), epoch(2))
    (path,) = tmp_path.glob("events*")
    whole = path.read_bytes()
    tell(tmp_path / "one", epoch(1))
    path.write_bytes(whole[: len(whole) * 3 // 4])
    kept = len(curve(tmp_path, "train/loss"))
    assert kept < 3
    tell(tmp_path, epoch(3), restored=(epoch(1), epoch(2)))
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [1, 2, 3]


def test_numbers_that_are_not_finite_are_points(tmp_path):
    tell(tmp_path, epoch(1, math.nan), epoch(2, math.inf))
    tell(tmp_path, epoch(3), restored=(epoch(1, math.nan), epoch(2, math.inf)))
    assert shown(tmp_path, "train/loss") == [1, 2, 3]


def test_a_folder_on_an_object_store_has_what_a_local_one_has(tmp_path):
    with object_store(tmp_path / "store") as query:
        uri = f"s3://key:secret@runs/digits?{query}"
        for rows, restored in (((epoch(1), epoch(2)), ()), ((epoch(3),), (epoch(1), epoch(2)))):
            run = Told(TensorBoard(), directory=uri)
            if restored:
                run.restored(*restored)
            run.step(2 * len(restored) + 1)
            run.rows(*rows)
            assert files.Folder.of(files.join(uri, "tb")).sizes("")  # the first row is there before the run ends
            run.end([*restored, *rows])
    folder = tmp_path / "store" / "runs" / "digits" / "tb"
    assert curve(folder, "train/loss") == [(1, 1.0), (2, 0.5), (3, np_float(1 / 3))]
    assert shown(folder, "train/loss") == [1, 2, 3]
    assert [step for step, _ in curve(folder / "steps", "step/loss")] == [1, 5]
    assert "secret" not in text(folder, "configuration")
    assert "| runDir | s3://runs/digits |" in text(folder, "configuration")


def test_a_run_that_has_nowhere_to_write_is_refused():
    with pytest.raises(InvalidInput, match="TensorBoard has no folder, and the run no runDir; expected one of the two"):
        Told(TensorBoard())


def test_a_folder_that_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match="nowhere://folder"):
        Told(TensorBoard("nowhere://folder"))


def test_one_object_serves_two_runs_at_a_time(tmp_path):
    hook = TensorBoard()
    runs = [Told(hook, directory=str(tmp_path / name)) for name in ("a", "b")]
    for number in (1, 2):
        for factor, run in enumerate(runs, 1):
            run.rows(epoch(number, factor / number))
    for run in runs:
        run.end()
    assert curve(tmp_path / "a" / "tb", "train/loss") == [(1, 1.0), (2, 0.5)]
    assert curve(tmp_path / "b" / "tb", "train/loss") == [(1, 2.0), (2, 1.0)]


@pytest.mark.parametrize("missing", ["tensorboard", "mlflow"])
def test_an_extra_that_is_missing_is_refused_with_the_command_that_installs_it(missing, tmp_path):
    script = f"""
import sys
sys.modules[{missing!r}] = None
from sparkdl import MLflow, TensorBoard
from sparkdl.ml.tracking.tracker import DriverHooks, TrackerContext
hook = {{"tensorboard": TensorBoard, "mlflow": MLflow}}[{missing!r}]()
DriverHooks([hook], TrackerContext("run", {str(tmp_path / "run")!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"InvalidInput: {'torch.utils.' * (missing == 'tensorboard')}{missing} cannot be imported" in done.stderr
    assert f"pip install 'sparkdl-torch[{missing}]'" in done.stderr
    assert not Path(tmp_path, "run").exists()


def np_float(value: float) -> float:
    """The number as event files keep it."""
    import numpy as np

    return float(np.float32(value))
