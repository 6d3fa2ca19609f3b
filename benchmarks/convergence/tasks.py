"""The two trainings: a convolutional network for digits of MNIST, and a transformer for characters of Shakespeare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.federated.digits import folder, mnist
from sparkdl import Objective
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.transforms import Collate
from sparkdl.io.weights import unpack

CONTEXT = 64  # characters from which the transformer predicts
HELD_OUT = 0.2  # of MNIST's 10 000 images
TRAINED, VALIDATED = 12_800, 1_600  # rows of the play, from its start and from its end

Rows = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A training on real data, and its score on validation rows.

    Attributes:
        load: returns the training rows and the validation rows.
        columns: their tensors.
        model: a factory.
        loss: of a batch.
        collate: as in ``Training``.
        workers: of the gang.
        batch_size: rows of the global batch.
        epochs: passes over the data.
        score: maps a trained module and the validation rows to a number.
    """

    load: Callable[[], tuple[Rows, Rows]]
    columns: Columns
    model: Callable[[], nn.Module]
    loss: Any
    collate: Collate | None
    workers: int
    batch_size: int
    epochs: int
    score: Callable[[nn.Module, Rows], float]

    def objective(self, optimizer: Callable[..., torch.optim.Optimizer]) -> Objective:
        """Each step is clipped, and the learning rate follows ``schedule``."""
        return Objective(self.model, self.loss, optimizer, schedule, scheduler_interval="step", max_grad_norm=1.0)

    def scored(self, weights: bytes, validation: Rows) -> float:
        """The score of a run's weights."""
        module = self.model()
        unpack(weights, module)
        with torch.inference_mode():
            return self.score(module.eval(), validation)


def schedule(optimizer: torch.optim.Optimizer, steps_per_epoch: int, epochs: int) -> LambdaLR:
    """A linear rise in the first twentieth of all steps, then a cosine to a hundredth of the learning rate."""
    steps = steps_per_epoch * epochs
    rise = max(1, steps // 20)

    def factor(step: int) -> float:
        part = min(1.0, (step - rise) / max(1, steps - rise))
        return (step + 1) / rise if step < rise else 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2

    return LambdaLR(optimizer, factor)


# ---- digits -------------------------------------------------------------------------------------------------------


class Digits(nn.Sequential):
    """Two convolutions and a linear layer: 9 098 parameters."""

    def __init__(self) -> None:
        def stage(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

        images: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
        super().__init__(*images, *stage(1, 8), *stage(8, 16), nn.Flatten(), nn.Linear(784, 10))


@cache
def images() -> tuple[Rows, Rows]:
    """8 000 images for training and 2 000 for validation."""
    training, validation = (
        {"pixels": part.pixels / np.float32(255), "digit": part.digits} for part in mnist(HELD_OUT, seed=0)
    )
    return training, validation


def accuracy(module: nn.Module, rows: Rows) -> float:
    """The share of images that the module labels correctly."""
    right = module(torch.from_numpy(rows["pixels"])).argmax(1) == torch.from_numpy(rows["digit"])
    return float(right.double().mean())


# ---- characters ---------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Two layers of width 64 with four heads: 79 553 parameters."""

    def __init__(self, tokens: int = 65, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        return self.head(self.layers(self.embedding(tokens) + self.position, mask=future))  # type: ignore[no-any-return]


@cache
def text() -> tuple[Rows, Rows]:
    """Rows of 65 characters: the play's last tenth is for validation."""
    characters = np.frombuffer((folder() / "tinyshakespeare.txt").read_bytes(), np.uint8)
    characters = np.unique(characters, return_inverse=True)[1]
    rows = characters[: len(characters) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1).astype(np.int64)
    return {"tokens": rows[:TRAINED]}, {"tokens": rows[-VALIDATED:]}


def shift(inputs: Any, target: Any) -> Any:
    """All characters but the last, and all but the first."""
    (tokens,) = inputs
    return (tokens[:, :-1],), tokens[:, 1:]


def next_character_loss(output: Tensor, target: Tensor) -> Tensor:
    """A loss ``[B, 64]``, in nats."""
    return nn.functional.cross_entropy(output.transpose(1, 2), target, reduction="none")


def validation_loss(module: nn.Module, rows: Rows) -> float:
    """The mean loss of a character, in nats."""
    tokens = torch.from_numpy(rows["tokens"])
    losses = [next_character_loss(module(piece[:, :-1]), piece[:, 1:]).flatten() for piece in tokens.split(256)]
    return float(torch.cat(losses).double().mean())


TASKS = {
    "digits": Task(
        images,
        Columns((InputColumn("pixels"),), InputColumn("digit", "int64")),
        Digits,
        nn.CrossEntropyLoss(),
        None,
        4,
        64,
        3,
        accuracy,
    ),
    "shakespeare": Task(
        text,
        Columns((InputColumn("tokens"),), InputColumn("tokens")),
        Transformer,
        next_character_loss,
        shift,
        2,
        32,
        3,
        validation_loss,
    ),
}
TASKS["untuned"] = TASKS["shakespeare"]
