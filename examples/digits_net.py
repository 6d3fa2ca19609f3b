"""A small convolutional network for 8x8 digits."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    """Two convolutions and a linear layer: 64 pixels in, the logits of ten classes out.

    Args:
        channels: of the first convolution; the second has twice as many.
        dropout: probability with which a feature is left out while training.
    """

    def __init__(self, channels: int = 24, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * channels * 16, 10),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Pixels ``[B, 64]``, from 0 to 1, to logits ``[B, 10]``."""
        return self.layers(features)
