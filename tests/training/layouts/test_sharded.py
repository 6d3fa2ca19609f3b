"""A sharded model trains as a single process does."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from docs.examples.layout import Recomputed
from sparkdl.cluster.local import LocalCluster
from sparkdl.errors import WorkerFailed
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.reducers.cast import Cast
from sparkdl.training.strategies.reducers.one_bit import OneBit
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from sparkdl.training.strategies.reducers.topk import TopK
from tests.contracts import work
from tests.contracts.layout_contract import (
    Fails,
    LayoutContract,
    OnFourWorkers,
    OnTwoWorkers,
    assert_close,
    resumable,
    resume,
)
from tests.contracts.strategy_contract import CASES, ROWS, SCHEMA, SLOW, Case, numbers
from tests.faults import flip, tear
from tests.results import merged

EACH_CHILD = Sharded(units=("*",))


class TestSharded(OnTwoWorkers, LayoutContract):
    layout = EACH_CHILD
    cases = tuple(name for name in CASES if "sparse" not in name and "few rows" not in name)  # all call each unit


class TestShardedReplicas(OnFourWorkers, LayoutContract):
    layout = Sharded(replicas=2)  # one unit
    model = work.Net  # batch normalisation refuses a single row


@pytest.mark.slow
class TestRecomputed(OnTwoWorkers, LayoutContract):
    """The example of the contributor's map, over slices."""

    layout = Recomputed(layout=EACH_CHILD)
    cases = ("Adam in fp32", "three pieces, class weights", "clipping", "tied weights")


# ---- strategies between replicas -------------------------------------------------------------------------------------

STRATEGIES = [AllReduce(reduce=Cast("bf16")), LocalSGD(every=4), LocalSGD.diloco(every=4), Gossip(every=2)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
def test_strategies_run_between_replicas_as_between_workers(pair, four, strategy):
    """Workers 0 and 1 have the rows of the first one of two, so that the replicas see the same rows in each step."""
    data, case = numbers(), Case(batch_size=8, epochs=2)
    order = np.arange(ROWS).reshape(2, -1, 2).swapaxes(1, 2).reshape(-1)  # of each half, the even rows first

    def weights(cluster: LocalCluster, layout: Layout, rows: np.ndarray) -> dict[str, torch.Tensor]:
        shards = [
            pa.table({name: list(values[part]) for name, values in data.items()}, schema=SCHEMA)
            for part in np.split(rows, cluster.size)
        ]
        training = replace(case.training(strategy, layout=layout), shuffle=False)
        return merged(cluster.gang(training, shards, case.columns()))

    expected = weights(pair, Replicated(), np.arange(ROWS))
    assert_close(weights(four, Sharded(units=("*",), replicas=2), order), expected)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [OneBit(warmup=0), TopK(0.25), PowerSGD(rank=1, warmup=0)], ids=repr)
def test_compression_of_slices_trains_nearly_as_well(pair, four, strategy):
    """Each slice is compressed by itself, so that the errors differ from those of whole tensors."""
    case, data = Case(batch_size=100, epochs=20, optimizer=SLOW), numbers(998)
    data["y"] = data["y"] + np.random.default_rng(0).normal(size=998)  # noise, which bounds the loss
    losses = [
        cluster.gang(case.training(AllReduce(reduce=strategy), layout=layout), data, case.columns())[0].history
        for cluster, layout in ((pair, Replicated()), (four, Sharded(units=("*",), replicas=2)))
    ]
    assert losses[1][-1]["loss"] == pytest.approx(losses[0][-1]["loss"], rel=0.02)


@pytest.mark.parametrize("damage", [flip, tear, os.remove], ids=["damaged", "torn", "missing"])
def test_workers_with_slices_resume_from_the_checkpoint_before_a_damaged_one(pair, tmp_path, damage):
    expected = resume(pair, resumable(tmp_path / "undisturbed", "AdamW", EACH_CHILD, batch_size=10))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(pair, resumable(tmp_path / "run", "AdamW", EACH_CHILD, callbacks=(Fails(8),), batch_size=10))
    newest = max((tmp_path / "run").glob("attempt-*/shared-00001"))
    damage(newest)
    assert_close(resume(pair, resumable(tmp_path / "run", "AdamW", EACH_CHILD, batch_size=10)), expected, 0)


@pytest.mark.parametrize(
    "layouts", [(EACH_CHILD, Replicated()), (Replicated(), EACH_CHILD)], ids=["to whole models", "to slices"]
)
def test_workers_of_another_layout_resume_within_an_epoch(pair, tmp_path, layouts):
    expected = resume(pair, resumable(tmp_path / "undisturbed", "AdamW", layouts[1], batch_size=10))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(pair, resumable(tmp_path / "run", "AdamW", layouts[0], callbacks=(Fails(8),), batch_size=10))
    weights = resume(pair, resumable(tmp_path / "run", "AdamW", layouts[1], batch_size=10))
    assert_close(weights, expected)
    assert all(isinstance(weight, torch.Tensor) for weight in weights.values())
