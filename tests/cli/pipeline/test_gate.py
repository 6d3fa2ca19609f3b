"""The gate's arithmetic, and the ledger of a date, without Spark."""

from __future__ import annotations

import math

import pytest

from sparkdl.cli.exit_codes import Superseded
from sparkdl.cli.pipeline import stage_log
from sparkdl.cli.pipeline.job import fingerprint
from sparkdl.cli.pipeline.stage_log import Ledger
from sparkdl.cli.pipeline.stages import Gate
from sparkdl.errors import InvalidInput

NAN = math.nan


@pytest.mark.parametrize(
    ("gate", "value", "in_use", "larger", "passes"),
    [
        ({}, 0.9, None, True, True),
        ({}, 0.9, 0.9, True, True),
        ({}, 0.89, 0.9, True, False),
        ({"margin": 0.01}, 0.895, 0.9, True, True),
        ({"margin": 0.01}, 0.88, 0.9, True, False),
        ({"least": 0.8}, 0.79, None, True, False),
        ({"least": 0.8}, 0.8, None, True, True),
        ({"least": 0.8, "margin": 1.0}, 0.79, 0.7, True, False),
        ({}, 0.5, 0.4, False, False),
        ({}, 0.4, 0.5, False, True),
        ({"margin": 0.2}, 0.5, 0.4, False, True),
        ({"least": 0.3}, 0.4, None, False, False),
        ({"least": 0.3}, 0.2, None, False, True),
        ({"margin": 100.0}, NAN, 0.5, True, False),
        ({}, NAN, None, True, False),
        ({}, 0.5, NAN, True, True),
    ],
)
def test_what_passes_the_gate(gate, value, in_use, larger, passes):
    assert Gate(**gate).passes(value, in_use, larger=larger) is passes


@pytest.mark.parametrize("margin", [-0.1, NAN])
def test_a_margin_that_cannot_be_is_refused(margin):
    with pytest.raises(InvalidInput, match=r"gate\.margin is .*; expected a number of at least 0"):
        Gate(margin=margin)


def test_a_stage_is_done_once(tmp_path):
    done = []

    def work() -> dict[str, int]:
        done.append(1)
        return {"rows": len(done)}

    first = Ledger.open(str(tmp_path), "c")
    assert first.stage("etl", work) == first.stage("etl", work) == {"rows": 1}
    again = Ledger.open(str(tmp_path), "c")
    assert again.stage("etl", work) == {"rows": 1}
    assert (first.own[:5], again.own[:5]) == ("0000-", "0001-")
    assert Ledger.open(str(tmp_path), "d").stage("etl", work) == {"rows": 2}


def test_a_stage_that_fails_is_done_again(tmp_path):
    def fails() -> dict[str, int]:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        Ledger.open(str(tmp_path), "c").stage("etl", fails)
    assert Ledger.open(str(tmp_path), "c").stage("etl", dict) == {}


def test_a_stage_whose_files_are_gone_is_done_again(tmp_path):
    ledger, file = Ledger.open(str(tmp_path / "runs"), "c"), tmp_path / "rows"

    def work() -> dict[str, str]:
        file.touch(exist_ok=False)
        return {"path": str(file)}

    for _ in range(2):
        assert ledger.stage("etl", work, lambda found: file.exists()) == {"path": str(file)}
    file.unlink()
    ledger.stage("etl", work, lambda found: file.exists())
    assert file.exists()


def test_a_stage_that_is_forgotten_is_done_again(tmp_path):
    ledger = Ledger.open(str(tmp_path), "c")
    ledger.stage("etl", lambda: {"rows": 1})
    assert ledger.noted("etl")
    ledger.forget("etl")
    assert not ledger.noted("etl")
    assert ledger.stage("etl", lambda: {"rows": 2}) == {"rows": 2}


def test_two_that_open_a_date_at_the_same_moment_share_no_name(tmp_path, monkeypatch):
    """Both have seen that there is no run before them: the first to write is the one that is taken over."""
    announced = stage_log.Attempts.announced
    monkeypatch.setattr(stage_log.Attempts, "announced", lambda attempts: [])
    first, second = (Ledger.open(str(tmp_path), "c") for _ in range(2))
    monkeypatch.setattr(stage_log.Attempts, "announced", announced)
    assert first.number == second.number
    assert first.own != second.own
    second.check()
    with pytest.raises(Superseded):
        first.check()


def test_one_that_comes_in_between_takes_over(tmp_path, monkeypatch):
    announced, looks = stage_log.Attempts.announced, []

    def late(attempts: object) -> list[int]:
        found = announced(attempts)
        if not looks:
            looks.append(1)
            Ledger.open(str(tmp_path), "c")
        return found

    monkeypatch.setattr(stage_log.Attempts, "announced", late)
    with pytest.raises(Superseded, match="another run of this date has taken over"):
        Ledger.open(str(tmp_path), "c")


def test_a_later_run_takes_over(tmp_path):
    first = Ledger.open(str(tmp_path), "c")
    second = Ledger.open(str(tmp_path), "c")
    for late in (first.check, lambda: first.stage("etl", dict), lambda: first.note("etl", {}), lambda: first.close({})):
        with pytest.raises(Superseded, match=r"another run of this date has taken over: .*attempt 1"):
            late()
    assert Ledger.done(str(tmp_path)) is None
    assert second.stage("etl", lambda: {"rows": 3}) == {"rows": 3}
    assert first.stage("etl", dict) == {"rows": 3}  # what is done needs nobody's leave to be read


def test_a_run_that_is_taken_over_in_a_stage_does_not_note_it(tmp_path):
    first = Ledger.open(str(tmp_path), "c")

    def work() -> dict[str, int]:
        Ledger.open(str(tmp_path), "c")
        return {"rows": 1}

    with pytest.raises(Superseded):
        first.stage("etl", work)
    assert not (tmp_path / "c" / "etl.json").exists()


def test_a_date_that_is_finished_says_how(tmp_path):
    assert Ledger.done(str(tmp_path / "2026-11-22")) is None
    Ledger.open(str(tmp_path), "c").close({"passed": True})
    assert Ledger.done(str(tmp_path)) == {"passed": True}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("{data: {path: a}, keep: 3, root: x, date: 2026-11-23}", True),
        ("{data: {path: a}, stages: [{init_args: {numWorkers: 8, resourceTimeout: 9}}]}", False),
        ("{data: {path: b}}", False),
        ("{data: {path: a}, clean: {columns: {events: 1}}}", False),  # a column, and no Param of a stage
    ],
)
def test_a_configuration_is_known_by_what_rows_and_model_depend_on(text, same):
    known = fingerprint("{data: {path: a}, keep: 5, root: /tmp, date: 2026-11-22}")
    assert (fingerprint(text) == known) is same
    assert len(known) == 12


def test_where_and_how_long_a_run_is_tried_makes_no_other_run():
    stages = "{{stages: [{{class_path: a, init_args: {{epochs: {}, numWorkers: {}, maxRestarts: {}}}}}]}}"
    known = fingerprint(stages.format(3, 2, 1))
    assert fingerprint(stages.format(3, 8, 5)) == known
    assert fingerprint(stages.format(4, 2, 1)) != known


def test_what_is_free_in_a_stage_is_so_in_the_estimators_that_it_has():
    base = "{{class_path: b, init_args: {{epochs: {}, numWorkers: {}}}}}"
    stages = "{{stages: [{{class_path: a, init_args: {{base: {base}, bases: [{base}]}}}}]}}".replace("{base}", base)
    known = fingerprint(stages.format(3, 2, 3, 2))
    assert fingerprint(stages.format(3, 4, 3, 8)) == known
    assert fingerprint(stages.format(3, 2, 4, 2)) != known
