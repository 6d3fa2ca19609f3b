"""The report of a run, from the results of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.telemetry.bottlenecks import spending
from sparkdl.training.spec import Trained


def scalar_output(shapes: Sequence[list[int] | None]) -> bool:
    """Whether the model's output is one number per row.

    Args:
        shapes: the shape of an output row on each worker or shard; None if it had no row or no tensor.
    """
    return all(shape in ([], [1]) for shape in [shape for shape in shapes if shape is not None][:1])


def make_report(members: list[Trained], seconds: float, supervisor: Supervisor) -> dict[str, Any]:
    """Summarize a run: seconds, rows, bytes, attempts, skew over workers, and seconds per phase.

    Args:
        members: the workers' results, in rank order.
        seconds: wall time of the whole fit.
        supervisor: counts failed attempts (``restarts``) and the workers of each attempt (``workers``).
    """
    rows = [member.report["rows"] for member in members]
    measured = [member.report.get("phases", {}) for member in members]
    steps = members[0].history[-1]["step"]
    samples = members[0].history[-1]["samples"]
    trained = max(member.report["train_seconds"] for member in members)
    return {
        "seconds": seconds,
        "train_seconds": trained,
        "feed_wait_seconds": max(member.report["feed_wait_seconds"] for member in members),
        "rows": sum(rows),
        "rows_per_second": samples / max(trained, 1e-9),
        "bytes": sum(member.report["bytes_per_step"] for member in members) * steps,
        "restarts": len(supervisor.failures),
        "workers": list(supervisor.sizes),
        "best_epoch": members[0].report["best_epoch"],
        "rows_by_rank": rows,
        "skew": max(rows) * len(rows) / max(sum(rows), 1),
        **(spending(measured, [member.report["host"] for member in members]) if all(measured) else {}),
    }


class Report(dict[str, Any]):
    """Summary of a run: a dict that can be written as an HTML page.

    Args:
        values: the figures by name.
        history: a row per epoch, round or member.
        directory: of the run, with its events and its configuration; default: none.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        history: Sequence[Mapping[str, Any]] = (),
        directory: str | None = None,
    ) -> None:
        super().__init__(values or {})
        self._history = [dict(row) for row in history]
        self._directory = directory

    def html(self, path: str | None = None) -> str:
        """Write the run as one self-contained page; without a ``runDir`` it has no timeline and no configuration.

        Args:
            path: a path or URI of the file; default: ``report.html`` in the ``runDir``.

        Returns:
            The path of the page.

        Raises:
            InvalidInput: neither a path nor a ``runDir`` is given, or plotly is not installed.
        """
        from sparkdl.telemetry.html import RunData, write_page

        if path is None:
            if self._directory is None:
                raise InvalidInput("the run had no runDir; expected html(path), with the path of the file.")
            path = files.join(self._directory, "report.html")
        if self._directory is not None and files.exists(self._directory):
            run = RunData.read(self._directory)
        else:
            run = RunData("run", history=self._history, report=dict(self))
        write_page([run], path)
        return path
