"""The report page in a browser: charts are drawn, nothing else is loaded, phones and the dark are thought of."""

from __future__ import annotations

import http.server
import threading

import pytest

from sparkdl.telemetry.html import make_page
from sparkdl.telemetry.html.style import LINES, PHASE_COLOURS
from tests.telemetry.html.looking import colours, contrast, look
from tests.telemetry.html.made import START, event, gang, run, step

HTML = "<img src=x onerror=\"document.title='gotcha'\"><b>bold</b></script>"
ADMM = [{"round": each, "primal": 2.0 / each, "dual": 1.0 / each, "rho": 0.1, "seconds": 1.0} for each in (1, 2, 3)]
BAGGING = [{"member": each, "loss": 0.5, "valid_loss": 0.6, "seconds": 9.0 + each} for each in range(8)]


def many(ranks: int):
    """A run of many ranks on hosts with long names."""
    name = "ip-10-0-{}-1.a-region-far-away.compute.internal"
    hosts = [event("started", 1, rank, host=name.format(rank // 4)) for rank in range(ranks)]
    steps = [step(9, rank, rows=100, feed=1.0, forward=2.0, exchange=1.0 + rank % 3) for rank in range(ranks)]
    return run(event("begin", 0), *hosts, *steps, event("end", 10, error=None), name="many")


def failed():
    """A run that failed in its second attempt."""
    return run(*gang().events[:-1], event("end", 12, error="WorkerFailed: " + "x" * 300 + "\nTraceback\n" + "y " * 300))


ROUNDS = [event("begin", 0), step(8, forward=6.0), step(8, 1, other=4.0), event("end", 9, error=None)]
RUNS = {
    "a gang": ([gang()], "loss metric-0 throughput workers phases timeline"),
    "three": ([gang("one"), gang("two"), gang("a name that goes on " * 9)], "loss metric-0 throughput phases"),
    "ADMM": ([run(*ROUNDS, history=ADMM)], "residuals metric-0 phases timeline"),
    "an ensemble": ([run(history=BAGGING)], "loss members"),
    "many ranks": ([many(80)], "throughput phases timeline"),
    "a failed run": ([failed()], "loss throughput workers phases timeline"),
    "a history alone": ([run(history=[{"epoch": 1, "loss": 0.5, "rows_per_second": 7.0}])], "loss throughput"),
    "a run that has begun": ([run(event("begin", 0))], ""),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("a gang", "three") else [pytest.mark.slow]) for name in RUNS]
)
def test_every_chart_is_drawn(browser, tmp_path, name):
    runs, charts = RUNS[name]
    found = look(browser, make_page(runs), tmp_path)
    assert found.trouble is None
    assert found.data["drawn"] == charts
    assert list(found.charts) == charts.split()
    for chart in found.charts.values():
        assert chart["drawn"]
        assert chart["marks"] > 0
        assert chart["width"] > 300
        assert chart["height"] >= 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a gang", "three", "many ranks", "a failed run"])
def test_a_page_fits_a_phone(browser, tmp_path, name):
    runs, charts = RUNS[name]
    found = look(browser, make_page(runs), tmp_path, width=390, height=844)
    assert found.trouble is None
    assert found.probe["width"] <= 500  # the least that some browsers have
    assert found.probe["overflow"] <= 0
    assert list(found.charts) == charts.split()
    for chart in found.charts.values():
        assert 250 < chart["width"] <= found.probe["width"]


@pytest.mark.slow
def test_charts_say_what_is_in_them(browser, tmp_path):
    charts = look(browser, make_page([gang()]), tmp_path).charts
    assert charts["loss"]["legend"] == ["loss", "valid_loss"]
    assert charts["metric-0"]["legend"] == ["accuracy", "valid_accuracy"]
    assert charts["throughput"]["legend"] == ["rank 0", "rank 1", "restart"]
    assert charts["phases"]["legend"] == ["feed", "forward", "exchange", "update"]
    assert sorted(charts["phases"]["ticks"]) == ["rank 0", "rank 1"]
    assert charts["timeline"]["legend"] == ["feed", "forward", "restart"]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(browser, tmp_path, dark):
    found = look(browser, make_page([gang()]), tmp_path, dark=dark)
    assert found.probe["ground"] == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")
    assert contrast(found.probe["text"], found.probe["ground"]) > 7
    for chart in found.charts.values():
        assert contrast(chart["ink"], found.probe["ground"]) > 7
    shades = [f"rgb({', '.join(str(int(each[at : at + 2], 16)) for at in (1, 3, 5))})" for each in LINES]
    assert min(contrast(shade, found.probe["ground"]) for shade in shades) > 2


@pytest.mark.slow
def test_text_stays_text(browser, tmp_path):
    data = run(
        event("begin", 0, environment={HTML: HTML}),
        event("attempt", 0, size=1),
        step(3, forward=1.0),
        event("span", 3, 0, name=HTML, start=START, seconds=1.0),
        event("log", 4, 0, level=HTML, message=HTML),
        event("end", 5, error=HTML),
        name=HTML,
        history=[{"epoch": 1, HTML + "loss": 0.5, HTML: 0.5, "valid_" + HTML: 0.5}],
        configuration={"class": HTML, HTML: HTML},
    )
    for runs in ([data], [data, gang()]):
        found = look(browser, make_page(runs), tmp_path)
        assert found.trouble is None
        assert found.probe["title"].startswith("sparkdl: ")
        assert HTML in found.probe["heading"]
        assert found.probe["tags"] == 0
        assert any(HTML in entry for entry in found.charts["metric-0"]["legend"])


@pytest.mark.slow
def test_a_page_lets_nobody_load_anything(browser, tmp_path):
    """Not even what somebody has managed to write into it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            smuggled = (
                f'<img src="{url}/image"><script src="{url}/script"></script><script>fetch("{url}/fetch")</script>'
            )
            free = tmp_path / "free.html"
            free.write_text(f"<!doctype html><body>{smuggled}</body>")
            browser.dom(free)
            assert "/image" in asked  # it would be loaded
            asked.clear()
            found = look(browser, make_page([gang()]).replace("<body>", f"<body>{smuggled}"), tmp_path)
        finally:
            server.shutdown()
            thread.join()
    assert asked == []
    for what in ("img-src", "script-src", "connect-src"):
        assert what in (found.trouble or "")
    assert found.data["drawn"].startswith("loss ")


@pytest.mark.slow
def test_what_goes_wrong_is_noted(browser, tmp_path):
    broken = "<script>throw new Error('a mistake')</script><script>Promise.reject('a promise')</script>"
    found = look(browser, make_page([gang()]).replace("</h1>", f"</h1>{broken}"), tmp_path)
    assert "a mistake" in (found.trouble or "")
    assert "a promise" in (found.trouble or "")


@pytest.mark.slow
@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 390)])
def test_a_screenshot_shows_the_charts(browser, tmp_path, dark, width):
    page, image = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(make_page([gang()]))
    browser.screenshot(page, image, width=width, height=4000, dark=dark)
    size, found = colours(browser, image)
    assert size == (width, 4000)
    assert max(found, key=found.__getitem__) == ((20, 22, 26) if dark else (255, 255, 255))
    for phase in ("feed", "forward", "exchange", "update"):
        shade = tuple(int(PHASE_COLOURS[phase][at : at + 2], 16) for at in (1, 3, 5))
        assert found.get(shade, 0) > 500, phase
    assert len(found) > 100  # text and lines have edges of many shades
