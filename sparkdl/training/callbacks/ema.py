"""Exponential moving average of the weights, as a callback.

    a_0 = w_0,  a_t = d_t a_{t-1} + (1 - d_t) w_t,  d_t = min(decay, (1 + t) / (10 + t))

w_t are the weights after step t, and a_t their average. Early averages follow the weights more closely, so that the
initial weights soon count for nothing; d_t is that of TensorFlow's ExponentialMovingAverage. B. Polyak and A. Juditsky,
Acceleration of stochastic approximation by averaging, 1992, average the weights of all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import BelowOne, checked
from sparkdl.training.callbacks.callback import CallbackContext

_START = 10  # of d_t


class EMA:
    """An exponential moving average of the weights, which validation, early stopping and the fitted model take.

    The steps of training stay the same. Buffers, such as those of batch normalisation, are those of the training. Each
    worker holds one more copy of the weights, during validation two, and a checkpoint holds one. Of several averages,
    the last one in ``callbacks`` counts.

    Args:
        decay: the largest share of the earlier average, from 0 (the last weights) to below 1; default: 0.999, about the
            last 1 000 steps.

    Raises:
        InvalidInput: ``decay`` is out of range.
    """

    replicated = True  # the replicas' weights are equal
    changes_result = True

    def __init__(self, decay: float = 0.999) -> None:
        self.decay: float = checked(decay, BelowOne, "EMA.decay")
        self._updates = 0
        self._average: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"EMA(decay={float(self.decay)})"

    def on_start(self, run: CallbackContext) -> None:
        """Begin with the weights, or with the restored average."""
        trained = run.parameters
        self._average = {
            name: self._average.get(name, value).detach().to(value, copy=True) for name, value in trained.items()
        }

    @torch.no_grad()
    def on_step(self, run: CallbackContext) -> None:
        """Update the average."""
        self._updates += 1
        decay = min(self.decay, (1 + self._updates) / (_START + self._updates))
        trained = run.parameters
        averages = [self._average[name] for name in trained]
        update: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        update(averages, [value.detach() for value in trained.values()], self._updates)

    def on_validation_start(self, run: CallbackContext) -> None:
        """Put the average into the module; the loop restores the weights of the training."""
        _fill(run.parameters, self._average)

    def on_end(self, run: CallbackContext) -> None:
        """Leave the average in the module."""
        _fill(run.parameters, self._average)

    def state_dict(self) -> dict[str, Any]:
        """The decay, the average and the number of its updates."""
        return {"decay": float(self.decay), "updates": self._updates, "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``; raise InvalidInput if its average has another decay."""
        if (decay := state.get("decay", self.decay)) != self.decay:  # earlier versions did not save it
            raise InvalidInput(
                f"the saved average has decay={decay}, and this one decay={self.decay}. Resume with EMA({decay}), or "
                "start a new run elsewhere."
            )
        self._updates, self._average = state["updates"], dict(state["average"])


@torch.no_grad()
def _fill(parameters: Mapping[str, nn.Parameter], weights: dict[str, Tensor]) -> None:
    for name, value in parameters.items():
        value.copy_(weights[name])
