"""Anonymous memory of a Python worker that trains on a shard of two gigabytes.

Anonymous memory is the heap and the private pages, without mapped files, whose pages the kernel can drop. The driver
reads the peak from outside, from the task's start to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.mlp import adam, small
from benchmarks.pairs import environment, options
from benchmarks.session import FEATURES, samples, session
from sparkdl import SparkCluster, TorchRegressor
from sparkdl.telemetry.event import Event

BAR = "under 500 MB"
BATCH = 8192
PERIOD = 0.005  # seconds between two samples


class Watch:
    """Receives the worker's process id and samples its memory until the block ends.

    The worker is on this machine: sampling costs it no thread and no lock.
    """

    def __init__(self) -> None:
        self.start = 0
        self.peaks = {"until the first step": 0, "from the first step on": 0}
        self._pid: int | None = None
        self._stage = "until the first step"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory-watch", daemon=True)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def __call__(self, event: Event) -> None:
        if event.kind == "started":
            self._pid = int(event.payload["pid"])
            self.start = anonymous(self._pid)
            self._thread.start()
        elif event.kind == "progress":
            self._stage = "from the first step on"

    def _look(self) -> None:
        assert self._pid is not None
        while not self._done.wait(PERIOD):
            self.peaks[self._stage] = max(self.peaks[self._stage], anonymous(self._pid))


def anonymous(pid: int) -> int:
    """Anonymous bytes of a process, swapped ones included; 0 if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap") if name in fields)


def measure(frame: DataFrame) -> Watch:
    """Train one epoch on one worker, as ``TorchRegressor.fit`` with another listener."""
    estimator = TorchRegressor(model=small, optimizer=adam, numWorkers=1, batchSize=BATCH, epochs=1)
    with Watch() as watch:
        SparkCluster(frame.sparkSession, 1).gang(estimator.training(), frame, estimator.read_columns(), listener=watch)
    return watch


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(__doc__, rounds=3, rows=18_000_000).parse_args(arguments)
    print(environment())
    print(f"one shard of {args.rows:,} rows, {args.rows * (FEATURES + 1) * 4 / 1e9:.2f} GB")
    peaks = []
    with session("memory", executors=1) as spark:
        for number in range(1, args.rounds + 1):
            # The JVM makes the rows on reading: neither the driver nor a cache holds them.
            watch = measure(samples(spark, args.rows, partitions=8))
            stages = [f"{peak / 1e6:.0f} MB {stage}" for stage, peak in watch.peaks.items()]
            print(f"round {number}: {watch.start / 1e6:.0f} MB at the start;", ", ".join(stages))
            peaks.append(max(watch.peaks.values()))
    print(f"anonymous memory {max(peaks) / 1e6:.0f} MB (bar: {BAR})")


if __name__ == "__main__":
    main()
