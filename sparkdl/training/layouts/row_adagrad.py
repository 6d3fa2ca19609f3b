"""Adagrad with one number for each row of an embedding table.

With ``g_v`` the gradient of row ``v``, of ``d`` numbers, a step changes the rows that have a gradient:

    s_v = s_v + |g_v|^2 / d,        w_v = w_v - lr g_v / (sqrt(s_v) + eps)

The state of a table ``[V, d]`` has ``V`` numbers, where Adagrad has ``V d``. It is the row-wise Adagrad of M. Naumov et
al., Deep learning recommendation model for personalization and recommendation systems, 2019, arXiv:1906.00091.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparkdl.errors import InvalidInput


class RowAdagrad(Optimizer):
    """Row-wise Adagrad for sparse gradients.

    Args:
        params: weights ``[rows, d]`` with sparse gradients.
        lr: the learning rate.
        eps: added to the root, so that nothing is divided by 0.

    Raises:
        InvalidInput: ``lr`` or ``eps`` is no number above 0; in a step, a gradient is dense.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 0.05, eps: float = 1e-10) -> None:
        if not (lr > 0 and eps > 0):
            raise InvalidInput(f"RowAdagrad has lr={lr} and eps={eps}; expected numbers above 0.")
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the rows that have a gradient; returns what the closure returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, weight.grad, group["lr"], group["eps"])
        return loss

    def _step(self, weight: Tensor, gradient: Tensor, lr: float, eps: float) -> None:
        if not gradient.is_sparse:
            raise InvalidInput("RowAdagrad got a dense gradient; expected sparse ones, as tables have.")
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        state = self.state[weight]
        if "sum" not in state:
            state["sum"] = weight.new_zeros(len(weight), 1)
        squares = values.square().mean(1, keepdim=True)
        total = state["sum"].index_add_(0, rows, squares)[rows]
        weight.index_add_(0, rows, values / (total.sqrt() + eps), alpha=-lr)
