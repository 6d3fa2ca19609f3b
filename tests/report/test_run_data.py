"""Runs as the report page reads them from their directories."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from random import Random

import pytest

from sparkdl.cli.report import main as report
from sparkdl.errors import InvalidInput
from sparkdl.report import RunData, read_runs
from sparkdl.report.tables import page_tables
from sparkdl.report.time_charts import dominant, rates
from sparkdl.telemetry.chrome_trace import trace
from tests.report.made import START, event, gang, run, step, written

FULL = 100  # a page takes a fifth of a second
HISTORY = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
BEGIN, END = event("begin", 0, environment={}), event("end", 20, error=None)


def epoch(number: int, at: float, loss: float, attempt: int = 0):
    return event("epoch", at, 0, attempt=attempt, epoch=number, loss=loss)


# ---- reading ----------------------------------------------------------------------------------------------------


def test_run_is_read_from_its_directory(tmp_path):
    files = {"config": {"epochs": 2}, "history": HISTORY, "report": {"rows": 7}}
    data = RunData.read(written(tmp_path / "digits", [BEGIN, step(5, forward=1.0), END], **files))
    assert data.name == "digits"
    assert {"config": data.configuration, "history": data.history, "report": data.report} == files
    assert [event.kind for event in data.events] == ["begin", "step", "end"]
    assert (data.state, data.error, data.seconds, data.last) == ("finished", None, 20.0, START + 20)


@pytest.mark.parametrize("uri", ["{}", "{}/", "file://{}", "file:{}/", "."])
def test_directory_is_path_or_uri(tmp_path, uri, monkeypatch):
    directory = written(tmp_path / "digits", history=HISTORY)
    monkeypatch.chdir(directory)
    data = RunData.read(uri.format(directory))
    assert (data.name, data.state, data.history, data.events) == ("digits", "finished", HISTORY, [])
    assert (data.start, data.seconds, data.last, data.phases(), data.hosts) == (0.0, 0.0, None, {}, {})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", '{"epochs": ', r"config\.json in .* is damaged: .* Delete it"),
        ("history.json", '{"epoch": 1}', r"history\.json in .* is no list"),
        ("other", "{}", "run holds no run; expected the runDir of a fit"),
    ],
)
def test_damaged_or_missing_run_raises(tmp_path, name, text, message):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises(InvalidInput, match=message):
        RunData.read(str(tmp_path / "run"))
    with pytest.raises(InvalidInput, match="holds no run"):
        RunData.read(str(tmp_path / "run" / name))


MARK = [["feed", 0.0, 1.0]]  # a mark of three items
ODD = [None, True, -1, 2**70, math.nan, math.inf, 1e308, -1e308, "text", "x" * 10_000, "\ud800", [], [["a"]], {}, MARK]
RUN = (*gang().events, epoch(1, 5, 0.5), event("restored", 6, history=HISTORY))
LINES = [json.loads(event.to_json()) for event in RUN]


def fuzzed(seed: int) -> bytes:
    """The lines of an event file with odd values, missing keys, jumps of clocks, repeats, and a damaged end."""
    random, lines = Random(seed), copy.deepcopy(LINES)
    for line in random.choices(lines, k=random.randrange(1, 6)):
        maps = [each for each in (line, line["payload"], line["clock"]) if isinstance(each, dict) and each]
        fields = random.choice(maps)
        name = random.choice(sorted(fields))
        fields[name] = random.choice(ODD)
        if fields is not line and random.random() < 0.2:
            del fields[name]
    for line in lines[random.randrange(len(lines)) :]:
        line["time"] = random.choice((0.0, -3e9, 4e9, -50.0)) + line["time"] if type(line["time"]) is float else None
    end = random.choice([b"", b"\n", b"\xff\xfe\n", b'{"kind":"step","rank":0,"att', b"[" * 5000, b"\0" * 9])
    texts = [json.dumps(line).encode() for line in lines + random.choices(lines, k=random.randrange(3))]
    return b"\n".join([*texts, end]) if seed else b""


def test_report_of_any_event_file(tmp_path, capsys):
    directory = written(tmp_path, [BEGIN], history=HISTORY)
    for seed in range(200):
        (tmp_path / "events" / "driver-made.jsonl").write_bytes(fuzzed(seed))
        data = RunData.read(directory)
        assert [dominant(data), rates(data), page_tables([data]), trace(data.events)]
        if seed % FULL == 0:
            assert report([directory]) == 0
            assert (f"left out: {data.odd}\n" in capsys.readouterr().err) == (data.odd > 0)
            assert (">events left out<" in (tmp_path / "report.html").read_text()) == (data.odd > 0)


def test_clocks_of_hosts_are_aligned(tmp_path):
    ahead = replace(step(5.0, 1, forward=1.0), host="two", time=START + 65.0)  # received at 5, sent a minute later
    data = RunData.read(written(tmp_path, [BEGIN, ahead, END]))
    assert [event.time - START for event in data.events] == pytest.approx([0, 5, 20])


# ---- state and history ------------------------------------------------------------------------------------------


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
def test_state(tmp_path, events, files, state):
    data = RunData.read(written(tmp_path, events, **files))
    assert (data.state, data.error) == (state, "WorkerLost: gone" if state == "failed" else None)


AGAIN = [epoch(1, 1, 0.5), epoch(2, 2, 0.3), epoch(2, 4, 0.25, attempt=1), epoch(3, 5, 0.2, attempt=1)]
MEMBERS = [event("member", 0, member=0, restored=True), epoch(1, 1, 0.5), event("member", 2, 1, member=1, seconds=2.0)]


@pytest.mark.parametrize(
    ("events", "history"),
    [
        (AGAIN, [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}, {"epoch": 3, "loss": 0.2}]),
        ([event("members", 0, count=3), *MEMBERS], [{"member": 0, "restored": True}, {"member": 1, "seconds": 2.0}]),
        ([event("round", 1, round=1, loss=0.5, rounds=9)], [{"round": 1, "loss": 0.5}]),
    ],
    ids=["repeated epochs", "members of an ensemble", "rounds"],
)
def test_history_of_unfinished_run_comes_from_events(tmp_path, events, history):
    assert RunData.read(written(tmp_path, [BEGIN, *events])).history == history


def test_restarted_run_has_no_report_no_pause_and_a_longer_history(tmp_path):
    restart = event("begin", 86_400, environment={})
    events = [BEGIN, epoch(1, 1, 0.5), epoch(2, 10, 0.25), END, restart, epoch(3, 86_410, 0.2)]
    data = RunData.read(written(tmp_path, events, history=HISTORY, report={"rows": 7}))
    assert (data.state, data.report) == ("open", {})
    assert [row["epoch"] for row in data.history] == [1, 2, 3]
    assert [event.time - data.start for event in data.events] == pytest.approx([0, 1, 10, 20, 20, 30])
    assert (data.seconds, data.last) == (pytest.approx(30), START + 86_410)


# ---- workers ----------------------------------------------------------------------------------------------------


def test_stages_and_gaps_between_them():
    spans = [("join", 3.0, 0.5), ("feed", 2.5, 1.0), ("set up", 6.0, 1.0), ("work", 9.0, 6.0)]
    named = [event("span", end, 0, name=name, start=0.0, seconds=seconds) for name, end, seconds in spans]
    driver = event("span", 2, name="feed", start=0.0, seconds=1.0)
    data = run(event("started", 1, 0), *named, driver).stages()
    laps = [(1.0, 1.5, "other"), (1.5, 2.5, "feed"), (2.5, 3.0, "exchange"), (3.0, 5.0, "other"), (5.0, 6.0, "other")]
    assert [(round(lap.start - START, 6), round(lap.end - START, 6), *lap.seconds) for lap in data] == laps


def test_phases_come_from_report_or_events():
    steps = [step(2, 1, forward=1.0), step(3, 1, forward=0.5, feed=1.0), step(3, 0, update=2.0)]
    assert run(*steps).phases() == {0: {"update": 2.0}, 1: {"forward": 1.5, "feed": 1.0}}
    assert run(*steps, report={"phases_by_rank": [{"feed": 9.0}]}).phases() == {0: {"feed": 9.0}}


@pytest.mark.parametrize(
    ("history", "events", "unit", "noun"),
    [
        ([{"epoch": 1, "loss": 0.5}], [], "epoch", "rank"),
        ([{"round": 1, "loss": 0.5}], [], "round", "shard"),
        ([{"member": 0, "epoch": 5, "loss": 0.5}], [], "member", "member"),
        ([{"candidate": 0, "metric": 0.5}], [], "candidate", "member"),
        ([{"loss": 0.5}], [], "row", "rank"),
        ([], [event("span", 1, 0, name="round", round=0, start=0.0, seconds=1.0)], "row", "shard"),
        ([], [event("members", 0, count=3)], "row", "member"),
    ],
)
def test_names_of_rows_and_ranks(history, events, unit, noun):
    data = run(*events, history=history)
    assert (data.unit, data.noun, data.called(3)) == (unit, noun, f"{noun} 3")


def test_ranks_of_several_hosts_have_host_names():
    hosts = ["worker-1.example.org", "10.0.0.7", "a" * 60]
    data = run(*(replace(step(1, rank, forward=1.0), host=host) for rank, host in enumerate(hosts)))
    named = ["rank 0 (worker-1)", "rank 1 (10.0.0.7)", f"rank 2 ({'a' * 24})", "rank 3"]
    assert [data.called(rank) for rank in range(4)] == named


def test_names_are_shortest_unique_ends_of_paths(tmp_path):
    paths = ["mon/digits/one", "tue/digits/one", "tue/digits/two"]
    directories = [written(tmp_path / path, history=HISTORY) for path in paths]
    assert [data.name for data in read_runs(directories)] == paths
    assert [data.name for data in read_runs(directories[1:])] == ["one", "two"]
    for wrong in ([directories[0], f"file://{directories[0]}/"], []):
        with pytest.raises(InvalidInput, match="at least one, and each once"):
            read_runs(wrong)
