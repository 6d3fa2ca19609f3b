"""One self-contained page for a run, or for several beside one another: what happened, and where the time went.

    write_page(read_runs(["/runs/one", "/runs/two"]), "report.html")

It needs nothing but a browser: plotly and all data are inside, and the page forbids the browser to load anything else.
However many events there were, what is drawn of them is a few thousand points (``curves``, ``moments``): the page stays
small, and opens at once. A run that goes on, or was ended from outside, is shown as far as its events tell of it.

Credentials and options in URIs are left out; what else a configuration, an error or a log line says, the page says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib import metadata, resources
from string import Template
from typing import TYPE_CHECKING, Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.telemetry.html.run_data import RunData, read_runs

if TYPE_CHECKING:
    from sparkdl.telemetry.html.style import Chart

__all__ = ["RunData", "make_page", "read_runs", "write_page"]

_DISTRIBUTION = "sparkdl-torch"


def write_page(runs: Sequence[RunData], path: str) -> None:
    """Write the page of some runs.

    Args:
        runs: at least one.
        path: of the file, a path or URI; what is there is overwritten.

    Raises:
        InvalidInput: there are no runs, or plotly is not installed.
    """
    files.write(path, make_page(runs).encode())


def make_page(runs: Sequence[RunData]) -> str:
    """The page of some runs, as HTML; raises as ``write_page``."""
    if not runs:
        raise InvalidInput("there are no runs for the page; expected at least one.")
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InvalidInput(f"the report page needs plotly: pip install '{_DISTRIBUTION}[report]'.") from error
    from sparkdl.telemetry.html import tables

    charts, several = _charts(runs), len(runs) > 1
    body = [
        tables.heading(runs),
        tables.figures(runs),
        _places(charts),
        *([] if several else [tables.attempts(runs[0])]),
        tables.configuration(runs),
        tables.environment(runs),
        *([] if several else [tables.history(runs[0]), tables.messages(runs[0])]),
    ]
    return Template(resources.files(__name__).joinpath("template.html").read_text("utf-8")).substitute(
        title=escape("sparkdl: " + ", ".join(run.name for run in runs)),
        body="\n".join(part for part in body if part),
        version=metadata.version(_DISTRIBUTION),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        plotly=get_plotlyjs(),
        figures=_script({name: _plain(chart) for name, chart in charts.items()}),
    )


def _charts(runs: Sequence[RunData]) -> dict[str, Chart]:
    """The charts that there is something to draw in, by name."""
    from sparkdl.telemetry.html import history_charts, time_charts

    made: dict[str, Chart | None] = {
        "loss": history_charts.loss(runs),
        "residuals": history_charts.residuals(runs),
        **{f"metric-{index}": chart for index, chart in enumerate(history_charts.metrics(runs))},
        "throughput": time_charts.throughput(runs),
    }
    if len(runs) == 1:
        made |= {"members": history_charts.members(runs[0]), "workers": time_charts.workers(runs[0])}
    made["phases"] = time_charts.phase_shares(runs)
    if len(runs) == 1:
        made["timeline"] = time_charts.timeline(runs[0])
    return {name: chart for name, chart in made.items() if chart is not None}


def _places(charts: Mapping[str, Chart]) -> str:
    """Where the charts are drawn; the first one is wide where the others would leave a gap."""
    narrow = [name for name, chart in charts.items() if not chart.wide]
    wide = {name for name, chart in charts.items() if chart.wide} | set(narrow[: len(narrow) % 2])
    cells = [_place(name, chart, wide=name in wide) for name, chart in charts.items()]
    return f'<div class="charts">{"".join(cells)}</div>' if cells else ""


def _place(name: str, chart: Chart, *, wide: bool) -> str:
    title = escape(chart.title)
    caption = f"<figcaption><b>{title}</b> {escape(chart.note)}</figcaption>"
    drawn = f'<div id="{name}" role="img" aria-label="{title}"></div>'
    return f"<figure{' class=wide' if wide else ''}>{caption}{drawn}</figure>"


def _plain(chart: Chart) -> Any:
    found = json.loads(chart.figure.to_json())
    found["layout"].pop("template", None)  # plotly's own look, 7 kB a chart
    return found


def _script(value: Any) -> str:
    """JSON that may stand in a script element, of which ``</script`` would be the end, and ``<!--`` the beginning."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
