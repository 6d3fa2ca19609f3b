"""What the feed costs on a GPU: training, scoring and checkpoints against bare loops, on one card.

It needs neither Spark nor Java. With ``--device cpu`` and few rows a run is a smoke test and gives no result.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.gpu_feed.resnet import ResNet50
from benchmarks.gpu_feed.training import Epochs
from benchmarks.mlp import mlp
from benchmarks.pairs import Pairs, Side, interleave, verdict
from benchmarks.recovery.saving import throughput
from sparkdl import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.io.weights import pack
from sparkdl.serving.predictor import Predictor
from sparkdl.serving.trained_module import TrainedModule
from sparkdl.training.layouts.arithmetic import autocast

BAR = "at most 1"
FLOATS = 400
wide = partial(mlp, FLOATS, 1024, 1024, 1)
narrow = partial(mlp, FLOATS, 1)
PARAMS = {
    "inputCols": ["image"],
    "columnSpecs": [InputColumn("image", "uint8")],
    "labelCol": "label",
    "assembleInputs": False,
    "collate": None,
    "thresholds": None,
    "predictionCol": "prediction",
    "probabilityCol": "",
    "rawPredictionCol": "",
}


def images(args: argparse.Namespace) -> Pairs:
    rows, numbers = args.images, np.random.default_rng(0)
    data = {
        "image": numbers.integers(0, 256, (rows, 3, args.pixels, args.pixels), np.uint8),
        "label": numbers.integers(0, 1000, rows),
    }
    work = Epochs(ResNet50, nn.CrossEntropyLoss(), args.image_batch, args.rounds)
    return run(args, work, data, Columns((InputColumn("image"),), InputColumn("label", "int64")))


def columns(args: argparse.Namespace, *, copied: bool = False) -> Pairs:
    numbers = np.random.default_rng(0)
    data = {"x": numbers.random((args.rows, FLOATS), np.float32), "y": numbers.random((args.rows, 1), np.float32)}
    work = Epochs(narrow if copied else wide, nn.MSELoss(), args.batch, args.rounds, copied)
    return run(args, work, data, Columns((InputColumn("x"),), InputColumn("y", "float32")))


def run(args: argparse.Namespace, work: Epochs, data: dict[str, np.ndarray], columns: Columns) -> Pairs:
    with LocalCluster(1, device=args.device) as cluster:
        pairs: Pairs = cluster.gang(work, data, columns)[0]
        return pairs


def scoring(args: argparse.Namespace) -> Pairs:
    device = torch.device(args.device)
    pixels = np.random.default_rng(0).integers(0, 256, (args.images, 3, args.pixels, args.pixels), np.uint8)
    trained = TrainedModule(ResNet50, pack(ResNet50()), "classifier", "bf16", [1000])
    predictor, module = Predictor.of(trained, {**PARAMS, "device": args.device}), trained.module().to(device)

    @torch.inference_mode()
    def bare() -> float:
        start = time.perf_counter()
        for piece in torch.from_numpy(pixels).split(args.image_batch):
            with autocast("bf16" if args.device == "cuda" else "fp32", device):
                module(piece.to(device)).argmax(1).cpu()
        return len(pixels) / (time.perf_counter() - start)

    def predicted() -> float:
        start = time.perf_counter()
        predictor.predict({"image": pixels})
        return len(pixels) / (time.perf_counter() - start)

    return interleave(Side("predict", predicted), Side("bare loop", bare), rounds=args.rounds)


def checkpoints(args: argparse.Namespace) -> Pairs:
    with LocalCluster(1, device=args.device) as cluster:
        lost = throughput(cluster, rounds=args.rounds, seconds=args.interval)
    return Pairs("writing", "idle", [(one.step * (1 + one.lost / one.saved), one.step) for one in lost])


MEASUREMENTS = {  # name -> both sides, their unit, and the least ratio; of the checkpoints the largest
    "images": (images, "images/s", 0.97),
    "columns": (columns, "rows/s", 0.95),
    "copied": (partial(columns, copied=True), "rows/s", 0.85),
    "scoring": (scoring, "images/s", 0.95),
    "checkpoints": (checkpoints, "s a step", 1.05),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MEASUREMENT", help=f"of {', '.join(MEASUREMENTS)} (default all)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for name, default, text in (
        ("rounds", 5, "rounds that count"),
        ("images", 8192, "images"),
        ("pixels", 224, "width and height of an image"),
        ("image-batch", 256, "images of a step"),
        ("rows", 1 << 20, f"rows of {FLOATS} columns"),
        ("batch", 8192, "rows of a step"),
        ("interval", 2, "seconds between two checkpoints"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default %(default)s)")
    args = parser.parse_args(arguments)
    card = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
    print(f"{card}, CUDA {torch.version.cuda}, torch {torch.__version__}, Python {platform.python_version()}")
    shares = {}
    for name in args.names or MEASUREMENTS:
        measure, unit, bar = MEASUREMENTS[name]
        pairs = measure(args)
        print(f"\n{name}", pairs.table(unit), sep="\n", flush=True)
        shares[name] = pairs.ratio / bar if name == "checkpoints" else bar / pairs.ratio
    print("\nof each bar:", ", ".join(f"{name} {share:.3g}" for name, share in shares.items()), "- the largest counts")
    print(verdict(max(shares.values()), BAR))


if __name__ == "__main__":
    main()
