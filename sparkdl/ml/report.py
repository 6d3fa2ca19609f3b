"""What an estimator tells of a run, from what its members brought back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.telemetry.bottlenecks import spending
from sparkdl.training.spec import Trained


def scalar_output(shapes: Sequence[list[int] | None]) -> bool:
    """Whether the model's output is one number for each row.

    Args:
        shapes: of a row of it, as members or parts found it; None of those that had no row, or found no tensor.
    """
    return all(shape in ([], [1]) for shape in [shape for shape in shapes if shape is not None][:1])


def make_report(members: list[Trained], seconds: float, supervisor: Supervisor) -> dict[str, Any]:
    """What a run took: seconds, rows, bytes, attempts, skew over members, and where the time went.

    Args:
        members: what the members brought back, in rank order.
        seconds: wall time of the whole fit.
        supervisor: knows of the attempts: how many failed (``restarts``), and the members of each (``workers``).
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
