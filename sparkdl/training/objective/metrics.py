"""Accumulates losses and metrics on each worker, and computes exact values over all workers."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.training.objective.loss import Criterion, shapes
from sparkdl.training.objective.monitored_value import named_metrics

Metrics = Mapping[str, Any]


def open_metrics(metrics: Metrics, device: torch.device) -> dict[str, Any]:
    """Fresh copies of torchmetrics metrics on a device; a collection's metrics become entries ``collection_metric``."""
    opened: dict[str, Any] = {}
    for name, metric in metrics.items():
        opened |= named_metrics({name: copy.deepcopy(metric).to(device)})
    for metric in opened.values():
        metric.reset()
    return opened


def metric_states(metrics: Metrics) -> dict[str, Any]:
    """States of metrics and of the metrics inside them; tensors are live, not copies.

    It includes two things that torchmetrics' ``state_dict`` omits: update counts, and attributes of wrappers such as
    ``MinMaxMetric`` or ``Running``.
    """
    plain = (Tensor, int, float, bool, str, type(None))
    nested: dict[str, Any] = {}
    for name, metric in metrics.items():
        nested[name] = {}
        for part, inner in _parts(metric).items():
            states = {
                key: list(value) if isinstance(value, list) else value for key, value in inner.metric_state.items()
            }
            attributes = {**vars(inner), **inner._buffers}.items()
            others = {key: value for key, value in attributes if type(value) in plain and key not in states}
            nested[name][part] = {"states": states, "others": others}
    return nested


def load_metric_states(metrics: Metrics, states: dict[str, Any]) -> None:
    """Restore the states of ``metric_states``; raises InvalidInput if they are of other metrics."""
    current = metric_states(metrics)
    for name in {**current, **states}:
        saved, expected = (
            {part: [*inner["states"]] for part, inner in nested.get(name, {}).items()} for nested in (states, current)
        )
        if saved != expected:
            raise InvalidInput(
                f"the saved state is of the metrics {', '.join(states) or 'none'}; expected those of this training, "
                f"{', '.join(current) or 'none'}, each of the same class: {name} differs."
            )
        for part, inner in _parts(metrics[name]).items():
            for key, value in {**states[name][part]["others"], **states[name][part]["states"]}.items():
                setattr(inner, key, _moved(value, inner.device))


class MetricAccumulator:
    """Accumulates the mean loss and the metrics of batches; ``add`` does not synchronise with the device."""

    def __init__(self, device: torch.device, metrics: Metrics) -> None:
        self._sum = torch.zeros((), dtype=torch.float64, device=device)
        self._weight = 0.0
        self._metrics = metrics

    def add(self, loss: Tensor, weight: float, output: Any, target: Tensor) -> None:
        """Add one batch: its local mean loss and its weight, and for the metrics what the loss got."""
        self._sum.add_(loss, alpha=weight)
        self._weight += weight
        output = output.detach() if isinstance(output, Tensor) else output
        for name, metric in self._metrics.items():
            with _named(name, metric, output, target):
                metric.update(output, target)

    def local_mean(self) -> float | None:
        """This worker's mean loss so far; None before its first row."""
        return float(self._sum) / self._weight if self._weight else None

    def state_dict(self) -> dict[str, Any]:
        """The accumulated loss, without metrics; the tensor is live, not a copy."""
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss from ``state_dict``."""
        self._sum.copy_(state["sum"])
        self._weight = state["weight"]

    def close(self, group: Group) -> dict[str, float]:
        """The mean loss and the metrics over all workers, the same on each; resets the meter."""
        totals = torch.stack([self._sum, torch.tensor(self._weight, dtype=torch.float64, device=self._sum.device)])
        group.sum_(totals)
        total, weight = totals.tolist()
        self._sum.zero_()
        self._weight = 0.0
        values = together(self._metrics, group.gather(local_states(self._metrics)) if self._metrics else [])
        return {"loss": total / weight if weight else float("nan")} | values


def local_states(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """States of metrics in this process, as input of ``together``."""
    return {
        name: {part: _local_state(inner) for part, inner in _parts(metric).items()} for name, metric in metrics.items()
    }


def together(metrics: Metrics, states: Sequence[Mapping[str, Mapping[str, Any]]], *got: Any) -> dict[str, Any]:
    """Exact values of metrics over ``local_states`` of several processes; resets the metrics.

    Processes without rows are left out, since an empty state lacks the dtype and shape of a filled one. A value is a
    number, a list of numbers, or a dict of these; NaN if no process has rows. An error has the shapes of the output and
    the target ``got``, if there is only one batch.
    """
    values = {}
    for name, metric in metrics.items():
        # The inner metrics of a wrapper or a sum are its modules; torchmetrics never updates the wrapper itself.
        used = [_join(inner, [one[name][part] for one in states]) for part, inner in _parts(metric).items()]
        values[name] = float("nan")
        if any(used):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
                with _named(name, metric, *got):
                    values[name] = _plain(metric.compute())
            metric.reset()
    return values


@contextmanager
def _named(name: str, metric: Any, output: Any = None, target: Any = None) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        kind, advice = type(metric).__name__, "Return another shape from the model, or wrap the metric"
        if kind.startswith("Binary") and getattr(output, "ndim", 2) > 1:
            scores = "..." if output is None else output.shape[1]
            advice = f"For scores of classes, use Multiclass{kind[6:]}(num_classes={scores})"
        got = "" if target is None else f": the output {shapes(output)} and the target {shapes(target)}"
        raise InvalidInput(
            f"the metric {name!r} raised {type(error).__name__}: {str(error).rstrip('.')}. It gets what the loss gets"
            f"{got}. {advice}."
        ) from error


def _parts(metric: Any) -> dict[str, Any]:
    return {name: inner for name, inner in metric.named_modules() if hasattr(inner, "metric_state")}


def _local_state(metric: Any) -> dict[str, Any] | None:
    return {**_moved(metric.metric_state, "cpu")} if metric.update_called else None


def _join(metric: Any, parts: Sequence[dict[str, Any] | None]) -> bool:
    # All states travel in one collective: torchmetrics would gather lists tensor by tensor, and hang if those of two
    # workers differ in length.
    metric.distributed_available_fn = lambda: False
    states = [state for state in parts if state is not None]
    for name, reduction in metric._reductions.items() if states else ():
        values = [state[name] for state in states]
        if isinstance(values[0], list):
            joined: Any = list(itertools.chain.from_iterable(values))  # as if one worker had seen all batches
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
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def observe(
    module: nn.Module,
    evaluate: Callable[[Batch], Any],
    criterion: Criterion,
    batches: Iterable[Batch],
    meter: MetricAccumulator | None,
) -> None:
    """Accumulate the outputs of ``evaluate`` in the module's evaluation mode; the mode of before is then restored.

    Batches whose weight is 0 do not count. Without a meter, the outputs do not count either.
    """
    was_training = module.training
    module.eval()
    with torch.no_grad():
        for batch in batches:
            output = evaluate(batch)
            if meter is not None and batch.weight:
                meter.add(criterion(output, batch), batch.weight, *criterion.arguments(output, batch))
    module.train(was_training)
