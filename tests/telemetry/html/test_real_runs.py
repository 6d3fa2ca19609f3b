"""Pages of real runs: a gang, rounds, and a gang that has not ended."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.cluster.local import LocalCluster
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.html import RunData, make_page, read_runs
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from tests.contracts import work
from tests.contracts.strategy_contract import numbers
from tests.telemetry.html.looking import look
from tests.telemetry.html.made import written
from tests.training.test_loop import COLUMNS

OBJECTIVE = Objective(work.Seeded(work.Net), nn.MSELoss(), partial(torch.optim.SGD, lr=0.05))


def note(log, kind, **payload):
    log(Event(kind, -1, 0, now := time.time(), None, payload, os.uname().nodename, now))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with LocalCluster(2, timeout=60.0) as cluster:
        with EventLog(str(folder / "gang" / "events")) as log:
            note(log, "begin", environment={})
            worker, _ = cluster.gang(Training(OBJECTIVE, 16, epochs=4), numbers(), COLUMNS, listener=log)
            note(log, "end", error=None)
        with EventLog(str(folder / "rounds" / "events")) as log:
            note(log, "begin", environment={})
            rounds = Rounds(ParallelSGD(rounds=3), OBJECTIVE, memories=str(folder / "memories"))
            rounds = replace(rounds, listener=lambda row: note(log, "round", **row, rounds=None))
            with cluster.map_reduce(numbers(), COLUMNS, parts=3, listener=log) as jobs:
                _, history = rounds.run(jobs)
            note(log, "end", error=None)
    written(folder / "gang", history=worker.history)
    written(folder / "rounds", history=history)
    return folder


@pytest.mark.slow
def test_pages_of_gang_and_rounds(browser, folder, tmp_path):
    gang, rounds = read_runs([str(folder / "gang"), str(folder / "rounds")])
    assert (gang.state, len(gang.history), [*gang.phases()]) == ("finished", 4, [0, 1])
    assert (rounds.noun, [*rounds.phases()]) == ("shard", [0, 1, 2])
    for runs in ([gang], [rounds], [gang, rounds]):
        found = look(browser, make_page(runs), tmp_path)
        assert found.trouble is None
        assert all(chart["drawn"] and chart["marks"] for chart in found.charts.values())
        assert {"loss", "throughput", "phases"} <= set(found.charts)
        if runs == [gang]:
            assert {"forward", "backward", "exchange"} <= {*found.charts["phases"]["legend"]}


@pytest.mark.slow
def test_unfinished_run_is_read_up_to_its_last_line(folder, tmp_path):
    whole = next((folder / "gang" / "events").iterdir())
    lines = whole.read_bytes().splitlines(keepends=True)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / whole.name).write_bytes(b"".join(lines[: len(lines) * 2 // 3]) + lines[-2][:40])
    with pytest.warns(RuntimeWarning, match="is skipped"):
        data = RunData.read(str(tmp_path))
    assert data.state == "open"
    assert 0 < len(data.history) < 4
    assert "unfinished: it still runs or was killed; last event" in make_page([data])
