"""Scoring images in a DataFrame with TorchModel.transform against bare torch over tensors in memory.

Both score the same images with the same convolutional network and the same number of threads: transform in executors of
one core, bare torch in processes of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from pyspark.sql import functions as F
from torch import Tensor, nn

from benchmarks.pairs import Side, environment, interleave, options, verdict
from benchmarks.session import materialised, session, written
from sparkdl import TorchModel
from sparkdl.io.weights import pack

BAR = "at least 0.85"
WORKERS = 2
PIXELS = 28 * 28


class Small(nn.Module):
    """Ten scores for a grey image of 28 x 28, by two convolutions and two linear layers: 206 922 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.scores = nn.Sequential(nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.scores(self.features(pixels.reshape(-1, 1, 28, 28)))


_images: dict[int, Tensor] = {}


def prepare(rows: int) -> None:
    """Make the images of one bare torch process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    _images[0] = torch.rand(rows, PIXELS)


def bare(batch_size: int) -> float:
    """Seconds for one process to score its images."""
    module = Small().eval()
    start = time.perf_counter()
    with torch.inference_mode():
        found = [module(piece).softmax(1).argmax(1) for piece in _images[0].split(batch_size)]
        torch.cat(found).double()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=5, rows=40_000)
    parser.add_argument("--batch-size", type=int, default=256, help="rows of torch's batches (default %(default)s)")
    args = parser.parse_args(arguments)
    print(environment())
    model = TorchModel(factory=Small, weights=pack(Small()), kind="classifier")
    model.setRawPredictionCol("").setProbabilityCol("")
    share = args.rows // WORKERS
    with (
        session("images") as spark,
        ProcessPoolExecutor(WORKERS, get_context("spawn"), initializer=prepare, initargs=(share,)) as processes,
    ):
        pixels = F.transform(F.sequence(F.lit(1), F.lit(PIXELS)), lambda i: (F.hash("id", i) % 256 / 256).cast("float"))
        frame = materialised(spark.range(0, share * WORKERS, 1, WORKERS).select("id", pixels.alias("features")))
        scored = model.transform(frame).select("id", "prediction")

        def torch_alone() -> float:
            return share * WORKERS / max(processes.map(bare, [args.batch_size] * WORKERS))

        pairs = interleave(
            Side("transform", lambda: share * WORKERS / written(scored)),
            Side("torch", torch_alone),
            rounds=args.rounds,
            warmups=2,
        )
    print(pairs.table("rows/s"))
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
