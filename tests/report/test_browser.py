"""The report page in a browser: charts are drawn, nothing else is loaded, phones and dark mode work."""

from __future__ import annotations

import http.server
import threading

import pytest

from sparkdl.report import make_page, page_data
from sparkdl.report.style import LINES
from tests.report.cases import CASES
from tests.report.looking import contrast, look
from tests.report.made import event, gang, run, step


def many(ranks: int):
    """A run of many ranks on hosts with long names."""
    hosts = [f"ip-10-0-{rank // 4}-1.a-region-far-away.compute.internal" for rank in range(ranks)]
    starts = [event("started", 1, rank, host=host) for rank, host in enumerate(hosts)]
    steps = [step(9, rank, rows=100, feed=1.0, forward=2.0, exchange=1.0 + rank % 3) for rank in range(ranks)]
    return run(event("begin", 0), *starts, *steps, event("end", 10, error=None), name="many")


LONG_ERROR = event("end", 12, error="WorkerFailed: " + "x" * 300 + "\nTraceback\n" + "y " * 300)
PHONE = {"width": 390, "height": 844}
RUNS = {
    **{name: CASES[name] for name in ("gang", "ADMM", "ensemble", "nothing")},
    "three": [gang("one"), gang("two"), gang("a name of many words " * 9)],
    "many ranks": [many(80)],
    "failed": [run(*gang().events[:-1], LONG_ERROR)],
}


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("gang", {}),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in RUNS if name != "gang"),
        *(pytest.param(name, PHONE, marks=pytest.mark.slow) for name in ("three", "many ranks", "failed")),
    ],
)
def test_every_chart_is_drawn_and_fits(browser, tmp_path, name, window):
    page = look(browser, make_page(RUNS[name]), tmp_path, **window)
    assert page.trouble is None
    assert page.data["drawn"].split() == list(page.charts) == list(page_data(RUNS[name])["charts"])
    assert page.probe["overflow"] <= 0
    assert page.probe["width"] <= 500 or not window  # the least that some browsers have
    for chart in page.charts.values():
        assert chart["drawn"]
        assert chart["marks"] > 0
        assert 250 < chart["width"] <= page.probe["width"]
        assert chart["height"] >= 200


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_have_contrast(browser, tmp_path, dark):
    page = look(browser, make_page([gang()]), tmp_path, dark=dark)
    assert page.probe["ground"] == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")
    assert contrast(page.probe["text"], page.probe["ground"]) > 7
    for chart in page.charts.values():
        assert contrast(chart["ink"], page.probe["ground"]) > 7
    shades = [f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})" for colour in LINES]
    assert min(contrast(shade, page.probe["ground"]) for shade in shades) > 2


@pytest.mark.slow
def test_page_blocks_every_request_and_records_errors(browser, tmp_path):
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            loads = f'<img src="{url}/image"><script src="{url}/script"></script><script>fetch("{url}/fetch")</script>'
            free = tmp_path / "free.html"
            free.write_text(f"<!doctype html><body>{loads}</body>")
            browser.dom(free)
            assert "/image" in requests  # a page without a policy loads it
            requests.clear()
            errors = "<script>throw new Error('a mistake')</script><script>Promise.reject('a promise')</script>"
            page = look(browser, make_page([gang()]).replace("<body>", f"<body>{loads}{errors}"), tmp_path)
        finally:
            server.shutdown()
            thread.join()
    assert requests == []
    for cause in ("img-src", "script-src", "connect-src", "a mistake", "a promise"):
        assert cause in (page.trouble or "")
    assert page.data["drawn"].startswith("loss ")
