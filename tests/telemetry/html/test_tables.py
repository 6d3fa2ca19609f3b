"""The words and tables of the report page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from sparkdl.io.redaction import masked
from sparkdl.telemetry.html import tables
from tests.telemetry.html.made import event, gang, run, step

HTML = "<script>alert('\"&')</script>"


def cells(html: str, tag: str = "td") -> list[str]:
    """The texts of a table's cells."""
    return [unescape(text) for text in re.findall(rf"<{tag}(?: [^>]*)?>(.*?)</{tag}>", html, re.DOTALL)]


def figures(*runs) -> dict[str, str]:
    """The figures of a run, by name."""
    found = re.findall(r"<b>(.*?)</b><span>(.*?)</span>", tables.figures(runs))
    return {name: value for value, name in found}


# ---- the heading ------------------------------------------------------------------------------------------------


def test_the_heading_says_what_and_when():
    html = tables.heading([gang("digits")])
    assert "<h1>digits</h1>" in html
    assert "TorchClassifier · begun 2027-01-15 08:00:00 UTC<" in html
    assert "Feed-bound: " in html


def test_several_runs_are_named():
    html = tables.heading([gang("one"), gang("two"), gang("three")])
    assert "<h1>one, two and three</h1>" in html
    assert [name for name in ("one", "two", "three") if f"<b>{name}</b>: TorchClassifier" in html] == [
        "one",
        "two",
        "three",
    ]


def test_the_verdict_is_that_of_the_report():
    assert '<p class="verdict">All is well.</p>' in tables.heading([run(report={"verdict": "All is well."})])


def test_a_run_that_failed_says_why():
    data = run(
        event("begin", 0), event("end", 1, error=f"MemberLost: {HTML}\nTraceback:\n  File s3://key:secret@bucket")
    )
    html = tables.heading([data])
    assert "Failed: MemberLost: &lt;script&gt;" in html
    assert "<pre>Traceback:\n  File s3://bucket</pre>" in html


def test_a_run_without_an_end_says_when_it_was_last_heard_of():
    data = run(event("begin", 0), event("heartbeat", 61, 0), last=1_800_000_061.0)
    assert "goes on, or was ended from outside, of which the last sign is of 2027-01-15 08:01:01 UTC" in tables.heading(
        [data]
    )


def test_of_a_run_that_nothing_is_known_of_there_is_the_name():
    assert tables.heading([run(history=[{"epoch": 1, "loss": 0.5}])]) == "<h1>a run</h1>"


def test_the_slowest_rank_is_named_with_its_own_host():
    quick, slow = step(2, 0, forward=1.0, exchange=1.0), step(2, 1, forward=2.0)
    others = replace(quick, rank=2)
    data = run(replace(slow, host="two"), *(replace(each, host="one", time=each.time + 1) for each in (others, quick)))
    assert "Rank 1 on two is the slowest" in tables.heading([data])


# ---- figures ----------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_report():
    assert figures(gang()) == {
        "epochs": "2",
        "last valid_loss": "0.6",
        "in all": "12.0 s",
        "rows/s": "16",
        "rows": "100",
        "members": "2 → 1",
        "restarts": "1",
        "exchanged": "5 kB",
    }


def test_figures_of_a_run_that_is_not_over_are_those_of_its_events():
    data = gang()
    found = figures(run(*data.events[:-1], history=data.history))
    assert found["in all"] == "10.0 s"
    assert (found["rows/s"], found["members"], found["restarts"]) == ("100", "2 → 1", "1")


def test_attempts_of_the_same_size_are_one_size():
    assert figures(run(report={"workers": [3, 3, 2, 3]}))["members"] == "3 → 2 → 3"


def test_events_that_were_lost_are_told():
    assert figures(run(report={"events_dropped": 7}))["events lost"] == "7"
    assert "events lost" not in figures(run(report={"events_dropped": 0, "rows": 1}))


def test_members_of_an_ensemble_have_no_last_one():
    found = figures(run(history=[{"member": 0, "loss": 0.5}, {"member": 1, "loss": 0.25}], report={"seconds": 3.0}))
    assert found == {"members": "2", "in all": "3.0 s"}


def test_figures_of_several_runs_are_side_by_side():
    rounds = run(history=[{"round": 1, "loss": 0.5}], report={"rows": 5, "workers": [3]}, name="rounds")
    html = tables.figures([gang("gang"), rounds])
    assert cells(html, "th") == ["", "gang", "rounds"]
    found = cells(html)
    rows = {found[place]: found[place + 1 : place + 3] for place in range(0, len(found), 3)}
    assert rows["epochs"] == ["2", ""]
    assert rows["rounds"] == ["", "1"]
    assert rows["rows"] == ["100", "5"]
    assert rows["parts"] == ["", "3"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.25, "0.2 s"), (59.4, "59.4 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7325, "2 h 02 min")],
)
def test_seconds(seconds, told):
    assert figures(run(report={"seconds": seconds}))["in all"] == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (5.2e9, "5.2 GB"), (3.25e15, "3,250.0 TB")]
)
def test_bytes(count, told):
    assert figures(run(report={"bytes": count}))["exchanged"] == told


# ---- tables -----------------------------------------------------------------------------------------------------


def test_attempts_say_why_they_ended():
    html = tables.attempts(gang())
    assert cells(html) == ["0", "2", "one", "0", "MemberLost: rank 1 was killed", "1", "1", "", "7", ""]
    assert tables.attempts(run(event("attempt", 0, size=2))) == ""


def test_the_last_attempt_of_a_run_that_failed_says_why():
    data = run(
        *(event("attempt", at, attempt=at, size=1) for at in (0, 2)),
        event("restart", 1, cause="MemberLost: first", seconds=0.0),
        event("end", 3, error="MemberLost: second\nTraceback"),
    )
    assert cells(tables.attempts(data))[4::5] == ["MemberLost: first", "MemberLost: second"]


def test_the_history_has_all_columns_and_the_last_rows():
    rows = [{"epoch": epoch, "loss": 1 / epoch} for epoch in range(1, 301)]
    rows[-1]["note"] = None
    html = tables.history(run(history=rows))
    assert cells(html, "th") == ["epoch", "loss", "note"]
    assert "<p>The first 100 rows are left out.</p>" in html
    assert cells(html)[:3] == ["101", "0.009901", ""]
    assert tables.history(run()) == ""


def test_numbers_are_on_the_right():
    html = tables.history(run(history=[{"epoch": 1, "status": "converged", "best": True}]))
    assert "<th class=number>epoch</th><th>status</th><th>best</th>" in html
    assert "<td class=number>1</td><td>converged</td><td>True</td>" in html


def test_the_configuration_is_told_whole():
    html = tables.configuration([run(configuration={"epochs": 2, "inputCols": ["x"], "patience": None})])
    assert cells(html) == ["epochs", "2", "inputCols", '["x"]', "patience", "null"]


def test_of_several_runs_what_differs_comes_first():
    html = tables.configuration([gang("one", loss=1.0), gang("two", loss=2.0)])
    first, second = html.split("<details>")
    assert first.startswith("<h2>What differs</h2>")
    assert cells(first) == ["rate", "1.0", "2.0"]
    assert cells(second)[:3] == ["class", "TorchClassifier", "TorchClassifier"]
    assert "What differs" not in tables.configuration([gang("one"), gang("two")])


def test_the_environment_is_that_of_the_last_fit():
    data = run(event("begin", 0, environment={"torch": "1"}), event("begin", 5, environment={"torch": "2"}))
    assert cells(tables.environment([data])) == ["torch", "2"]
    assert tables.environment([run()]) == ""


def test_messages_say_who_and_when():
    log = event("log", 9, 1, level="ERROR", logger="torch", message="too hot", left_out=0)
    found = cells(tables.messages(run(*gang().events, log)))
    assert found[:4] == ["7", "driver", "resized", "1 of 2 members begin"]
    assert found[4:] == ["8", "rank 0", "warning", "a warning", "9", "rank 1", "ERROR", "too hot"]


# ---- what must not be there -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        gang(HTML),
        run(history=[{"epoch": 1, HTML: 0.5, "status": HTML}]),
        run(configuration={HTML: HTML, "class": HTML}),
        run(event("begin", 0, environment={HTML: HTML}), event("end", 1, error=HTML)),
        run(event("warning", 0, 0, message=HTML), event("log", 1, 0, level=HTML, message=HTML)),
        run(*(event("attempt", at, attempt=at, size=1) for at in (0, 1)), event("restart", 1, cause=HTML, seconds=0)),
        run(event("attempt", 0, size=1), event("started", 1, 0, host=HTML), event("attempt", 2, size=1)),
        run(report={"verdict": HTML}),
    ],
)
def test_no_text_becomes_a_tag(data):
    parts = (tables.attempts, tables.history, tables.messages)
    several = (tables.heading, tables.figures, tables.configuration, tables.environment)
    html = "".join(
        [*(part(data) for part in parts), *(part(runs) for part in several for runs in ([data], [data, gang()]))]
    )
    assert "<script" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://KEY:a/b+c@bucket/runs", "s3://bucket/runs"),
        ("s3://bucket/runs?access_key=KEY&secret_key=SECRET", "s3://bucket/runs"),
        ("s3a://KEY:SECRET@bucket/runs?endpoint_override=x and more", "s3a://bucket/runs and more"),
        ("hdfs://user@namenode:8020/runs", "hdfs://namenode:8020/runs"),
        ('{"a": "s3://bucket/x", "to": "me@example.org"}', '{"a": "s3://bucket/x", "to": "me@example.org"}'),
        ("file:///runs/one", "file:///runs/one"),
        ("is it? yes", "is it? yes"),
    ],
)
def test_credentials_are_left_out(text, told):
    assert masked(text) == told
    assert cells(tables.configuration([run(configuration={"runDir": text})])) == ["runDir", told]
