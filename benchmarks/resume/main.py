"""Memory of a resumed worker, and of rank 0 with the best weights, and seconds of a checkpoint.

Two workers train a model of 100 million parameters with Adam. Each measurement has its own bar; the result is the
largest share of a bar.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from benchmarks.measurements import run_measurements
from benchmarks.memory.main import anonymous
from benchmarks.mlp import adam, mlp
from benchmarks.pairs import options
from sparkdl import LocalCluster, Objective
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.slices import deal
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.io.files import Folder
from sparkdl.io.serialization import pack_pieces
from sparkdl.telemetry.event import Event
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training

BAR = "at most 1"
MEMORY, RANKS, SECONDS = 1.15, 1.05, 1.3
WORKERS, BATCH, STEPS = 2, 32, 2  # rows of each worker's batch; steps of an epoch
COLUMNS = Columns((InputColumn("features"),), InputColumn("label"))
PERIOD = 0.005  # seconds between two samples


class MemoryWatch:
    """Receives the workers' process ids, and samples their anonymous memory until the block ends."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}  # rank -> bytes
        self._pids: dict[int, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def __call__(self, event: Event) -> None:
        if event.kind == "started" and event.rank is not None:
            self._pids[event.rank] = int(event.payload["pid"])

    def _sample(self) -> None:
        while not self._done.wait(PERIOD):
            for rank, pid in [*self._pids.items()]:
                self.peaks[rank] = max(self.peaks.get(rank, 0), anonymous(pid))


def peaks(folder: str, epochs: int, width: int, *, best: bool = False) -> dict[int, int]:
    """Peak anonymous bytes by rank, in new processes, of a fit that resumes from this folder if it has checkpoints."""
    rows, numbers = STEPS * BATCH * WORKERS, np.random.default_rng(0)
    data = {"features": numbers.random((rows, width), np.float32), "label": numbers.random(rows, np.float32)}
    checkpoints = Checkpoints(folder, run="benchmark")
    checkpointer = Checkpointer(checkpoints, CheckpointInterval.of("1 epoch"))
    training = Training(_objective(width), BATCH * WORKERS, epochs, keep_best=best, checkpointer=checkpointer)
    with LocalCluster(WORKERS, threads=1) as cluster, MemoryWatch() as watch:
        cluster.gang(training, data, COLUMNS, listener=watch, attempt=checkpoints.next_attempt())
    return watch.peaks


def measure_memory(args: argparse.Namespace) -> float:
    """Peak anonymous memory of each resumed worker, against the same worker of the undisturbed fit."""
    ratios = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
            undisturbed = peaks(f"{folder}/undisturbed", 2, args.width)
            peaks(f"{folder}/resumed", 1, args.width)
            resumed = peaks(f"{folder}/resumed", 2, args.width)
        pairs = [(resumed[rank], undisturbed[rank]) for rank in sorted(resumed)]
        ratios.append(max(over / under for over, under in pairs))
        shown = "; ".join(f"{over / 1e6:.0f} MB against {under / 1e6:.0f} MB" for over, under in pairs)
        print(f"round {number + 1}: resumed {shown}", flush=True)
    print(f"memory of a resumed worker: {median(ratios):.3f} of the undisturbed one (bar: at most {MEMORY})")
    return median(ratios) / MEMORY


def measure_ranks(args: argparse.Namespace) -> float:
    """Peak anonymous memory of rank 0 against rank 1, of a fit that keeps the best epoch's weights."""
    ratios = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
            found = peaks(folder, 2, args.width, best=True)
        ratios.append(found[0] / found[1])
        print(f"round {number + 1}: rank 0 {found[0] / 1e6:.0f} MB, rank 1 {found[1] / 1e6:.0f} MB", flush=True)
    print(f"memory of rank 0: {median(ratios):.3f} of that of rank 1 (bar: at most {RANKS})")
    return median(ratios) / RANKS


@dataclass(frozen=True)
class Saves:
    """Times a checkpoint, and writing the same bytes without one.

    Attributes:
        folder: of the checkpoints.
        rounds: number of pairs.
        width: of the model's layers.
    """

    folder: str
    rounds: int
    width: int

    def __call__(self, world: World, shard: Shard | None) -> list[tuple[float, float]]:
        """Seconds of both, the slower worker's."""
        replica = Replicated().place(_objective(self.width), world, Feed(Plan((1,) * world.size, world.size)))
        for parameter in replica.parameters:
            parameter.grad = parameter.detach().clone()
        replica.apply()
        shared = {"replica": replica.state_dict()["shared"]}
        state = {"shared": shared, "local": {}, "slices": {}}
        checkpointer = Checkpointer(Checkpoints(self.folder, run="benchmark"), CheckpointInterval.of(1))
        checkpointer.load(world, "", state)  # type: ignore[arg-type]
        pieces = pack_pieces(deal(shared, {}, world.rank, world.size)[0])
        folder, found = Folder.of(f"{self.folder}-{world.rank}"), []
        for _ in range(self.rounds + 1):
            world.clock.tick(1)
            save = _slowest(world, lambda: checkpointer.after_step(world, lambda: state, finished=True))
            write = _slowest(world, lambda: folder.write("part", *pieces))
            folder.delete("part")
            found.append((save, write))
        return found[1:]


def measure_seconds(args: argparse.Namespace) -> float:
    """Seconds of a checkpoint, with its copy, hash and commit, against ``Folder.write`` of the same bytes."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder, LocalCluster(WORKERS) as cluster:
        found = cluster.gang(Saves(f"{folder}/checkpoints", args.rounds, args.width))[0]
    for number, (save, write) in enumerate(found, start=1):
        print(f"round {number}: a checkpoint {save:.3g} s, the same bytes {write:.3g} s, ratio {save / write:.3f}")
    ratio = median(save / write for save, write in found)
    print(f"a checkpoint: {ratio:.3f} of the time of the same bytes (bar: at most {SECONDS})")
    return ratio / SECONDS


def _objective(width: int) -> Objective:
    return Objective(partial(mlp, *(width,) * 5, 1), nn.MSELoss(), adam)


def _slowest(world: World, call: Callable[[], Any]) -> float:
    world.group().gather(None)  # all workers begin together
    start = time.perf_counter()
    call()
    return max(world.group().gather(time.perf_counter() - start))


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "memory": measure_memory,
    "ranks": measure_ranks,
    "seconds": measure_seconds,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=3)
    parser.add_argument(
        "--width", type=int, default=5_000, help="width of the four hidden layers (default %(default)s)"
    )
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
