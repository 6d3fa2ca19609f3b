"""Models of ragged and binary inputs, and functions for their batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.data.batch import Ragged


class Bag(nn.Module):
    """The sum of a row's tokens' weights, with ``EmbeddingBag``'s two arguments."""

    def __init__(self, tokens: int = 20) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(tokens, 1, mode="sum")
        self.bag.weight.data = torch.arange(tokens).float().unsqueeze(1) / tokens

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        return self.bag(values, offsets).squeeze(-1)


class Masked(nn.Module):
    """The same from padded tokens and their mask."""

    def __init__(self, tokens: int = 20) -> None:
        super().__init__()
        self.table = nn.Embedding(tokens, 1)
        self.table.weight.data = torch.arange(tokens).float().unsqueeze(1) / tokens

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        assert mask.dtype == torch.bool
        return (self.table(values).squeeze(-1) * mask).sum(1)


class Picture(nn.Module):
    """One number from an image of bytes, ``[B, 4, 3]``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 1)
        self.inner.weight.data = torch.arange(12).float().unsqueeze(0) / 100
        self.inner.bias.data.zero_()

    def forward(self, image: Tensor) -> Tensor:
        assert image.shape[1:] == (4, 3)
        return self.inner(image.float().flatten(1)).squeeze(-1)


def read(data: bytes) -> np.ndarray:
    """A codec."""
    return np.frombuffer(data, np.uint8).reshape(4, 3)


def pad(inputs: tuple[Tensor | Ragged, ...], target: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor | None]:
    (tokens,) = inputs
    assert isinstance(tokens, Ragged)
    return Ragged(tokens.values, tokens.bounds, padding=0).arguments(), target


def jitter(
    inputs: tuple[Tensor, ...], target: Tensor | None, generator: torch.Generator
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    (x,) = inputs
    return (x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype),), target
