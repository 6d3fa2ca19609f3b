"""Runs of which each has something on its page that the others have not."""

from __future__ import annotations

import math
from dataclasses import replace

from sparkdl.report import RunData
from tests.report.made import event, gang, progress, run, step

BEGIN, END = event("begin", 0), event("end", 100, error=None)
ADMM = [{"round": at, "primal": 2.0 / at, "dual": 1.0 / at, "rho": 0.1, "seconds": 1.0} for at in (1, 2, 3)]
LATE_RESTART = event("restart", 18_000, cause="", seconds=0.0)
MEMBERS = [
    {"member": member, "epoch": 5, "step": 50, "loss": loss, "seconds": 10.0 + member}
    for member, loss in enumerate((0.5, 0.3, 0.4))
]
STACKED = [
    {"member": 0, "base": 0, "fold": 1, "seconds": 1.0},
    {"member": 1, "base": None, "fold": None, "seconds": 2.0},
]
ASIDE = ("epoch", "round", "member", "step", "samples", "seconds", "rows_per_second", "seed", "fold", "base")


def rows(*values: float) -> list[dict[str, float]]:
    """A history of losses."""
    return [{"epoch": epoch, "loss": value} for epoch, value in enumerate(values, start=1)]


def went_back() -> RunData:
    """The running loss of rank 0, of which a second attempt takes steps again."""
    steps = [progress(step, 1 / step, at=step) for step in (1, 4, 8, 12)]
    steps += [progress(step, 1 / step, attempt=1, at=20 + step) for step in (6, 10)]
    steps += [progress(9, 7.0, rank=1, at=9), progress(11, None, at=11), progress(11, math.nan, at=11)]
    return run(*steps, history=rows(0.5))


def attempts() -> RunData:
    """Two attempts that failed, the second with a traceback."""
    return run(
        BEGIN,
        *(event("attempt", at, attempt=at, size=1) for at in (0, 2)),
        event("restart", 1, cause="WorkerLost: first", seconds=0.0),
        event("end", 3, error="WorkerLost: second <b>\nTraceback:\n  File s3://key:secret@bucket"),
    )


def slowest() -> RunData:
    """Three ranks, of which the one on the second host is the slowest."""
    quick, slow = step(2, 0, forward=1.0, exchange=1.0), step(2, 1, forward=2.0)
    later = [replace(event, host="one", time=event.time + 1) for event in (replace(quick, rank=2), quick)]
    return run(replace(slow, host="two"), *later)


def again() -> RunData:
    """A run that was restarted, and begun again a day later."""
    later = [event("begin", 86_400), event("end", 86_450, error=None)]
    first = [BEGIN, step(20, forward=10.0), event("restart", 40, cause="lost", seconds=1.0), END]
    return run(*first, *(replace(event, time=event.time - 86_300) for event in later))


def crowd() -> RunData:
    """A hundred ranks, of which one is busier than the others and one idler."""
    steps = [step(9, rank, rows=100, forward=1.0 + (rank == 90), exchange=9.0 - (rank == 5)) for rank in range(100)]
    return run(BEGIN, *steps)


def begun() -> RunData:
    """A run that is mostly start-up, and has the weights of its second epoch."""
    parts = {"session": 1.5, "workers": 3.0, "imports": 4.25, "feed": 0.25, "other": 0.0}
    return run(history=rows(0.5, 0.25, 0.75), report={"startup": parts, "startup_seconds": 9.0, "best_epoch": 2})


def messages() -> RunData:
    """Logs of members beside warnings of the driver, and two environments."""
    log = event("log", 9, 1, level="ERROR", logger="torch", message="too hot " * 9, left_out=0)
    environments = [event("begin", at, environment={"torch": str(at)}) for at in (0, 5)]
    return run(*environments, *gang().events[1:], log, report={"events_dropped": 7, "workers": [3, 3, 2, 3]})


CASES: dict[str, list[RunData]] = {
    "gang": [gang()],
    "two gangs and rounds": [
        gang("one"),
        gang("two", loss=2.0),
        run(history=[{"round": 1, "loss": 0.5}], report={"rows": 5, "workers": [3]}, name="rounds"),
    ],
    "start-up and best epoch": [begun()],
    "best round and candidate": [
        run(history=ADMM, report={"best_round": 2}),
        run(history=[{"candidate": at, "metric": 0.5 + at, "best": at == 1} for at in (0, 1)], name="best"),
    ],
    "no numbers": [run(history=[{"epoch": 1, "loss": None, "note": "text", "best": True}])],
    "gaps": [run(history=[{"epoch": 1, "valid_loss": 0.75} | rows(1 / 3)[0], *rows(0, math.nan, math.inf, 0.25)[1:]])],
    "uncounted rows": [run(history=[{"loss": 0.5}, {"loss": 0.25}])],
    "running loss": [went_back()],
    "short epochs": [run(*(progress(10 * at + 1, 0.5, at=at) for at in range(3)), history=rows(1.0, 0.5, 0.25))],
    "first epoch": [run(progress(1, 0.5, at=1), progress(4, 0.25, at=2))],
    "metrics": [run(history=[{"epoch": 1, "accuracy": 0.9, "valid_accuracy": 0.8, "valid_f1": 0.7, "<b>": 0.5}])],
    "no metrics": [run(history=[dict.fromkeys(ASIDE, 1.0)])],
    "metrics of one each": [
        run(history=rows(0.5)),
        *(run(history=[{"epoch": 1, name: 0.5}], name=name) for name in ("accuracy", "recall")),
    ],
    "objective": [run(history=[{"round": 1, "objective": 0.5, "gradient": 0.1}])],
    "ADMM": [run(BEGIN, step(8, forward=6.0), step(8, 1, other=4.0), END, history=ADMM)],
    "ensemble": [run(history=MEMBERS, report={"seconds": 3.0})],
    "stacking": [run(history=STACKED)],
    "throughput": [run(BEGIN, *(step(100, rank, rows=1000, forward=100.0) for rank in (0, 1)), END)],
    "throughput by row": [run(history=[{"epoch": 1, "rows_per_second": 10.4}, {"epoch": 2, "rows_per_second": 20.0}])],
    "no rows": [run(BEGIN, step(5, forward=1.0), history=[{"round": 1, "primal": 1.0}])],
    "phases": [run(BEGIN, step(9, 0, feed=1.0, forward=3.0), step(9, 1, forward=1.0, other=7.0))],
    "mean phases": [
        run(step(9, 0, feed=4.0), step(9, 1, forward=4.0), name="one"),
        run(step(9, 0, feed=1.0), name="two"),
        run(name="none"),
    ],
    "crowd": [crowd()],
    "timeline": [run(BEGIN, step(50, 0, forward=50.0), step(50, 1, feed=25.0), END)],
    "again": [again()],
    "same size": [run(BEGIN, *(event("attempt", at, attempt=at, size=2) for at in range(3)), END)],
    "hours": [run(BEGIN, step(20_000, rows=10, forward=10.0), LATE_RESTART, event("end", 36_000))],
    "failed": [attempts()],
    "open": [run(event("begin", 0), event("heartbeat", 61, 0), last=1_800_000_061.0)],
    "not over": [run(*gang().events[:-1], history=gang().history)],
    "verdict": [run(report={"verdict": "All is well."}, configuration={"inputCols": ["x"], "patience": None})],
    "slowest": [slowest()],
    "messages": [messages()],
    "long history": [run(history=[{"epoch": 1, "note": "x" * 50}, *rows(*(1 / epoch for epoch in range(1, 201)))])],
    "nothing": [run()],
}
