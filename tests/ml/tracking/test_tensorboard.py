"""TensorBoard's event files, read by TensorBoard's own reader."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.tracking import MLflow, TensorBoard
from tests.ml.tracking.fake_run import FakeRun, epoch
from tests.object_store import object_store


def read(folder: object) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def curve(folder: object, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def shown(folder: object, tag: str) -> list[int]:
    """The steps that both of TensorBoard's servers show, the slow and the fast one."""
    slow = plugin_event_accumulator.EventAccumulator(str(folder), tensor_size_guidance={"scalars": 0}).Reload()
    unpurged = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    fast: list[int] = []
    for step in (event.step for event in unpurged.Scalars(tag)):  # a step that does not grow voids later ones
        fast = [*(earlier for earlier in fast if earlier < step), step]
    assert fast == [event.step for event in slow.Tensors(tag)]
    return fast


def text(folder: object, tag: str) -> str:
    return read(folder).Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


def write(folder: object, *rows: dict, restored: tuple = (), history: tuple | None = None, **ending: Any) -> None:
    run = FakeRun(TensorBoard(str(folder)))
    if restored:
        run.restored(*restored)
    run.rows(*rows)
    run.end((*restored, *rows) if history is None else history, **ending)


def test_numbers_of_rows_are_points_and_settings_are_texts(tmp_path):
    rows = [epoch(1, accuracy=0.25), epoch(2, accuracy=0.5)]
    run, folder = FakeRun(TensorBoard(), directory=str(tmp_path), loss="a|b\nc"), tmp_path / "tb"
    run.step(1, None)
    run.step(2, 0.5)
    run.rows(rows[0])
    assert curve(folder, "train/loss") == [(1, 1.0)]  # before the next row
    assert curve(folder / "steps", "step/loss") == [(2, 0.5)]
    run.step(5, 0.25)
    run.rows(rows[1])
    run.end(rows)
    names = {"train/loss": "loss", "train/accuracy": "accuracy", "valid/loss": "valid_loss"}
    names |= {f"run/{name}": name for name in ("step", "samples", "seconds", "rows_per_second")}
    assert set(read(folder).Tags()["scalars"]) == set(names)
    for tag, name in names.items():
        assert curve(folder, tag) == [(row["epoch"], row[name]) for row in rows]
    assert curve(folder / "steps", "step/loss") == [(2, 0.5), (5, 0.25)]
    assert curve(folder / "steps", "step/rows_per_second") == [(1, 64.0), (2, 64.0), (5, 64.0)]
    for line in ("| batchSize | 32 |", "| loss | a\\|b c |"):
        assert line in text(folder, "configuration")
    assert "| python | 3.11.7 |" in text(folder, "environment")
    assert "| verdict | Compute-bound. |" in text(folder, "report")
    assert "error" not in text(folder, "report")


MEMBERS = [tuple({"member": number, "epoch": 3, "loss": loss} for number in (0, 1)) for loss in (1.0, 2.0)]
NOT_FINITE = (epoch(1, math.nan), epoch(2, math.inf))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (
            [((epoch(1), epoch(2)), {}), ((epoch(3),), {"restored": (epoch(1), epoch(2))})],
            [(1, 1.0), (2, 0.5), (3, float(np.float32(1 / 3)))],
        ),
        ([(tuple(map(epoch, (1, 2, 3))), {}), ((epoch(1, 10.0), epoch(2, 20.0)), {})], [(1, 10.0), (2, 20.0)]),
        ([(rows, {}) for rows in MEMBERS], [(0, 2.0), (1, 2.0)]),
        ([((epoch(1), epoch(4)), {"history": (epoch(1), epoch(2), epoch(4))})], [(1, 1.0), (2, 0.5), (4, 0.25)]),
        ([((), {"history": (epoch(1), epoch(2))})] * 2, [(1, 1.0), (2, 0.5)]),
        ([(NOT_FINITE, {}), ((epoch(4),), {"restored": NOT_FINITE})], [(1, math.nan), (2, math.inf), (4, 0.25)]),
    ],
    ids=["resumed", "other run", "counts from zero", "lost events", "no step", "not finite"],
)
def test_each_row_is_shown_once(tmp_path, runs, expected):
    for rows, more in runs:
        write(tmp_path, *rows, **more)
    np.testing.assert_array_equal(curve(tmp_path, "train/loss"), expected)
    assert shown(tmp_path, "train/loss") == [number for number, _ in expected]
    assert "| batchSize | 32 |" in text(tmp_path, "configuration")


def test_run_that_fails_before_its_first_row_keeps_the_curves(tmp_path):
    write(tmp_path, epoch(1), epoch(2))
    FakeRun(TensorBoard(str(tmp_path)), batchSize=64).end(report=None, error="WorkerFailed: out of memory")
    assert shown(tmp_path, "train/loss") == [1, 2]
    assert "| batchSize | 64 |" in text(tmp_path, "configuration")
    assert "| error | WorkerFailed: out of memory |" in text(tmp_path, "report")
    write(tmp_path, epoch(3), restored=(epoch(1), epoch(2)))
    assert shown(tmp_path, "train/loss") == [1, 2, 3]


def test_repeated_rows_and_steps_replace_the_old_ones(tmp_path):
    # The driver was lost after the third row, and the newest checkpoint was of the second epoch.
    run = FakeRun(TensorBoard(str(tmp_path)))
    for step in (4, 5, 6, 5, 6):  # the second attempt repeats two steps
        run.step(step, step / 8)
    run.rows(epoch(1), epoch(2), epoch(3, seconds=0.5))
    assert shown(tmp_path / "steps", "step/loss") == [4, 5, 6]
    again = FakeRun(TensorBoard(str(tmp_path)))
    again.restored(epoch(1), epoch(2))
    again.step(5, 0.5, rate=32.0)
    again.step(7, 0.125)
    again.rows(epoch(3, seconds=0.75), epoch(4))
    again.end([epoch(1), epoch(2), epoch(3, seconds=0.75), epoch(4)])
    assert curve(tmp_path, "run/seconds") == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.5)]
    assert shown(tmp_path, "run/seconds") == [1, 2, 3, 4]
    assert curve(tmp_path / "steps", "step/loss") == [(4, 0.5), (5, 0.5), (7, 0.125)]
    assert shown(tmp_path / "steps", "step/loss") == [4, 5, 7]


def test_folder_on_an_object_store(tmp_path):
    with object_store(tmp_path / "store") as query:
        uri = f"s3://key:secret@runs/digits?{query}"
        for rows, restored in (((epoch(1), epoch(2)), ()), ((epoch(3),), (epoch(1), epoch(2)))):
            run = FakeRun(TensorBoard(), directory=uri)
            if restored:
                run.restored(*restored)
            run.step(2 * len(restored) + 1)
            run.rows(*rows)
            assert files.Folder.of(files.join(uri, "tb")).sizes("")  # the first row is there before the run ends
            run.end([*restored, *rows])
    folder = tmp_path / "store" / "runs" / "digits" / "tb"
    assert curve(folder, "train/loss") == [(1, 1.0), (2, 0.5), (3, float(np.float32(1 / 3)))]
    assert shown(folder, "train/loss") == [1, 2, 3]
    assert [step for step, _ in curve(folder / "steps", "step/loss")] == [1, 5]
    assert "secret" not in text(folder, "configuration")
    assert "| runDir | s3://runs/digits |" in text(folder, "configuration")


def test_invalid_folders_raise():
    for folder, message in ((None, "TensorBoard has no folder"), ("nowhere://folder", "nowhere://folder")):
        with pytest.raises(InvalidInput, match=message):
            FakeRun(TensorBoard(folder))


@pytest.mark.parametrize(
    ("module", "extra", "tracker"),
    [("torch.utils.tensorboard", "tensorboard", TensorBoard()), ("mlflow", "mlflow", MLflow())],
)
def test_missing_extra_raises_with_the_command_that_installs_it(tmp_path, monkeypatch, module, extra, tracker):
    monkeypatch.setitem(sys.modules, extra, None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    command = rf"{module} cannot be imported.*pip install 'sparkdl-torch\[{extra}\]'"
    with pytest.raises(InvalidInput, match=command):
        FakeRun(tracker, directory=str(tmp_path / "run"))
    assert not Path(tmp_path, "run").exists()
