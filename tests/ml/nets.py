"""Models at the top level of a module, so that workers and saved models can import them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Ragged


def mlp(inputs: int, *hidden: int, outputs: int) -> nn.Module:
    """A perceptron with the same weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        layers: list[nn.Module] = []
        for before, after in zip((inputs, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], outputs))


def digits() -> nn.Module:
    return mlp(64, 64, outputs=10)


def scores() -> nn.Module:
    return mlp(3, outputs=3)


def column() -> nn.Module:
    """One number a row, ``[B, 1]``."""
    return mlp(3, outputs=1)


class Seen(nn.Linear):
    """Two scores of three numbers; its extra state counts the rows that it has seen in training."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x) if self.training else 0
        return super().forward(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"rows": self.rows}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.rows = state["rows"]


def inner() -> type[nn.Module]:
    """A class that cannot be imported, like one of a notebook: twice the ``scores``."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = scores()

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)

    return Inner


def two_scores() -> nn.Module:
    """Two scores for three numbers, zero at the start."""
    module = nn.Linear(3, 2)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


class Line(nn.Module):
    """``column`` without its last dimension, ``[B]``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = column()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).squeeze(-1)


class Scaled(nn.Module):
    """Three inputs of several kinds and shapes, no two of which can be exchanged."""

    def __init__(self, kinds: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(kinds, 1)
        self.table.weight.data = torch.arange(kinds).float().unsqueeze(1)
        self.scale = scale

    def forward(self, x: Tensor, kind: Tensor, price: Tensor) -> Tensor:
        return self.scale * (x.sum((1, 2)) + 100 * self.table(kind).squeeze(-1) - 1000 * price)


class Autoencoder(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(mlp(3, 2, outputs=3))


class Moody(nn.Module):
    """Another output in training mode than in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x.sum(1) + (1000 if self.training else 0)


class Images(nn.Module):
    """Ten scores for a grey image ``[B, 28, 28]`` of bytes' values."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            for inputs, outputs in ((1, 16), (16, 32))
        )
        self.layers = nn.Sequential(first, second, nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 49, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels.float().unsqueeze(1) / 255)


class Connections(nn.Module):
    """23 scores for 38 numbers and three categories of a network connection."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(kinds, 8) for kinds in (4, 80, 16)])
        self.layers = mlp(38 + 3 * 8, 64, 64, outputs=23)

    def forward(self, numbers: Tensor, protocol: Tensor, service: Tensor, flag: Tensor) -> Tensor:
        kinds = [table(kind) for table, kind in zip(self.tables, (protocol, service, flag), strict=True)]
        return self.layers(torch.cat([numbers, *kinds], 1))


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


def pad(inputs: tuple[Tensor | Ragged, ...], target: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor | None]:
    (tokens,) = inputs
    assert isinstance(tokens, Ragged)
    return Ragged(tokens.values, tokens.bounds, padding=0).arguments(), target


def jitter(
    inputs: tuple[Tensor, ...], target: Tensor | None, generator: torch.Generator
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    (x,) = inputs
    return (x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype),), target
