"""Encoding and decoding gradients against the all-reduce of the same gradients, over loopback.

Two processes encode and decode the buckets of a model, without an exchange. By turns, they sum the same buckets over
gloo, uncompressed. Over loopback no network is saved, so the bars bound the cost of compression.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measurements import run_measurements
from benchmarks.pairs import Pairs, options
from sparkdl import Cast, LocalCluster, OneBit, PowerSGD
from sparkdl.cluster.group.world import Group, World
from sparkdl.data.shard import Shard
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.buckets import Bucket, make_buckets
from sparkdl.training.strategies.reducers import Reducer, Reduction
from sparkdl.training.strategies.reducers.exact import Exact
from sparkdl.training.strategies.reducers.pending import FinishedReduce

BAR = "at most 1"
WORKERS = 2
WARMUPS = 2

# The time of a reducer's arithmetic over the time of the all-reduce.
BARS = {"cast": (Cast(), 0.6), "one_bit": (OneBit(warmup=0), 1.2), "powersgd": (PowerSGD(rank=4, warmup=0), 2.5)}


def shapes(width: int, words: int, layers: int) -> list[tuple[int, ...]]:
    """The parameters of a transformer: by default 25 082 880."""
    layer = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width), (4 * width,)]
    layer += [(width, 4 * width), *[(width,)] * 5]
    return [(words, width), *layer * layers]


class Alone(Group):
    """A group that exchanges nothing: this worker takes its own messages for those of the others."""

    def sum_(self, tensor: Tensor, *, wait: bool = True) -> Any:
        return FinishedReduce()

    def all_gather_into(self, gathered: Tensor, tensor: Tensor, *, wait: bool = True) -> Any:
        gathered.view(self.size, -1).copy_(tensor.view(-1))
        return FinishedReduce()

    def all_to_all_into(self, received: Tensor, tensor: Tensor, *, wait: bool = True) -> Any:
        # Every sender's part for this worker has the size of the own one.
        received.copy_(tensor[self.rank].expand_as(received))
        return FinishedReduce()


@dataclass(frozen=True)
class Coding:
    """A worker's pairs of arithmetic and all-reduce.

    Attributes:
        shapes: of the parameters.
        rounds: that count.
    """

    reducer: Reducer
    shapes: Sequence[tuple[int, ...]]
    rounds: int

    def __call__(self, world: World, shard: Shard | None) -> list[tuple[float, float]]:
        """Seconds of the arithmetic and of the all-reduce of all buckets, in every round."""
        torch.manual_seed(world.rank)
        buckets = make_buckets([nn.Parameter(torch.zeros(shape)) for shape in self.shapes], AllReduce().bucket_bytes)
        gradients = [torch.randn_like(bucket.buffer) for bucket in buckets]
        group = world.group()
        alone = self.reducer.open(buckets, Alone(group.rank, group.size))
        sides = [partial(reduce, one, buckets) for one in (alone, Exact().open(buckets, group))]
        pairs = []
        for number in range(WARMUPS + self.rounds):
            taken = [0.0, 0.0]
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                for bucket, gradient in zip(buckets, gradients, strict=True):
                    bucket.buffer.copy_(gradient)
                taken[side] = timed(world, sides[side])
            pairs.append((taken[0], taken[1]))
        return pairs


def reduce(reduction: Reduction, buckets: Sequence[Bucket]) -> None:
    """Sum one bucket after the other."""
    for bucket in buckets:
        reduction.start(bucket).wait()


def timed(world: World, side: Callable[[], None]) -> float:
    """Seconds until the slower worker has finished; both begin together."""
    world.group().sum_(torch.zeros(1))
    start = time.perf_counter()
    side()
    return float(max(world.group().gather(time.perf_counter() - start)))


def measure(name: str, args: Any) -> float:
    """A reducer's arithmetic over the all-reduce, as a share of its bar."""
    reducer, bar = BARS[name]
    work = Coding(reducer, shapes(args.width, args.words, args.layers), args.rounds)
    with LocalCluster(WORKERS, threads=1) as cluster:
        taken = cluster.gang(work)[0]
    pairs = Pairs(name, "all-reduce", taken[WARMUPS:], taken[:WARMUPS])
    print(f"{reducer}", pairs.table("seconds"), sep="\n")
    print(f"median ratio {pairs.ratio:.3g} (bar: at most {bar})")
    return pairs.ratio / bar


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=15)
    parser.add_argument("--width", type=int, default=512, help="width of the transformer (default %(default)s)")
    parser.add_argument("--words", type=int, default=12_000, help="rows of its embedding (default %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="layers (default %(default)s)")
    run_measurements(parser, {name: partial(measure, name) for name in BARS}, arguments, bar=BAR)


if __name__ == "__main__":
    main()
