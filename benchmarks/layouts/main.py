"""Memory, seconds and bytes of layouts: models in slices over two workers.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
from torch import nn

from benchmarks.layouts.pipelines import EVEN, UNEVEN, PipelineSteps
from benchmarks.layouts.steps import SideSteps, StateBytes
from benchmarks.measurements import run_measurements
from benchmarks.mlp import adam, mlp
from benchmarks.pairs import options
from benchmarks.resume.main import MemoryWatch
from sparkdl import LocalCluster, Objective
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.tensor_parallel import TensorParallel
from sparkdl.training.layouts.tensors.plans import transformer_plan
from sparkdl.training.loop import Training

BAR = "at most 1"
WORKERS, WIDTH = 2, 2048
UNITS, ROWS, STEPS = 24, 32, 4  # layers of the model whose memory counts, rows of a worker's batch, steps
LAYERS, STEP_ROWS, BLOCKS, BLOCK = 6, 256, 3, 3  # of the model whose steps count
MICRO_BATCHES, PIPELINE_ROWS = 8, 2048
ENCODER = 128  # width of the transformer that partners share
COLUMNS = Columns((InputColumn("features"),), InputColumn("label"))


def peak(layout: Layout, *, saves: bool) -> float:
    """The largest anonymous memory of a worker in a fit of four steps, in new processes; with a checkpoint or none."""
    rows, numbers = STEPS * ROWS * WORKERS, np.random.default_rng(0)
    data = {"features": numbers.random((rows, WIDTH), np.float32), "label": numbers.random(rows, np.float32)}
    objective = Objective(partial(mlp, *(WIDTH,) * (UNITS + 1), 1), nn.MSELoss(), adam)
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        checkpointer = Checkpointer(Checkpoints(folder, run="benchmark"), CheckpointInterval.of(2)) if saves else None
        training = Training(objective, ROWS * WORKERS, layout=layout, checkpointer=checkpointer, keep_best=False)
        with LocalCluster(WORKERS, threads=1) as cluster, MemoryWatch() as watch:
            cluster.gang(training, data, COLUMNS, listener=watch)
    return max(watch.peaks.values())


def measure_memory(args: argparse.Namespace, *, saves: bool = False) -> float:
    """Peak anonymous memory of a worker of ``Sharded`` against a worker of ``Replicated``."""
    bar, ratios = 0.80 if saves else 0.65, []
    for number in range(args.rounds):
        slices, full = peak(Sharded(), saves=saves), peak(Replicated(), saves=saves)
        ratios.append(slices / full)
        print(f"round {number + 1}: sharded {slices / 1e6:.0f} MB, replicated {full / 1e6:.0f} MB", flush=True)
    print(f"memory of a sharded worker: {median(ratios):.3f} of a replicated one (bar: at most {bar})")
    return median(ratios) / bar


def seconds(side: str) -> tuple[float, int]:
    """Seconds of a step, the median of the blocks, and bytes that the layout counts per step."""
    task = SideSteps(side, (*(WIDTH,) * (LAYERS + 1), 1), STEP_ROWS, BLOCK, BLOCKS)
    with LocalCluster(WORKERS, threads=1) as cluster:
        blocks, count = cluster.gang(task)[0]
    return median(blocks), count


def measure_step(args: argparse.Namespace) -> float:
    """Seconds of a step: ``Sharded`` against torch's own loop, and both kinds of ``Sharded`` against ``AllReduce``."""
    bars = {("sharded", "torch"): 1.05, ("sharded", "allreduce"): 1.8, ("kept", "allreduce"): 1.25}
    figures = []
    for number in range(args.rounds):
        figures.append({side: seconds(side)[0] for side in ("sharded", "torch", "kept", "allreduce")})
        print(f"round {number + 1}:", ", ".join(f"{side} {value:.3f} s" for side, value in figures[-1].items()))
    shares = []
    for (over, under), bar in bars.items():
        ratio = median(one[over] / one[under] for one in figures)
        shares.append(ratio / bar)
        print(f"{over} against {under}: {ratio:.3f} (bar: at most {bar})", flush=True)
    return max(shares)


def measure_bytes(args: argparse.Namespace) -> float:
    """Bytes that ``Sharded`` counts for a step, against two gathers and a sum of each unit's other half."""
    count = seconds("sharded")[1]
    parameters = LAYERS * (WIDTH + 1) * WIDTH + WIDTH + 1
    expected = 3 * 4 * parameters / WORKERS
    print(f"{count} bytes a step, {count / expected:.4f} of the equations' (bar: within 2 %)")
    return abs(count / expected - 1) / 0.02


def measure_tensor(args: argparse.Namespace) -> float:
    """Weights, gradients and optimizer state of a worker of ``TensorParallel`` against a worker of ``Replicated``."""
    bar, figures = 0.60, []
    for layout in (TensorParallel(WORKERS, transformer_plan()), Replicated()):
        with LocalCluster(WORKERS, threads=1) as cluster:
            figures.append(max(cluster.gang(StateBytes(layout, ENCODER))))
    ratio = figures[0] / figures[1]
    print(f"tensor parallel {figures[0] / 1e6:.1f} MB, replicated {figures[1] / 1e6:.1f} MB")
    print(f"state of a worker of two partners: {ratio:.3f} of a replicated one (bar: at most {bar})", flush=True)
    return ratio / bar


def pipeline(widths: tuple[int, ...], first: int | None, rows: int) -> tuple[float, float]:
    """Seconds of a step, the median of the blocks, and of the slower stage alone on a micro-batch."""
    task = PipelineSteps(widths, first, MICRO_BATCHES, rows, BLOCK, BLOCKS)
    with LocalCluster(WORKERS, threads=1) as cluster:
        blocks, alone = cluster.gang(task)[0]
    return median(blocks), alone


def measure_pipeline(args: argparse.Namespace) -> float:
    """Seconds of a step of 1F1B against ``(m + p - 1)`` times the slower stage measured alone on a micro-batch."""
    bar, ratios = 1.25, []
    for number in range(args.rounds):
        step, alone = pipeline(EVEN, len(EVEN) // 2, PIPELINE_ROWS)
        ideal = (MICRO_BATCHES + WORKERS - 1) * alone
        ratios.append(step / ideal)
        print(f"round {number + 1}: a step {step:.3f} s, the bound of the slower stage {ideal:.3f} s", flush=True)
    print(f"1F1B: {median(ratios):.3f} of its bound (bar: at most {bar})")
    return median(ratios) / bar


def measure_cuts(args: argparse.Namespace) -> float:
    """How much faster automatic cuts of narrow and wide layers are than equal numbers of layers."""
    bar, ratios = 1.3, []
    for number in range(args.rounds):
        best, equal = pipeline(UNEVEN, None, PIPELINE_ROWS)[0], pipeline(UNEVEN, len(UNEVEN) // 2, PIPELINE_ROWS)[0]
        ratios.append(equal / best)
        print(f"round {number + 1}: automatic cuts {best:.3f} s, equal numbers {equal:.3f} s", flush=True)
    print(f"automatic cuts: {median(ratios):.2f} times faster (bar: at least {bar})")
    return bar / median(ratios)


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "memory": measure_memory,
    "checkpoint": partial(measure_memory, saves=True),
    "step": measure_step,
    "bytes": measure_bytes,
    "tensor": measure_tensor,
    "pipeline": measure_pipeline,
    "cuts": measure_cuts,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    run_measurements(options(__doc__, rounds=3), MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
