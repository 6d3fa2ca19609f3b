"""A user's own module, as it is copied beside a logged model and taken from there: it imports nothing of the tests."""

from __future__ import annotations

from torch import Tensor, nn


class OwnNet(nn.Module):
    """Three scores for three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)
