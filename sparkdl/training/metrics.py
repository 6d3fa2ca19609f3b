"""Losses and metrics as members count them, and their exact values over all members."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.training.loss import target_of

Metrics = Mapping[str, Any]


def open_metrics(metrics: Metrics, device: torch.device) -> dict[str, Any]:
    """Fresh copies of torchmetrics metrics, on a device; a collection's come one by one, as ``collection_metric``."""
    opened: dict[str, Any] = {}
    for name, metric in metrics.items():
        fresh = copy.deepcopy(metric).to(device)
        collected = fresh.items(copy_state=False) if hasattr(fresh, "items") else ()
        opened |= {f"{name}_{key}": each for key, each in collected} or {name: fresh}
    for each in opened.values():
        each.reset()
    return opened


def metric_states(metrics: Metrics) -> dict[str, Any]:
    """What metrics have seen so far, also in the metrics they are made of; tensors are the live ones.

    Torchmetrics' own ``state_dict`` leaves out how often a metric was updated, and what a wrapper such as
    ``MinMaxMetric`` or ``Running`` keeps beside its states.
    """
    return {name: {part: _kept(each) for part, each in _parts(metric).items()} for name, metric in metrics.items()}


def load_metric_states(metrics: Metrics, states: dict[str, Any]) -> None:
    """Set metrics to what ``metric_states`` returned of the same ones.

    Raises:
        InvalidInput: the states are of other metrics.
    """
    own = metric_states(metrics)
    for name in {**own, **states}:
        saved, expected = (
            {part: [*each["states"]] for part, each in found.get(name, {}).items()} for found in (states, own)
        )
        if saved != expected:
            raise InvalidInput(
                f"the saved state is of the metrics {', '.join(states) or 'none'}; expected those of this training, "
                f"{', '.join(own) or 'none'}, each of the same class: {name} differs."
            )
        for part, each in _parts(metrics[name]).items():
            for key, value in {**states[name][part]["others"], **states[name][part]["states"]}.items():
                setattr(each, key, _moved(value, each.device))


def _kept(metric: Any) -> dict[str, Any]:
    states = {key: list(each) if isinstance(each, list) else each for key, each in metric.metric_state.items()}
    others = {key: each for key, each in {**vars(metric), **metric._buffers}.items() if key not in states}
    plain = (Tensor, int, float, bool, str, type(None))
    return {"states": states, "others": {key: each for key, each in others.items() if type(each) in plain}}


class Meter:
    """The mean loss and the metrics of some batches.

    Args:
        device: where the losses lie; adding one does not wait for the device.
        metrics: name -> torchmetrics metric, updated with every batch.
    """

    def __init__(self, device: torch.device, metrics: Metrics) -> None:
        dtype = torch.float64
        self._sum = torch.zeros((), dtype=dtype, device=device)
        self._weight = 0.0
        self._metrics = metrics

    def add(self, loss: Tensor, output: Any, batch: Batch) -> None:
        """Take down one batch: its local mean loss, and its output where there are metrics."""
        if not batch.weight:
            return
        self._sum.add_(loss, alpha=batch.weight)
        self._weight += batch.weight
        for metric in self._metrics.values():
            metric.update(_detached(output), target_of(batch))

    def local_mean(self) -> float | None:
        """This member's mean loss so far."""
        return float(self._sum) / self._weight if self._weight else None

    def state_dict(self) -> dict[str, Any]:
        """The loss taken down so far, without the metrics; the tensor is the live one."""
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the loss to a state that ``state_dict`` returned."""
        self._sum.copy_(state["sum"])
        self._weight = state["weight"]

    def close(self, group: Group) -> dict[str, float]:
        """The mean loss and the metrics over all members, the same on each; the meter starts again at nothing."""
        totals = torch.stack([self._sum, torch.tensor(self._weight, dtype=torch.float64, device=self._sum.device)])
        group.sum_(totals)
        total, weight = totals.tolist()
        self._sum.zero_()
        self._weight = 0.0
        return {"loss": total / weight if weight else float("nan")} | {
            name: synchronised(metric, group) for name, metric in self._metrics.items()
        }


def synchronised(metric: Any, group: Group) -> Any:
    """A torchmetrics metric's value over all members, exactly, by its own reductions; the metric is reset.

    Members that saw no row are left out: an empty state has neither the dtype nor the shape of a full one.

    Returns:
        A number, a list of numbers, or a dict of these; NaN where no member saw a row.
    """
    # The metrics that a wrapper or a sum is made of are modules of it, and a wrapper itself is never updated.
    used = [_join(each, group.gather(_seen(each))) for each in _parts(metric).values()]
    return _computed(metric) if any(used) else float("nan")


def seen(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """What this process has shown to metrics, to be put ``together`` with what others have."""
    return {name: {part: _seen(each) for part, each in _parts(metric).items()} for name, metric in metrics.items()}


def together(metrics: Metrics, found: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The metrics' values over all that several processes have ``seen``, as ``synchronised`` gives them."""
    values = {}
    for name, metric in metrics.items():
        used = [_join(each, [one[name][part] for one in found]) for part, each in _parts(metric).items()]
        values[name] = _computed(metric) if any(used) else float("nan")
    return values


def _computed(metric: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
        value = _plain(metric.compute())
    metric.reset()
    return value


def _parts(metric: Any) -> dict[str, Any]:
    """The metric and those that it is made of, by their names in it."""
    return {name: each for name, each in metric.named_modules() if hasattr(each, "metric_state")}


def _seen(metric: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = _moved(dict(metric.metric_state), "cpu") if metric.update_called else None
    return found


def _join(metric: Any, found: Sequence[dict[str, Any] | None]) -> bool:
    """Give a metric the states of all members as its own; returns whether any of them has updated it.

    All states travel at once. By itself torchmetrics gathers a list tensor by tensor, as often as this member has
    some, and waits for ever where another member has fewer.
    """
    metric.distributed_available_fn = lambda: False
    states = [state for state in found if state is not None]
    for name, reduction in metric._reductions.items() if states else ():
        values = [state[name] for state in states]
        if isinstance(values[0], list):
            joined: Any = list(itertools.chain.from_iterable(values))  # as if one member had seen all batches
        elif len(values) == 1:
            joined = values[0]
        else:
            joined = torch.stack(values) if reduction is None else reduction(torch.stack(values))
        setattr(metric, name, _moved(joined, metric.device))
    return bool(states)


def _moved(state: Any, device: torch.device | str) -> Any:
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {name: _moved(value, device) for name, value in state.items()}
    return [_moved(value, device) for value in state] if isinstance(state, list) else state


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _detached(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output
