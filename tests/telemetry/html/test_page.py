"""The report page as a file: what is in it, and what is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from benchmarks.events.made import write_run
from sparkdl.errors import InvalidInput
from sparkdl.ml.report import Report
from sparkdl.telemetry.html import RunData, make_page, write_page
from tests.telemetry.html.made import event, gang, run, step, written

HOSTILE = "</script><!--<script>alert('1')//\"&"
LOADS = ("src", "href", "srcset", "data", "action", "poster", "background", "cite", "ping", "formaction")


class Elements(HTMLParser):
    """The elements of a page, their attributes, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


def figures(html: str) -> dict:
    """What is drawn, by the names of the charts."""
    return json.loads(Elements(html).scripts[2])


def test_a_page_has_a_place_for_every_chart():
    html = make_page([gang()])
    names = ["loss", "metric-0", "throughput", "workers", "phases", "timeline"]
    assert list(figures(html)) == names
    assert [attrs["id"] for tag, attrs in Elements(html).found if tag == "div" and "id" in attrs] == names


def test_a_comparison_has_what_can_be_compared():
    html = make_page([gang("one"), gang("two", loss=2.0)])
    assert list(figures(html)) == ["loss", "metric-0", "throughput", "phases"]
    assert "What differs" in html
    assert "<summary>History" not in html


def test_a_gap_beside_the_last_narrow_chart_is_filled():
    html = make_page([run(history=[{"epoch": 1, "loss": 0.5}])])
    assert html.count("<figure class=wide>") == 1
    assert make_page([gang()]).count("<figure class=wide>") == 2  # phases and timeline: there are four others


def test_a_page_loads_nothing():
    elements = Elements(make_page([gang()]))
    assert not [attrs for _, attrs in elements.found if set(attrs) & set(LOADS)]
    assert not [tag for tag, _ in elements.found if tag in ("link", "img", "iframe", "object", "embed", "base")]
    [policy] = [attrs["content"] for _, attrs in elements.found if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|unsafe-eval", policy)


def test_no_text_becomes_a_tag_or_ends_or_begins_a_script():
    data = run(
        event("begin", 0, environment={HOSTILE: HOSTILE}),
        *(event("attempt", at, attempt=at, size=1) for at in (0, 1)),
        event("started", 1, 0, host=HOSTILE),
        event("restart", 1, cause=HOSTILE, seconds=0),
        step(1, forward=1.0),
        event("log", 2, 0, level=HOSTILE, message=HOSTILE),
        event("end", 3, error=f"{HOSTILE}\n{HOSTILE}"),
        name=HOSTILE,
        history=[{"epoch": 1, "loss": 0.5, HOSTILE: 0.5, "status": HOSTILE}],
        configuration={HOSTILE: HOSTILE, "class": HOSTILE},
        report={"verdict": HOSTILE},
    )
    for runs in ([data], [data, gang()]):
        html = make_page(runs)
        elements = Elements(html)
        assert [tag for tag, _ in elements.found].count("script") == 4
        assert "alert('1')" not in "".join(elements.scripts[:2] + elements.scripts[3:])
        assert "<!--" not in elements.scripts[2]
        assert "alert('1')" in json.dumps(figures(html))
        written = html.partition("<body>")[2].partition("<script")[0]
        assert written.count("&lt;/script&gt;&lt;!--&lt;script&gt;alert(&#39;1&#39;)//&#34;&amp;") >= 10


def test_values_that_are_no_numbers_do_not_break_the_page():
    history = [{"epoch": 1, "loss": float("nan"), "f1": float("inf")}, {"epoch": 2, "loss": 0.5, "f1": None}]
    drawn = figures(make_page([run(history=history)]))
    assert list(drawn) == ["loss"]
    assert drawn["loss"]["data"][0]["y"] == [0.5]


@pytest.mark.parametrize("data", [run(), run(configuration={"epochs": 1}), run(event("begin", 0))])
def test_a_run_that_has_only_begun_has_a_page(data):
    assert figures(make_page([data])) == {}


def test_a_text_is_no_template():
    assert "{{ title }} {% raw %} {# #}" in make_page([run(report={"verdict": "{{ title }} {% raw %} {# #}"})])


def test_a_page_is_written_where_it_is_asked_for(tmp_path):
    for path in (str(tmp_path / "new" / "one.html"), f"file://{tmp_path}/two.html"):
        write_page([gang()], path)
        assert (tmp_path / path.removeprefix(f"file://{tmp_path}/")).read_text().startswith("<!doctype html>")


def test_no_runs_have_no_page():
    with pytest.raises(InvalidInput, match="no runs for the page; expected at least one"):
        make_page([])


@pytest.mark.parametrize("module", ["plotly.offline", "jinja2"])
def test_without_the_extra_it_says_what_to_install(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=re.escape("pip install 'sparkdl-torch[report]'")):
        make_page([gang()])


def test_plotly_is_loaded_for_a_page_alone():
    modules = "sparkdl.telemetry.html, sparkdl.telemetry.bottlenecks"
    code = f"import sys, {modules}; assert not {{'plotly', 'jinja2', 'torch', 'pyspark'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- of a model ---------------------------------------------------------------------------------------------------


def test_a_report_writes_the_page_of_its_run(tmp_path):
    directory = written(tmp_path / "digits", gang().events, history=list(gang().history), report={"rows": 7})
    assert Report({"rows": 7}, directory=directory).html() == f"{directory}/report.html"
    html = (tmp_path / "digits" / "report.html").read_text()
    assert "<h1>digits</h1>" in html
    assert "timeline" in figures(html)


def test_a_report_without_a_directory_writes_what_it_knows(tmp_path):
    report = Report({"rows": 7, "seconds": 2.0}, history=[{"epoch": 1, "loss": 0.5}])
    assert list(figures((tmp_path / report.html(str(tmp_path / "a.html"))).read_text())) == ["loss"]
    with pytest.raises(InvalidInput, match=r"expected html\(path\)"):
        report.html()


# ---- however long it was ------------------------------------------------------------------------------------------


def test_a_page_stays_small_however_many_events_there_are(tmp_path):
    sizes = []
    for events in (2_000, 10_000):
        directory = str(tmp_path / str(events))
        write_run(directory, members=8, events=events)
        data = RunData.read(directory)
        assert len(data.events) == pytest.approx(events, abs=10)
        sizes.append(len(make_page([data])))
    assert sizes[1] < 1.05 * sizes[0]
    assert sizes[1] < 6_000_000
