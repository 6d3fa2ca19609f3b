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
from collections.abc import Sequence
from importlib import metadata, resources
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
        InvalidInput: there are no runs, or plotly or jinja2 is not installed.
    """
    files.write(path, make_page(runs).encode())


def make_page(runs: Sequence[RunData]) -> str:
    """The page of some runs, as HTML; raises as ``write_page``."""
    if not runs:
        raise InvalidInput("there are no runs for the page; expected at least one.")
    try:
        from jinja2 import Environment, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InvalidInput(f"the page needs plotly and jinja2: pip install '{_DISTRIBUTION}[report]'.") from error
    page = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    # tojson escapes what would end a script element, or begin a comment in one.
    page.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return page.from_string(resources.files(__name__).joinpath("template.html").read_text("utf-8")).render(
        page_data(runs),
        version=metadata.version(_DISTRIBUTION),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        plotly=get_plotlyjs(),
    )


def page_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """What the page of some runs says and draws, by the names that its template has for it."""
    from sparkdl.telemetry.html.tables import page_tables

    charts = _charts(runs)
    narrow = [name for name, chart in charts.items() if not chart.wide]
    return {
        "title": "sparkdl: " + ", ".join(run.name for run in runs),
        **page_tables(runs),
        "charts": charts,
        # The first one is wide where the others would leave a gap.
        "wide": {name for name, chart in charts.items() if chart.wide} | {*narrow[: len(narrow) % 2]},
        "drawn": {name: _plain(chart) for name, chart in charts.items()},
    }


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


def _plain(chart: Chart) -> Any:
    found = json.loads(chart.figure.to_json())
    found["layout"].pop("template", None)  # plotly's own look, 7 kB a chart
    return found
