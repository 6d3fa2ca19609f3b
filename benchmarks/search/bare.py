"""Trials as bare loops over tensors in memory, the rows and the network; this file imports no Spark."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.mlp import mlp

BATCH = 256
RATES = [float(rate) for rate in np.geomspace(1e-4, 1e-2, 16)]
NUMBERS, CATEGORIES = (0, 4, 10, 11, 12), (1, 3, 5, 6, 7, 8, 9, 13)


def adult(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scaled numbers and one-hot categories ``[rows, features]``, labels, and which rows validate."""
    rows = [row for row in csv.reader(path.open(), skipinitialspace=True) if len(row) == 15 and row[0].isdigit()]
    numbers = np.log1p(np.array([[float(row[column]) for column in NUMBERS] for row in rows]))
    columns = [(numbers - numbers.mean(0)) / numbers.std(0)]
    for column in CATEGORIES:
        values = np.array([row[column] for row in rows])
        columns.append(values[:, None] == np.unique(values)[None])
    labels = np.array([row[14].startswith(">50K") for row in rows], dtype=np.int64)
    return np.concatenate(columns, axis=1).astype(np.float32), labels, np.arange(len(rows)) % 5 == 0


def network(width: int, hidden: int) -> nn.Sequential:
    """A perceptron with two hidden layers."""
    return mlp(width, hidden, hidden, 2)


def bare(path: str, epochs: int, hidden: int, number: int) -> None:
    """A process that trains every second rate, over tensors in memory."""
    torch.set_num_threads(1)
    features, labels, valid = (torch.from_numpy(array) for array in adult(Path(path)))
    train = [features[~valid], labels[~valid]]
    for rate in RATES[number::2]:
        torch.manual_seed(0)
        module = network(features.shape[1], hidden)
        optimizer, loss = torch.optim.Adam(module.parameters(), lr=rate), nn.CrossEntropyLoss()
        for _ in range(epochs):
            order = torch.randperm(len(train[0]))
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                optimizer.zero_grad()
                loss(module(train[0][chosen]), train[1][chosen]).backward()
                optimizer.step()
            with torch.inference_mode():
                float(loss(module(features[valid]), labels[valid]))
