"""The report page of one or several runs: a self-contained HTML file.

    write_page(read_runs(["/runs/one", "/runs/two"]), "report.html")

The page contains plotly and all data, and forbids the browser to load anything else. It draws at most a few thousand
points, so it stays small. An unfinished or killed run is shown up to its last event. URIs lose their credentials and
options, and ``***`` replaces secrets (``sparkdl.io.redaction``); all other text appears unchanged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.report.run_data import RunData, read_runs

if TYPE_CHECKING:
    from sparkdl.report.style import Chart

__all__ = ["RunData", "make_page", "read_runs", "write_page"]

_DISTRIBUTION = "sparkdl-torch"


def write_page(runs: Sequence[RunData], path: str) -> None:
    """Write the report page.

    Args:
        runs: at least one.
        path: path or URI of the file; an existing file is overwritten.

    Raises:
        InvalidInput: there are no runs, or plotly or jinja2 is not installed.
    """
    files.write(path, make_page(runs).encode(errors="replace"))  # text of events may hold halves of a character


def make_page(runs: Sequence[RunData]) -> str:
    """Render the report page as HTML; raises what ``write_page`` raises."""
    if not runs:
        raise InvalidInput("there are no runs for the page; expected at least one.")
    try:
        from jinja2 import Environment, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InvalidInput(f"the page needs plotly and jinja2: pip install '{_DISTRIBUTION}[report]'.") from error
    page = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    # tojson escapes text that would end a script element or begin a comment in it.
    page.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return page.from_string(resources.files(__name__).joinpath("template.html").read_text("utf-8")).render(
        page_data(runs),
        version=metadata.version(_DISTRIBUTION),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        plotly=get_plotlyjs(),
    )


def page_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """The variables of the page's template."""
    from sparkdl.report.tables import page_tables

    charts = _charts(runs)
    drawn = {name: json.loads(chart.figure.to_json()) for name, chart in charts.items()}
    for figure in drawn.values():
        figure["layout"].pop("template", None)  # plotly's default style, 7 kB a chart
    narrow = [name for name, chart in charts.items() if not chart.wide]
    return {
        "title": "sparkdl: " + ", ".join(run.name for run in runs),
        **page_tables(runs),
        "charts": charts,
        # With an odd number of narrow charts, the first is wide, so that no gap is left.
        "wide": {name for name, chart in charts.items() if chart.wide} | {*narrow[: len(narrow) % 2]},
        "drawn": drawn,
    }


def _charts(runs: Sequence[RunData]) -> dict[str, Chart]:
    from sparkdl.report import history_charts, time_charts
    from sparkdl.report.search_charts import search_charts

    run = runs[0] if len(runs) == 1 else None
    charts: dict[str, Chart | None] = {
        "loss": history_charts.loss(runs),
        "residuals": history_charts.residuals(runs),
        **{f"metric-{index}": chart for index, chart in enumerate(history_charts.metrics(runs))},
        "throughput": time_charts.throughput(runs),
        "members": history_charts.members(run) if run else None,
        **(search_charts(run) if run else {}),
        "workers": time_charts.workers(run) if run else None,
        "phases": time_charts.phase_shares(runs),
        "timeline": time_charts.timeline(run) if run else None,
    }
    return {name: chart for name, chart in charts.items() if chart is not None}
