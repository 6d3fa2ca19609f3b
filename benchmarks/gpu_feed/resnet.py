"""A convolutional network of the size of ResNet-50, for images of bytes.

K. He, X. Zhang, S. Ren and J. Sun, Deep residual learning for image recognition, 2016: 25 557 032 parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and number of the blocks


class Bottleneck(nn.Module):
    """Convolutions of 1, 3 and 1 pixels beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """A thousand scores for an image of bytes, ``[B, 3, height, width]``."""

    def __init__(self) -> None:
        super().__init__()
        blocks, inputs = [], 64
        for stage, (width, count) in enumerate(STAGES):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage and not index else 1))
                inputs = 4 * width
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        )
        self.blocks, self.scores = nn.Sequential(*blocks), nn.Linear(inputs, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = (image.float() / 255).contiguous(memory_format=torch.channels_last)
        return self.scores(self.blocks(self.stem(x)).mean((2, 3)))
