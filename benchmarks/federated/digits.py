"""MNIST's 10 000 test images: training rows of each client, and validation rows."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.rounds import Algorithm, Memory, State, Update
from sparkdl.training.objective.objective import Objective

Array = npt.NDArray[Any]

COLUMNS = Columns((InputColumn("pixels"),), InputColumn("digit", "int64"), client=InputColumn("client", "int64"))
DIGITS = 10


@dataclass(frozen=True)
class Images:
    """Images and their digits.

    Attributes:
        pixels: uint8 ``[rows, 784]``.
        digits: int64 ``[rows]``.
    """

    pixels: Array
    digits: Array

    def __getitem__(self, rows: Array) -> Images:
        return Images(self.pixels[rows], self.digits[rows])

    def __len__(self) -> int:
        return len(self.digits)


def folder() -> Path:
    """The folder of the data sets: SPARKDL_DATA; default: ``../shared/data`` beside the checkout."""
    return Path(os.environ.get("SPARKDL_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")


def mnist(held_out: float, seed: int) -> tuple[Images, Images]:
    """Training rows and validation rows."""
    with gzip.open(folder() / "t10k-images-idx3-ubyte.gz") as images:
        pixels = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder() / "t10k-labels-idx1-ubyte.gz") as labels:
        found = Images(pixels, np.frombuffer(labels.read(), np.uint8, offset=8).astype(np.int64))
    order = np.random.default_rng(seed).permutation(len(found))
    held = round(held_out * len(found))
    return found[order[held:]], found[order[:held]]


def alike(images: Images, clients: int) -> Array:
    """The client of each image, if all clients have the same distribution; the images are in random order."""
    return np.arange(len(images)) * clients // len(images)


def two_digits(images: Images, clients: int) -> Array:
    """The client of each image, if each client has two digits only, as in McMahan et al.

    Each digit's images are split; client ``k`` has one piece of digit ``k mod 10`` and one of another digit.
    """
    owners = np.empty(len(images), np.int64)
    wanted: list[list[int]] = [[] for _ in range(DIGITS)]
    for client in range(clients):
        digit = client % DIGITS
        for each in (digit, (digit + 1 + client // DIGITS % (DIGITS - 1)) % DIGITS):
            wanted[each].append(client)
    for digit, those in enumerate(wanted):
        for client, rows in zip(those, np.array_split(np.flatnonzero(images.digits == digit), len(those)), strict=True):
            owners[rows] = client
    return owners


def tables(images: Images, owners: Array, num_shards: int) -> list[pa.Table]:
    """A table for each shard, with whole clients."""
    found = []
    for clients in np.array_split(np.unique(owners), num_shards):
        rows = np.flatnonzero(np.isin(owners, clients))
        pixels = pa.array((images.pixels[rows] / np.float32(255)).reshape(-1))
        columns = {"digit": images.digits[rows], "client": owners[rows]}
        found.append(pa.table({"pixels": pa.FixedSizeListArray.from_arrays(pixels, 784), **columns}))
    return found


@dataclass(frozen=True)
class Judged:
    """An algorithm that evaluates its model on validation rows after every round, and converges at an accuracy.

    Attributes:
        algorithm: the algorithm.
        objective: the model and its loss.
        pixels: uint8 ``[rows, 784]``.
        digits: int64 ``[rows]``.
        enough: the accuracy; above 1: never.
    """

    algorithm: Algorithm
    objective: Objective
    pixels: Tensor
    digits: Tensor
    enough: float

    @property
    def uses_optimizer(self) -> bool:
        return self.algorithm.uses_optimizer

    def init(self, objective: Objective, seed: int) -> State:
        return {**self.algorithm.init(objective, seed), "accuracy": 0.0}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        return self.algorithm.map(objective, state, shard, memory)

    def reduce(self, left: Update, right: Update) -> Update:
        return self.algorithm.reduce(left, right)

    def apply(self, state: State, update: Update) -> State:
        state = self.algorithm.apply(state, update)
        module = self.objective.build().eval()
        module.load_state_dict(state["weights"])
        with torch.inference_mode():
            right = module(self.pixels.float() / 255).argmax(1) == self.digits
        return {**state, "accuracy": float(right.double().mean())}

    def converged(self, state: State) -> bool:
        return bool(state["accuracy"] >= self.enough) or self.algorithm.converged(state)

    def metrics(self, state: State) -> dict[str, float | str]:
        row = self.algorithm.metrics(state)
        return {**row, "accuracy": state["accuracy"]} if row else row
