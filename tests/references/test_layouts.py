"""A character transformer on the plays of Shakespeare, through the front door: each layout ends with the same loss."""

from __future__ import annotations

import sys
import tempfile
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.ml.estimator import TorchClassifier
from sparkdl.ml.model import TorchModel
from sparkdl.training.layouts.mesh import Mesh
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.tensor_parallel import TensorParallel
from sparkdl.training.layouts.tensors.plans import transformer_plan
from tests.rounds.data import real
from tests.sessions import drive, frame, session

CONTEXT, WIDTH, TRAINED, HELD = 64, 64, 1_000, 200
SEEDS = range(3)
LAYOUTS = {
    "Replicated": Replicated(),
    "Sharded": Sharded(),
    "TensorParallel": TensorParallel(2, transformer_plan()),
    "1f1b": Pipelined(2),
    "gpipe": Pipelined(2, "gpipe"),
    "interleaved": Pipelined(2, "interleaved", chunks=2),
    "Sharded mesh": Mesh(Sharded(), TensorParallel(2, transformer_plan())),
    "Pipelined mesh": Mesh(Pipelined(2), TensorParallel(2, transformer_plan())),
}


class Embeddings(nn.Module):
    """Of characters and of their places."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(characters, WIDTH), nn.Parameter(torch.zeros(CONTEXT, WIDTH))

    def forward(self, text: Tensor) -> Tensor:
        return self.character(text) + self.place


class Block(nn.Module):
    """A layer of a transformer that sees earlier characters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=x.dtype)
        return self.layer(x, src_mask=mask, is_causal=True)


class Scores(nn.Module):
    """Scores ``[rows, characters, places]``."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x)).transpose(1, 2)


def transformer(characters: int) -> nn.Sequential:
    return nn.Sequential(Embeddings(characters), *(Block() for _ in range(4)), Scores(characters))


def train_all() -> dict[str, list[float]]:
    """The validation losses of each layout's fits, by seed; saved models score as the fitted ones."""
    text = real("tinyshakespeare.txt").read_bytes()
    characters, codes = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
    starts = np.arange(TRAINED + HELD) * (CONTEXT + 1)
    rows = codes[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
    data = {"text": rows[:, :-1], "next": rows[:, 1:], "held": np.arange(len(rows)) >= TRAINED}
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, session(folder, "local-cluster[4,1,1024]"):
        spoken = frame(data).cache()
        for name, layout in LAYOUTS.items():
            for seed in SEEDS:
                estimator = TorchClassifier(
                    model=partial(transformer, len(characters)),
                    optimizer=partial(torch.optim.AdamW, lr=2e-3),
                    featuresCol="text",
                    labelCol="next",
                    validationIndicatorCol="held",
                    layout=layout,
                    numWorkers=4 if "mesh" in name else 2,
                    batchSize=64,
                    microBatches=4,
                    epochs=2,
                    seed=seed,
                )
                model = estimator.fit(spoken)
                losses.setdefault(name, []).append(model.history[-1]["valid_loss"])
                print(name, seed, losses[name][-1], file=sys.stderr, flush=True)
            model.save(f"{folder}/{name}")
            scored = TorchModel.load(f"{folder}/{name}").transform(spoken.limit(20)).collect()
            assert scored == model.transform(spoken.limit(20)).collect()
    return losses


@pytest.mark.timeout(1800)
def test_layouts_end_with_the_loss_of_whole_models():
    losses = drive(train_all, timeout=1700).result
    print(losses)
    means = {name: float(np.mean(values)) for name, values in losses.items()}
    assert means["Replicated"] < 3.0
    for name, mean in means.items():
        assert mean == pytest.approx(means["Replicated"], rel=0.01), name
