"""The outer update: one step of SGD whose gradient is the mean change of several trainings.

    v' = beta v + d
    w' = w - eta v'                    w' = w - eta (d + beta v')  with Nesterov's momentum

w are the weights from which the trainings started, and d is the mean of w minus their ends. eta is the outer learning
rate, beta the outer momentum, and v the velocity, at first 0. These are the equations of ``torch.optim.SGD``, with d as
the gradient. With eta = 1 and beta = 0, w' is the mean of the ends. ``LocalSGD`` and ``FederatedAveraging`` share the
update: S. Reddi et al., Adaptive federated optimization, 2021, where a server's optimizer takes d for a gradient.
"""

from __future__ import annotations

from torch import Tensor


def outer_update(
    w: Tensor, delta: Tensor, velocity: Tensor | float = 0.0, *, lr: float, momentum: float, nesterov: bool = False
) -> tuple[Tensor, Tensor]:
    """The weights w' and the velocity v', as new tensors; ``delta`` is d, and ``velocity`` at first 0."""
    velocity = momentum * velocity + delta
    step = delta + momentum * velocity if nesterov else velocity
    return w - lr * step, velocity
