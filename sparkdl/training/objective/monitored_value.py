"""The monitored value: the column of the history that early stopping and ``ReduceLROnPlateau`` compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from sparkdl.errors import InvalidInput

Mode = Literal["min", "max"]
MODES = ("auto", "min", "max")

_LOSSES = ("valid_loss", "loss", "objective")  # Without a name, the first of these that a row has is monitored.


def named_metrics(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each metric and its name in the history, of a collection ``collection_metric``; raises for other values."""
    for name, metric in metrics.items():
        if isinstance(metric, type) or not hasattr(metric, "compute"):
            raise InvalidInput(f"metrics has {metric!r} as {name!r}; expected a metric, such as BinaryAUROC().")
        if hasattr(metric, "items"):
            yield from ((f"{name}_{key}", part) for key, part in metric.items(copy_state=False))
        else:
            yield name, metric


def mode_of(monitor: str | None, mode: str, metrics: Mapping[str, Any]) -> Mode:
    """Whether a lower (``"min"``) or a higher value is better; raises InvalidInput if the metric does not say it."""
    named = dict(named_metrics(metrics))
    metric = None if monitor is None else named.get(monitor.removeprefix("valid_"))
    if metric is None and (monitor is None or monitor in _LOSSES):
        if mode == "max":
            raise InvalidInput(
                f"monitorMode is 'max', and monitor is {monitor!r}, a loss, which is minimized; expected the name of a "
                "metric as monitor, or another monitorMode."
            )
        return "min"
    if mode != "auto":
        return cast(Mode, mode)
    higher = getattr(metric, "higher_is_better", None)
    if higher is None:
        reason = "the metric does not say" if metric else f"none of the metrics ({', '.join(named) or 'none'}) says"
        raise InvalidInput(
            f"monitorMode is 'auto', and {reason} whether a higher {monitor} is better; expected 'min' or 'max'."
        )
    return "max" if higher else "min"


def check_monitor(monitor: str | None, metrics: Mapping[str, Any], *, validated: bool, in_rounds: bool) -> None:
    """Raise InvalidInput if the history will have no such column; algorithms of rounds add columns of their own."""
    names = [name for name, _ in named_metrics(metrics)]
    columns = [f"valid_{name}" for name in ("loss", *names)] if validated else names
    if not in_rounds:
        columns = ["loss", *columns]
    if monitor is None or monitor in columns:
        return
    held_out = monitor.startswith("valid_")
    if in_rounds and not held_out and monitor not in names:
        return
    lacking = held_out and not validated
    advice = " For validation rows, set validationFraction or validationIndicatorCol." if lacking else ""
    raise InvalidInput(f"monitor is {monitor!r}; the history has {', '.join(columns) or 'no metrics'}.{advice}")


def monitored(row: Mapping[str, Any], monitor: str | None) -> float:
    """The monitored value of an epoch or a round; raises InvalidInput if its row has no such number."""
    name = next((loss for loss in _LOSSES if loss in row), None) if monitor is None else monitor
    if name is None:
        raise InvalidInput(
            f"patience and keepBest need a loss, and the history has {', '.join(row)}; set validationFraction or "
            "validationIndicatorCol, or monitor to one of these."
        )
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(
            f"monitor is {name!r}, which is {value!r}; the history has {', '.join(row)}, expected a number."
        )
    return float(value)
