"""One self-contained page for a run, or for several beside one another: what happened, and where the time went.

    write_page([RunData.read("/runs/one"), RunData.read("/runs/two")], "report.html")

It needs nothing but a browser: plotly and all data are inside. However many events there were, what is drawn of them
is a few thousand points (``curves``, ``moments``): the page stays small, and opens at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from html import escape
from importlib import metadata, resources
from string import Template
from typing import Any

from sparkdl import files
from sparkdl.errors import InvalidInput
from sparkdl.page.run_data import RunData

__all__ = ["RunData", "make_page", "write_page"]

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
    from sparkdl.page import tables

    figures = _figures(runs)
    several = len(runs) > 1
    body = [
        tables.heading(runs),
        tables.figures(runs),
        _charts(figures),
        *([] if several else [tables.attempts(runs[0])]),
        tables.configuration(runs),
        tables.environment(runs),
        *([] if several else [tables.history(runs[0]), tables.messages(runs[0])]),
    ]
    return Template(resources.files(__name__).joinpath("template.html").read_text("utf-8")).substitute(
        title=escape("sparkdl: " + ", ".join(run.name for run in runs)),
        body="\n".join(part for part in body if part),
        version=metadata.version(_DISTRIBUTION),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        plotly=get_plotlyjs(),
        # In a script element nothing is escaped, and only this ends it.
        figures=json.dumps(figures, separators=(",", ":")).replace("</", "<\\/"),
    )


def _figures(runs: Sequence[RunData]) -> dict[str, Any]:
    """The charts that there is something to draw in, by name."""
    from sparkdl.page import curves, moments

    made = {
        "losses": curves.losses(runs),
        "metrics": curves.metrics(runs),
        "residuals": curves.residuals(runs),
        "throughput": moments.throughput(runs),
        "phases": moments.phase_shares(runs),
    }
    if len(runs) == 1:
        run = runs[0]
        made |= {"timeline": moments.timeline(run), "workers": moments.workers(run), "members": curves.members(run)}
    shown = {name: json.loads(figure.to_json()) for name, figure in made.items() if figure is not None}
    for figure in shown.values():
        figure["layout"].pop("template", None)  # plotly's own look, 7 kB a chart
    return shown


def _charts(figures: dict[str, Any]) -> str:
    wide = {"timeline", "phases"}
    cells = [f'<div id="{name}"{" class=wide" if name in wide else ""}></div>' for name in figures]
    return f'<div class="charts">{"".join(cells)}</div>'
