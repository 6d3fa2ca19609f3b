"""The report page as a file: nothing is loaded, text is escaped, the size is bounded."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import pytest

from benchmarks.events.synthetic_run import write_run
from sparkdl.errors import InvalidInput
from sparkdl.report import RunData, make_page
from tests.report.made import event, gang, run, step

HOSTILE = "</script><!--<script>alert('1')//\"&"
LOADS = ("src", "href", "srcset", "data", "action", "poster", "background", "cite", "ping", "formaction")


class Elements(HTMLParser):
    """The elements of a page, their attributes, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


def test_page_loads_nothing():
    page = Elements(make_page([gang()]))
    assert not [attrs for _, attrs in page.elements if set(attrs) & set(LOADS)]
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object", "embed", "base")]
    [policy] = [attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|unsafe-eval", policy)


def test_text_is_escaped_in_tags_and_scripts():
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
        page = Elements(html)
        assert [tag for tag, _ in page.elements].count("script") == 4
        assert "alert('1')" not in "".join(page.scripts[:2] + page.scripts[3:])
        assert "<!--" not in page.scripts[2]
        assert "alert('1')" in json.dumps(json.loads(page.scripts[2]))
        written = html.partition("<body>")[2].partition("<script")[0]
        assert written.count("&lt;/script&gt;&lt;!--&lt;script&gt;alert(&#39;1&#39;)//&#34;&amp;") >= 10


def test_text_is_no_template():
    assert "{{ title }} {% raw %} {# #}" in make_page([run(report={"verdict": "{{ title }} {% raw %} {# #}"})])


def test_without_runs_raises():
    with pytest.raises(InvalidInput, match="no runs for the page; expected at least one"):
        make_page([])


@pytest.mark.parametrize("module", ["plotly.offline", "jinja2"])
def test_missing_package_names_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=re.escape("pip install 'sparkdl-torch[report]'")):
        make_page([gang()])


def test_page_size_does_not_grow_with_events(tmp_path):
    sizes = []
    for events in (1_000, 5_000):
        directory = str(tmp_path / str(events))
        write_run(directory, workers=8, events=events)
        data = RunData.read(directory)
        assert len(data.events) == pytest.approx(events, abs=10)
        sizes.append(len(make_page([data])))
    assert sizes[1] < 1.05 * sizes[0]
    assert sizes[1] < 6_000_000
