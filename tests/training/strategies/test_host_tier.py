"""A parameter server of hosts equals one of workers; the workers of a host end with equal weights after each step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput
from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.weights import read_state
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from tests.contracts import work
from tests.contracts.hosts import OnHosts
from tests.contracts.strategy_contract import (
    ADAM,
    CASES,
    SCHEMA,
    Case,
    assert_equal,
    numbers,
    single_process,
    together,
)
from tests.training.strategies.test_local_sgd import UNEVEN as ROWS
from tests.training.test_resume import CASES as RUNS
from tests.training.test_resume import Folder, assert_alike, essence
from tests.training.test_resume import data as rows_of_runs

IN_TURN, UNEVEN = ("a", "b", "a", "b"), ("a", "a", "b", "a")
PLAIN = Case(optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=7, epochs=2)
TIERS = ParameterServer(inside=AllReduce())
EQUAL = {
    "momentum and clipping": Case(max_grad_norm=0.05, batch_size=9),
    "AdamW, pieces": Case(optimizer=partial(torch.optim.AdamW, lr=0.01), batch_size=20, accumulate=2),
    "Adam of unused parameters": CASES["parameters for a few rows, Adam"],
}


def fit(cluster: Any, case: Case, strategy: Any, hosts: tuple[str, ...]) -> list[dict[str, Any]]:
    ends = np.cumsum(ROWS[cluster.size])[:-1]
    columns = [np.split(array, ends) for array in numbers().values()]
    shards = [dict(zip(numbers(), arrays, strict=True)) for arrays in zip(*columns, strict=True)]
    data: Any = [pa.table({name: list(array) for name, array in one.items()}, schema=SCHEMA) for one in shards]
    results: list[dict[str, Any]] = cluster.gang(
        OnHosts(work.Fit(case.training(strategy)), hosts), data, case.columns()
    )
    return results


@pytest.mark.parametrize("hosts", [IN_TURN, UNEVEN])
@pytest.mark.parametrize("name", EQUAL)
def test_two_tiers_equal_one_and_one_process(four, name, hosts):
    case = EQUAL[name]
    workers = fit(four, case, TIERS, hosts)
    assert_equal(
        workers[0]["parameters"], single_process(case.training(), numbers(), case.columns(), together(workers)), 1e-12
    )
    for worker in workers[1:]:
        assert_equal(worker["parameters"], workers[0]["parameters"])


@pytest.mark.parametrize("every", [1, 3])
def test_a_worker_on_each_host_is_its_own_leader(four, every):
    alone, tiers = (
        fit(four, PLAIN, replace(strategy, every=every), ("a", "b", "c", "d"))
        for strategy in (ParameterServer(), TIERS)
    )
    for one, other in zip(alone, tiers, strict=True):
        assert_equal(one["parameters"], other["parameters"])


def test_local_steps_of_a_host_are_those_of_one_worker_with_its_rows(four, pair):
    """Workers 0 and 2 draw rows of one host, workers 1 and 3 of another; a pair draws all rows of a host."""
    case = replace(PLAIN, batch_size=None, epochs=4)
    strategy = replace(TIERS, every=3)
    every = fit(four, case, strategy, ("a", "a", "b", "b"))
    host_rows = [sum(ROWS[4][:2]), sum(ROWS[4][2:])]
    columns = [np.split(array, host_rows[:1]) for array in numbers().values()]
    shards = [dict(zip(numbers(), arrays, strict=True)) for arrays in zip(*columns, strict=True)]
    tables: Any = [pa.table({name: list(array) for name, array in one.items()}, schema=SCHEMA) for one in shards]
    expected = pair.gang(work.Fit(case.training(ParameterServer(every=3))), tables, case.columns())
    assert_equal(every[0]["parameters"], expected[0]["parameters"], 1e-12)


@pytest.mark.parametrize("strategy", [replace(TIERS, staleness=2), replace(TIERS, backup=1)])
@pytest.mark.parametrize("case", [PLAIN, CASES["parameters for a few rows, Adam"]])
def test_stale_hosts_end_alike_and_report_their_clocks(four, strategy, case):
    workers = fit(four, replace(case, epochs=6), strategy, IN_TURN)
    for worker in workers:
        assert_equal(worker["parameters"], workers[0]["parameters"])
    first, *_, last = workers[0]["history"]
    assert last["loss"] < first["loss"]
    assert ("clock_distance" in last) == bool(strategy.staleness)
    assert last.get("max_clock_distance", 0) <= strategy.staleness


def test_resumed_run_of_two_tiers_is_bit_identical(four, tmp_path):
    training, columns = RUNS["Adam"]()

    def run(checkpointer: Folder) -> Any:
        one = replace(training, strategy=TIERS, checkpointer=checkpointer)
        return four.gang(OnHosts(one, IN_TURN), rows_of_runs(), columns)

    expected = run(whole := Folder(str(tmp_path)))
    last = expected[0].history[-1]["step"]
    ends = [essence(tmp_path, last, rank) for rank in range(4)]
    assert_alike(run(replace(whole, start=2)), expected)
    assert [essence(tmp_path, last, rank) for rank in range(4)] == ends


def weights(
    cluster: Any, strategy: Any, folder: Any, epochs: int, hosts: Any = UNEVEN, **options: Any
) -> dict[str, Any]:
    """The weights after a run, or the rest of one, whose checkpoints are in a folder."""
    checkpoints, case = Checkpoints(str(folder), run="one"), Case(optimizer=ADAM, epochs=epochs)
    training = replace(
        case.training(strategy), checkpointer=Checkpointer(checkpoints, CheckpointInterval.of(3), elastic=True)
    )
    task = OnHosts(training, hosts[: cluster.size])
    workers = cluster.gang(task, numbers(), case.columns(), attempt=checkpoints.next_attempt(), **options)
    return read_state(merge_weights([worker.weights for worker in workers]))


@pytest.mark.parametrize("hosts", [None, UNEVEN])
def test_run_of_two_tiers_resumes_in_one_process_and_on_other_hosts(four, tmp_path, hosts):
    """A checkpoint has the leaders' slices; the other workers write none."""
    expected = weights(InlineCluster(), AllReduce(), tmp_path / "whole", 8)
    weights(four, TIERS, tmp_path / "cut", 4, IN_TURN)
    after = (InlineCluster(), AllReduce(), tmp_path / "cut", 8) if hosts is None else (four, TIERS, tmp_path / "cut", 8)
    resumed = weights(*after, hosts or UNEVEN)
    for name, value in expected.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-12)


def test_states_of_compressed_sums_begin_anew_on_other_hosts(four, tmp_path):
    tiers = ParameterServer(inside=AllReduce(reduce=PowerSGD(rank=1, warmup=0, min_compression_rate=0.1)))
    events = list[Any]()
    weights(four, tiers, tmp_path, 4, IN_TURN)
    weights(four, tiers, tmp_path, 5, UNEVEN, listener=events.append)
    warned = [event.payload["message"] for event in events if event.kind == "warning"]
    assert any("this host's workers are [0, 1, 3], and were others before" in message for message in warned)


def test_bytes_are_those_of_the_cost_model(four):
    for every, hosts in ((1, IN_TURN), (4, UNEVEN)):
        strategy = replace(TIERS, every=every)
        counted = sum(one["report"]["bytes_per_step"] for one in fit(four, PLAIN, strategy, hosts)) / 4
        expected = strategy.explain(PLAIN.model().double(), hosts, 100.0, 0.0).bytes
        assert counted == pytest.approx(expected, rel=0.1)


def test_one_host_warns_and_more_backups_than_hosts_raise(pair):
    events = list[Any]()
    case = replace(PLAIN, epochs=1)
    pair.gang(case.training(TIERS), numbers(), case.columns(), listener=events.append)
    warned = [event.payload["message"] for event in events if event.kind == "warning"]
    assert any("has all workers on one host; AllReduce() does the same" in message for message in warned)
    with pytest.raises(InvalidInput, match="backup is 1, and there are 1 hosts"):
        pair.gang(case.training(replace(TIERS, backup=1)), numbers(), case.columns())
