"""A training step with AllReduce against torch's DistributedDataParallel, and with a check of the replicas.

Two processes hold a replica of the same model for each side. They take blocks of steps on the same batch with each
side in turn; a block ends when the slower process has finished. The third side is the first one, with a check that the
replicas are equal at each block's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.mlp import mlp
from benchmarks.pairs import Pairs, environment, options, verdict
from sparkdl import AllReduce, LocalCluster, Objective
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.training.layouts import equalise
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replica_check import ReplicaCheck
from sparkdl.training.layouts.replicated import Replicated

BAR = "at most 1.05"
INTERVAL = 100  # steps between two checks
LARGEST, CHECK_BAR = "25M", "0.2 %"
WORKERS = 2
WARMUPS = 2  # blocks; DistributedDataParallel rebuilds its buckets after its first step

# Size -> widths of the layers, and steps of a block: about a second on a slow core.
MODELS = {
    "0.7M": ((784, 512, 512, 64, 1), 50),  # 697 473 parameters
    "25M": ((2048,) * 7 + (1,), 4),  # 25 180 161 parameters
}

sgd = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)


@dataclass(frozen=True)
class Blocks:
    """A worker's blocks of steps.

    Attributes:
        widths: of the model's layers.
        rows: of each worker's batch.
        steps: of a block.
        blocks: of each side.
        bucket_view: DistributedDataParallel's ``gradient_as_bucket_view``.
    """

    widths: tuple[int, ...]
    rows: int
    steps: int
    blocks: int
    bucket_view: bool

    def __call__(self, world: World, shard: Shard | None) -> list[tuple[float, float, float]]:
        """Seconds per step of AllReduce, DistributedDataParallel and checked AllReduce, for every three blocks."""
        torch.manual_seed(world.rank)
        inputs, target = torch.rand(self.rows, self.widths[0]), torch.rand(self.rows, 1)
        step, check = self._all_reduce(world, inputs, target)
        sides = [(step, None), (self._distributed(inputs, target), None), (step, check)]
        rounds = []
        for block in range(WARMUPS + self.blocks):
            taken = [0.0, 0.0, 0.0]
            for side in (0, 1, 2) if block % 2 == 0 else (2, 1, 0):
                taken[side] = self._block(world, *sides[side])
            rounds.append((taken[0], taken[1], taken[2]))
        return rounds

    def _block(self, world: World, step: Callable[[], None], check: ReplicaCheck | None) -> float:
        world.group().sum_(torch.zeros(1))  # both workers begin together
        start = time.perf_counter()
        for _ in range(self.steps):
            step()
        if check is not None:
            check("after a block")
        taken: list[float] = world.group().gather(time.perf_counter() - start)
        return max(taken) / self.steps

    def _all_reduce(self, world: World, inputs: Tensor, target: Tensor) -> tuple[Callable[[], None], ReplicaCheck]:
        objective = Objective(partial(mlp, *self.widths), nn.MSELoss(), sgd)
        replica = equalise(
            Replicated().place(objective, world, Feed(Plan((self.rows,) * world.size, self.rows * world.size)))
        )
        sync = AllReduce().attach(replica, world.group())
        batch = Batch((inputs,), target, None, None, self.rows, self.rows, 1 / world.size, total=self.rows * world.size)

        def step() -> None:
            replica.gradients(batch)
            sync.update(world.clock, batch)
            world.clock.tick(batch.total)

        return step, ReplicaCheck(replica, world, optimizers=True)

    def _distributed(self, inputs: Tensor, target: Tensor) -> Callable[[], None]:
        model = DistributedDataParallel(mlp(*self.widths), gradient_as_bucket_view=self.bucket_view)
        optimizer, criterion = sgd(model.parameters()), nn.MSELoss()

        def step() -> None:
            criterion(model(inputs), target).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=30)
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="sizes of the model (default all)"
    )
    parser.add_argument("--batch", type=int, default=64, help="rows of each worker's batch (default %(default)s)")
    parser.add_argument("--steps", type=int, help="steps of a block (default: by model)")
    parser.add_argument("--bucket-view", action="store_true", help="give DDP gradient_as_bucket_view=True")
    args = parser.parse_args(arguments)
    print(environment())
    ratios = {}
    with LocalCluster(WORKERS, threads=1) as cluster:
        for name in args.models:
            widths, steps = MODELS[name]
            work = Blocks(widths, args.batch, args.steps or steps, args.rounds, args.bucket_view)
            taken = cluster.gang(work)[0]
            both = [(ours, ddp) for ours, ddp, _ in taken]
            pairs = Pairs("AllReduce", "DDP", both[WARMUPS:], both[:WARMUPS])
            ratios[name] = pairs.ratio
            print(f"\n{name} parameters", pairs.table("s a step"), sep="\n")
            counted = taken[WARMUPS:]
            check = median(checked - ours for ours, _, checked in counted) * work.steps
            share = check / (INTERVAL * median(ours for ours, *_ in counted))
            bar = f" (bar: at most {CHECK_BAR})" if name == LARGEST else ""
            print(f"a check of the replicas: {1000 * check:.1f} ms, every {INTERVAL} steps {share:.3%} of a step{bar}")
    print("\nmedian ratios:", ", ".join(f"{name} {ratio:.4g}" for name, ratio in ratios.items()), "- the larger counts")
    print(verdict(max(ratios.values()), BAR))


if __name__ == "__main__":
    main()
