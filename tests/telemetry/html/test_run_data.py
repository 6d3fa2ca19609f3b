"""What a run has left behind, as the report page reads it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.html import RunData, make_page, read_runs
from tests.telemetry.html.made import START, event, gang, progress, run, step, written

HISTORY = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
BEGIN, END = event("begin", 0), event("end", 20, error=None)


def epoch(number: int, at: float, loss: float, attempt: int = 0):
    return event("epoch", at, 0, attempt=attempt, epoch=number, loss=loss)


# ---- reading ----------------------------------------------------------------------------------------------------


def test_a_run_is_read_from_its_directory(tmp_path):
    directory = written(
        tmp_path / "digits",
        [BEGIN, step(5, forward=1.0), END],
        config={"epochs": 2},
        history=HISTORY,
        report={"rows": 7},
    )
    found = RunData.read(directory)
    assert (found.name, found.configuration, found.history, found.report) == (
        "digits",
        {"epochs": 2},
        HISTORY,
        {"rows": 7},
    )
    assert [each.kind for each in found.events] == ["begin", "step", "end"]
    assert (found.state, found.error, found.seconds, found.last) == ("finished", None, 20.0, START + 20)


@pytest.mark.parametrize("uri", ["{}", "{}/", "file://{}", "file:{}/"])
def test_a_directory_is_a_path_or_a_uri(tmp_path, uri):
    directory = written(tmp_path / "digits", history=HISTORY)
    assert RunData.read(uri.format(directory)).name == "digits"


def test_the_working_directory_has_a_name_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(written(tmp_path / "digits", history=HISTORY))
    assert RunData.read(".").name == "digits"


@pytest.mark.parametrize("name", ["empty", "not there", "file"])
def test_what_holds_no_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("{}")
    with pytest.raises(InvalidInput, match=f"{name} holds no run; expected the runDir of a fit"):
        RunData.read(str(tmp_path / name))


@pytest.mark.parametrize("name", ["config", "history", "report"])
def test_a_damaged_file_is_named(tmp_path, name):
    directory = written(tmp_path, history=HISTORY)
    (tmp_path / f"{name}.json").write_text('{"epochs": ')
    with pytest.raises(InvalidInput, match=rf"{name}\.json in .* is damaged: .* Delete it"):
        RunData.read(directory)


def test_a_file_of_something_else_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"history\.json in .* is no list"):
        RunData.read(written(tmp_path, history={"epoch": 1}))


def test_a_run_may_have_nothing_but_a_history(tmp_path):
    found = RunData.read(written(tmp_path, history=HISTORY))
    assert (found.state, found.history, found.events, found.last) == ("finished", HISTORY, [], None)
    assert (found.start, found.seconds, found.phases(), found.hosts) == (0.0, 0.0, {}, {})


def test_what_a_killed_process_had_half_written_is_skipped(tmp_path):
    directory = written(tmp_path, [BEGIN, step(1, forward=1.0)])
    with open(os.path.join(directory, "events", "driver-made.jsonl"), "a") as file:
        file.write('{"kind":"step","rank":0,"att')
    with pytest.warns(RuntimeWarning, match=r"line 3 is skipped"):
        assert len(RunData.read(directory).events) == 2


def test_an_event_that_was_too_large_is_passed_over(tmp_path):
    huge = replace(step(2, forward=1.0), payload={"truncated": 1 << 21})
    assert [each.kind for each in RunData.read(written(tmp_path, [BEGIN, huge])).events] == ["begin"]


def test_times_are_by_one_clock(tmp_path):
    ahead = replace(step(5.0, 1, forward=1.0), host="two", time=START + 65.0)  # received at 5, sent a minute later
    found = RunData.read(written(tmp_path, [BEGIN, ahead, END]))
    assert [each.time - START for each in found.events] == pytest.approx([0, 5, 20])


# ---- how a run went ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "files", "state"),
    [
        ([BEGIN, END], {"report": {"rows": 1}}, "finished"),
        ([BEGIN, END], {}, "finished"),
        ([BEGIN, event("end", 20, error="WorkerLost: gone")], {}, "failed"),
        ([BEGIN], {"report": {"rows": 1}}, "open"),
        ([step(1, forward=1.0)], {}, "open"),
        ([step(1, forward=1.0)], {"report": {"rows": 1}}, "finished"),
        ([], {"config": {"epochs": 1}}, "open"),
        ([], {"history": HISTORY}, "finished"),
    ],
)
def test_how_it_went(tmp_path, events, files, state):
    found = RunData.read(written(tmp_path, events, **files))
    assert found.state == state
    assert found.error == ("WorkerLost: gone" if state == "failed" else None)


def test_the_history_of_a_run_that_goes_on_is_what_it_has_told_of(tmp_path):
    told = [BEGIN, epoch(1, 1, 0.5), epoch(2, 2, 0.3), epoch(2, 4, 0.25, attempt=1), epoch(3, 5, 0.2, attempt=1)]
    assert [(row["epoch"], row["loss"]) for row in RunData.read(written(tmp_path, told)).history] == [
        (1, 0.5),
        (2, 0.25),  # as the attempt has it that began it again
        (3, 0.2),
    ]


def test_the_history_of_an_ensemble_is_of_its_members(tmp_path):
    told = [
        BEGIN,
        event("members", 0, count=3),
        event("member", 0, member=0, restored=True),
        epoch(1, 1, 0.5),  # of a member, in its task
        event("member", 2, 1, member=1, seconds=2.0),
    ]
    found = RunData.read(written(tmp_path, told))
    assert found.history == [{"member": 0, "restored": True}, {"member": 1, "seconds": 2.0}]
    assert RunData.read(written(tmp_path / "early", told[:2])).noun == "member"


def test_a_users_own_events_of_the_same_kinds_do_no_harm(tmp_path):
    kinds = ("step", "span", "progress", "attempt", "begin", "end", "restart", "epoch", "member", "log", "warning")
    own = [
        event(kind, 5, rank, error="mine") for kind in kinds for rank in (-1, 0) if rank == 0 or kind in ("attempt",)
    ]
    found = RunData.read(written(tmp_path, [BEGIN, *own, END], history=HISTORY))
    assert found.state == "finished"
    assert make_page([found])


def test_rounds_are_told_without_what_the_progress_bar_needs(tmp_path):
    told = [BEGIN, *(event("round", each, round=each, loss=0.5, rounds=9) for each in (1, 2))]
    assert RunData.read(written(tmp_path, told)).history == [{"round": 1, "loss": 0.5}, {"round": 2, "loss": 0.5}]


def test_a_run_that_was_begun_again_has_no_report_and_a_longer_history(tmp_path):
    told = [BEGIN, epoch(1, 1, 0.5), epoch(2, 2, 0.25), END, event("begin", 90), epoch(3, 95, 0.2)]
    found = RunData.read(written(tmp_path, told, history=HISTORY, report={"rows": 7}))
    assert found.state == "open"
    assert found.report == {}
    assert [row["epoch"] for row in found.history] == [1, 2, 3]


def test_the_time_between_two_fits_is_left_out(tmp_path):
    told = [BEGIN, step(10, forward=1.0), END, event("begin", 86_400), step(86_405, forward=1.0), event("end", 86_410)]
    found = RunData.read(written(tmp_path, told))
    assert [each.time - found.start for each in found.events] == pytest.approx([0, 10, 20, 20, 25, 30])
    assert found.seconds == pytest.approx(30)
    assert found.last == START + 86_410


# ---- what members did -------------------------------------------------------------------------------------------


def test_stages_and_what_lies_between_them():
    spans = [
        ("join", 3.0, 0.5),
        ("feed", 2.5, 1.0),
        ("set up", 6.0, 1.0),
        ("work", 9.0, 6.0),
        ("save checkpoint", 8.0, 1.0),
    ]
    data = run(
        event("started", 1, 0),
        *(event("span", end, 0, name=name, start=0.0, seconds=seconds) for name, end, seconds in spans),
    )
    found = [(lap.start - START, lap.end - START, *lap.seconds) for lap in data.stages()]
    assert found == [
        (pytest.approx(1.0), pytest.approx(1.5), "other"),
        (pytest.approx(1.5), pytest.approx(2.5), "feed"),
        (pytest.approx(2.5), pytest.approx(3.0), "exchange"),
        (pytest.approx(3.0), pytest.approx(5.0), "other"),
        (pytest.approx(5.0), pytest.approx(6.0), "other"),
    ]


def test_the_driver_has_no_stages():
    assert list(run(event("span", 2, name="feed", start=0.0, seconds=1.0)).stages()) == []


def test_phases_are_those_of_the_report_or_of_the_events():
    told = [step(2, 1, forward=1.0), step(3, 1, forward=0.5, feed=1.0), step(3, 0, update=2.0)]
    assert run(*told).phases() == {0: {"update": 2.0}, 1: {"forward": 1.5, "feed": 1.0}}
    assert run(*told, report={"phases_by_rank": [{"feed": 9.0}]}).phases() == {0: {"feed": 9.0}}


@pytest.mark.parametrize(
    ("row", "unit", "noun"),
    [
        ({"epoch": 1, "loss": 0.5}, "epoch", "rank"),
        ({"round": 1, "loss": 0.5}, "round", "part"),
        ({"member": 0, "epoch": 5, "loss": 0.5}, "member", "member"),
        ({"candidate": 0, "metric": 0.5}, "candidate", "member"),
        ({"loss": 0.5}, "row", "rank"),
    ],
)
def test_what_rows_and_ranks_are_called(row, unit, noun):
    data = run(step(1, 3, forward=1.0), history=[row])
    assert (data.unit, data.noun, data.called(3)) == (unit, noun, f"{noun} 3")


def test_rounds_that_are_not_over_are_known_by_their_tasks():
    assert run(event("span", 1, 0, name="round", round=0, start=0.0, seconds=1.0)).noun == "part"


def test_ranks_are_called_with_their_hosts_where_there_are_several():
    assert run(step(1, 0, forward=1.0), step(1, 1, forward=1.0)).called(1) == "rank 1"
    hosts = ["worker-1.example.org", "10.0.0.7", "a" * 60]
    data = run(*(replace(step(1, rank, forward=1.0), host=host) for rank, host in enumerate(hosts)))
    assert [data.called(rank) for rank in range(4)] == [
        "rank 0 (worker-1)",
        "rank 1 (10.0.0.7)",
        f"rank 2 ({'a' * 24})",
        "rank 3",
    ]


def test_events_of_kinds_are_in_the_order_of_time():
    data = run(progress(1, 0.5, at=3), step(1, forward=1.0), step(4, forward=1.0), event("end", 9))
    assert [each.kind for each in data.of_kind("step", "progress")] == ["step", "progress", "step"]
    assert data.of_kind("nothing") == []
    assert [data.since(each) for each in data.of_kind("end")] == [8.0]


# ---- several runs -----------------------------------------------------------------------------------------------


def test_runs_are_called_by_what_tells_them_apart(tmp_path):
    paths = ["mon/digits/one", "tue/digits/one", "tue/digits/two"]
    directories = [written(tmp_path / path, history=HISTORY) for path in paths]
    assert [each.name for each in read_runs(directories)] == paths
    assert [each.name for each in read_runs(directories[1:])] == ["one", "two"]
    assert [each.name for each in read_runs(directories[:1])] == ["one"]


def test_a_run_beside_itself_is_refused(tmp_path):
    directory = written(tmp_path, history=HISTORY)
    with pytest.raises(InvalidInput, match="two are the same; expected each once"):
        read_runs([directory, f"file://{directory}/"])


def test_no_runs_are_refused():
    with pytest.raises(InvalidInput, match="at least one"):
        read_runs([])


def test_the_made_up_gang_is_whole():
    data = gang()
    assert (data.state, data.unit, data.noun, data.seconds) == ("finished", "epoch", "rank", 12.0)
