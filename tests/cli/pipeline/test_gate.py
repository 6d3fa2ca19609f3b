"""The gate, the ledger and the fingerprint of a date, without Spark."""

from __future__ import annotations

import math
import shutil
from functools import partial

import pytest

from sparkdl.checkpoint.fencing import Attempts
from sparkdl.cli.exit_codes import Superseded
from sparkdl.cli.pipeline import stage_log
from sparkdl.cli.pipeline.gate import Gate
from sparkdl.cli.pipeline.job import fingerprint, summary
from sparkdl.cli.pipeline.stage_log import Ledger
from sparkdl.errors import Fenced, InvalidInput
from sparkdl.io import files
from sparkdl.io.files import Folder
from sparkdl.ml.persistence.registry import Versions

NAN = math.nan


@pytest.mark.parametrize(
    ("gate", "value", "in_use", "larger", "failure"),
    [
        ({}, 0.9, None, True, None),
        ({}, 0.9, 0.9, True, None),
        ({}, 0.89, 0.9, True, "0.89 < 0.9: the model in use has 0.9, the margin is 0"),
        ({"margin": 0.125}, 0.625, 0.75, True, None),
        ({"margin": 0.125}, 0.5, 0.75, True, "0.5 < 0.625: the model in use has 0.75, the margin is 0.125"),
        ({"margin": 0.01}, 0.9, 0.95, True, "0.9 < 0.94: the model in use has 0.95, the margin is 0.01"),
        ({"least": 0.8}, 0.79, None, True, "0.79 < 0.8, the gate's least"),
        ({"least": 0.8}, 0.8, None, True, None),
        ({"least": 0.8, "margin": 1.0}, 0.79, 0.7, True, "0.79 < 0.8, the gate's least"),
        ({}, 0.5, 0.4, False, "0.5 > 0.4: the model in use has 0.4, the margin is 0"),
        ({"margin": 0.2}, 0.5, 0.4, False, None),
        ({"least": 0.3}, 0.4, None, False, "0.4 > 0.3, the gate's least"),
        ({"least": 0.3}, 0.2, None, False, None),
        ({}, NAN, None, True, "it is NaN"),
        ({}, 0.5, NAN, True, None),
    ],
)
def test_rejection_has_the_value_and_the_bound(gate, value, in_use, larger, failure):
    assert Gate(**gate).failure(value, in_use, larger=larger) == failure
    metrics = {"accuracy": {"value": value, "in_use": in_use, "passed": failure is None, "reason": failure}}
    done = {"version": "v2", "current": "v1", "passed": failure is None, "published": failure is None, "scores": None}
    assert summary({**done, "metrics": metrics}).endswith(f" failed: {failure}") is (failure is not None)


# ---- the ledger -------------------------------------------------------------------------------------------------


def test_stage_runs_once_until_forgotten_or_without_files(tmp_path):
    rows = ({"rows": number} for number in range(9))
    work = partial(next, rows)
    first = Ledger.open(str(tmp_path), "c")
    with pytest.raises(StopIteration):
        first.stage("etl", partial(next, iter([])))
    assert first.stage("etl", work) == first.stage("etl", work) == {"rows": 0}
    again = Ledger.open(str(tmp_path), "c")
    assert again.stage("etl", work) == {"rows": 0}
    assert (first.run[:5], again.run[:5]) == ("0000-", "0001-")
    assert Ledger.open(str(tmp_path), "d").stage("etl", work) == {"rows": 1}
    last = Ledger.open(str(tmp_path), "c")
    assert last.stage("etl", work, lambda result: result["rows"] > 0) == {"rows": 2}
    assert last.stage("etl", work, lambda result: result["rows"] > 0) == {"rows": 2}
    last.forget("etl")
    assert not last.noted("etl")
    assert last.stage("etl", work) == {"rows": 3}


def test_runs_opening_a_date_at_once_share_no_name(tmp_path, monkeypatch):
    """Both have seen no run before them: the first to write is the one that is taken over."""
    with monkeypatch.context() as patch:
        patch.setattr(stage_log.Attempts, "announced", lambda attempts: [])
        first, second = (Ledger.open(str(tmp_path), "c") for _ in range(2))
    assert first.number == second.number
    assert first.run != second.run
    second.check()
    with pytest.raises(Superseded):
        first.check()


def test_run_announced_in_between_takes_over(tmp_path, monkeypatch):
    announced, runs = stage_log.Attempts.announced, iter([1])

    def late(attempts: object) -> list[int]:
        numbers = announced(attempts)
        if next(runs, None):
            Ledger.open(str(tmp_path), "c")
        return numbers

    monkeypatch.setattr(stage_log.Attempts, "announced", late)
    with pytest.raises(Superseded, match="another run of this date has taken over"):
        Ledger.open(str(tmp_path), "c")


def test_later_run_takes_over(tmp_path):
    first, opened = Ledger.open(str(tmp_path), "c"), []

    def taken_over() -> dict[str, int]:
        opened.append(Ledger.open(str(tmp_path), "c"))
        return {"rows": 1}

    writes = (first.check, lambda: first.stage("etl", dict), lambda: first.close({}))
    for late in (lambda: first.stage("etl", taken_over), *writes):
        with pytest.raises(Superseded, match=r"another run of this date has taken over: .*attempt 1"):
            late()
    assert not (tmp_path / "c" / "etl.json").exists()
    assert Ledger.done(str(tmp_path)) is None
    (second,) = opened
    assert second.stage("etl", lambda: {"rows": 3}) == {"rows": 3}
    assert first.stage("etl", dict) == {"rows": 3}  # a superseded run may still read
    result = {"version": "v", "configuration": "c", "metrics": {}, "passed": True, "published": False}
    second.close(result)
    assert Ledger.done(str(tmp_path)) == result
    shutil.rmtree(tmp_path)
    with pytest.raises(Fenced, match="something deleted or replaced the directory"):
        second.check()


DAMAGED = (b"", b'{"fate"', b"[]", b'"text"', b"3", b"null", b"{}", b'{"run": 1, "at": "now"}', b"\xff", b"[" * 100_000)
READERS = {
    "versions/v/fate.json": lambda folder: Versions(folder).prune(1),
    "versions/v/version.json": lambda folder: Versions(folder).about("v"),
    "done.json": Ledger.done,
    "c/etl.json": lambda folder: Ledger.open(folder, "c").stage("etl", dict, lambda result: result["train"]["rows"]),
    "attempts/0000.json": lambda folder: Attempts(Folder.of(folder), "pipeline", "w").check(0),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_named(name, tmp_path):
    for content in DAMAGED:
        files.write(str(tmp_path / name), content)
        with pytest.raises(InvalidInput, match=rf"{name} is damaged \(.*[Dd]elete"):
            READERS[name](str(tmp_path))


# ---- the identity of a run --------------------------------------------------------------------------------------

STAGES = "{{stages: [{{class_path: a, init_args: {{epochs: {}, numWorkers: {}, maxRestarts: {}}}}}]}}"
AVERAGED = (
    "{{stages: [{{class_path: a, init_args: {{callbacks: [{{class_path: sparkdl.EMA, init_args: {{decay: {}}}}}, "
    "{{class_path: {}}}]}}}}]}}"
)
BASE = "{{class_path: b, init_args: {{epochs: {}, numWorkers: {}}}}}"
NESTED = "{{stages: [{{class_path: a, init_args: {{base: BASE, bases: [BASE]}}}}]}}".replace("BASE", BASE)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("{data: {path: a}, keep: 5, root: /tmp, date: 2026-11-22}", "{data: {path: a}, keep: 3, root: x}", True),
        ("{data: {path: a}}", "{data: {path: a}, register: {name: week}}", True),
        ("{data: {path: a}}", "{data: {path: b}}", False),
        ("{data: {path: a}}", "{data: {path: a}, clean: {columns: {events: 1}}}", False),  # a column, and no Param
        (STAGES.format(3, 2, 1), STAGES.format(3, 8, 5), True),
        (STAGES.format(3, 2, 1), STAGES.format(4, 2, 1), False),
        *(
            (AVERAGED.format(0.9, "json.JSONDecoder"), AVERAGED.format(*other), other[0] == 0.9)
            for other in ((0.9, "json.JSONEncoder"), (0.5, "json.JSONDecoder"))
        ),
        (NESTED.format(3, 2, 3, 2), NESTED.format(3, 4, 3, 8), True),
        (NESTED.format(3, 2, 3, 2), NESTED.format(3, 2, 4, 2), False),
    ],
)
def test_fingerprint_depends_on_rows_and_model_alone(first, second, same):
    assert (fingerprint(first) == fingerprint(second)) is same
    assert len(fingerprint(first)) == 12


@pytest.mark.parametrize("path", ["gone.Callback", "logging.Gone", "no name"])
def test_callback_that_cannot_be_imported_is_named(path):
    with pytest.raises(InvalidInput, match=f"the callback '{path}' cannot be imported"):
        fingerprint(AVERAGED.format(0.9, path))
