"""The network of the scheduled pipeline's example, conf/train/adult.yaml."""

from __future__ import annotations

from torch import Tensor, nn


class Perceptron(nn.Module):
    """A perceptron with one hidden layer.

    Args:
        features: numbers of a row.
        hidden: units.
        classes: scores that it gives.
    """

    def __init__(self, features: int, hidden: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, features: Tensor) -> Tensor:
        """Scores ``[B, classes]`` of features ``[B, features]``."""
        scores: Tensor = self.layers(features)
        return scores
