"""Scoring on GPUs: memory, copies, and a stage that requests GPUs. No test needs a GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions
from torch import nn

from sparkdl import Columns, InputColumn, InvalidInput
from sparkdl.ml import broadcast
from sparkdl.ml.udf import with_scores
from sparkdl.serving.model_cache import CachedModel
from sparkdl.serving.outputs import Outputs
from sparkdl.serving.scorer import Scorer, score
from tests.fake_gpu import GPU, MAIN, install
from tests.ml import nets
from tests.ml.test_udf import X, features, made, plan


class Small(nn.Linear):
    """A GPU whose memory suffices for a few rows."""

    most = 8

    def __init__(self) -> None:
        super().__init__(3, 2)

    def forward(self, x):
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. More advice.")
        return super().forward(x)


class Weighs(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)

    def forward(self, x, times):
        return super().forward(x) * times[:, None]


def test_if_memory_does_not_suffice_the_batch_is_halved_once():
    loaded, inputs = CachedModel(Small(), rows=14), (torch.rand(40, 3),)
    with pytest.warns(UserWarning, match=r"CUDA out of memory. The model now scores 7 rows at a time\."):
        scores = score(loaded, inputs)
    torch.testing.assert_close(scores, nn.Linear.forward(loaded.module, inputs[0]))
    assert loaded.rows == 7
    loaded.module.most = 3
    with pytest.raises(torch.OutOfMemoryError):
        score(loaded, inputs)
    assert loaded.rows == 7


def test_rows_are_copied_to_a_gpu_while_it_scores(monkeypatch):
    inputs = (torch.rand(40, 3), torch.randint(9, (40,), dtype=torch.int32))
    module = Weighs()
    expected = module(inputs[0], inputs[1].long())
    gpu = install(monkeypatch)
    torch.testing.assert_close(score(CachedModel(module, rows=16, device=GPU), inputs), expected)
    assert {entry[1:] for entry in gpu.kinds("to")} == {("side 1", True, False)}
    assert [entry[1:] for entry in gpu.kinds("wait")] == [(MAIN, "side 1")] * 3
    assert [entry[1] for entry in gpu.kinds("synchronize")] == [MAIN]  # once, for all results


def test_collate_runs_in_inference_mode_also_in_the_thread_that_copies(monkeypatch):
    install(monkeypatch)
    modes = set()

    def collate(inputs, target):
        modes.add((threading.current_thread() is threading.main_thread(), torch.is_inference_mode_enabled()))
        return inputs, target

    score(CachedModel(nn.Linear(3, 2), rows=16, device=GPU), (torch.rand(40, 3),), collate)
    assert modes == {(False, True)}


@pytest.mark.parametrize("end", ["all rows", "early", "error"])
def test_a_task_uses_the_gpu_of_its_partition_and_returns_memory_at_any_end(monkeypatch, end):
    gpu, turns = install(monkeypatch), []

    def task_device(device, addresses, *, turn):
        turns.append((device, addresses, turn))
        return GPU

    context = SimpleNamespace(cpus=torch.get_num_threads, resources=dict, partitionId=lambda: 3)
    monkeypatch.setattr(broadcast, "task_device", task_device)
    monkeypatch.setattr(broadcast.TaskContext, "get", lambda: context)
    monkeypatch.setattr(
        broadcast.CachedModel, "on", lambda device, module, precision: CachedModel(module, device=device)
    )
    scorer = Scorer(nn.Module, b"", Outputs("regressor"), "fp32", Columns((InputColumn("x"),)), device="cuda")
    packed = cloudpickle.dumps((nets.column, b""))
    rows = pa.array([[1.0, 2.0, 3.0 if end != "error" else None]] * 4)
    scores = broadcast.BroadcastScorer(scorer, f"{end} on the fake", len(packed), packed).scores([rows, rows])
    if end == "error":
        with pytest.raises(InvalidInput):
            next(scores)
    else:
        assert len(next(scores)) == 4
        assert not gpu.kinds("empty_cache")
        assert len([*scores] if end == "all rows" else [scores.close()]) == 1
    assert gpu.kinds("empty_cache") == [("empty_cache",)]
    assert turns == [("cuda", None, 3)]


def test_scores_of_a_gpu_stage_equal_the_scores_of_the_udf(spark, monkeypatch):
    """On GPUs whole rows travel through Python, of any types and names."""
    model, rows = made(nets.scores, "classifier"), features().repartition(3)
    rows = rows.select(
        *("row", "x", functions.col("row").alias("twice"), (functions.col("row") * 2).alias("twice")),
        array_to_vector("x").alias("vector"),
        functions.create_map(functions.lit("k"), "row").alias("map"),
        functions.lit(None).cast("timestamp").alias("null"),
    )
    expected = model.transform(rows)
    monkeypatch.setattr("sparkdl.ml.udf.gpu_profile", lambda spark, device: "one GPU a task")
    local = lambda *args: with_scores(*args[:-1], None)  # noqa: E731 - a local master has no profiles
    monkeypatch.setattr("sparkdl.ml.udf.with_scores", local)
    scored = model.transform(rows)
    assert "MapInArrow" in plan(scored)
    if hasattr(functions, "arrow_udf"):  # else pandas makes the UDF's outputs nullable
        assert scored.schema == expected.schema
    for field, other in zip(scored.schema, expected.schema, strict=True):
        assert (field.name, field.dataType, field.metadata) == (other.name, other.dataType, other.metadata)
    for one, other in zip(sorted(scored.collect()), sorted(expected.collect()), strict=True):
        assert one[:7] == other[:7]
        for output, same in zip(one[7:], other[7:], strict=True):
            np.testing.assert_allclose(output, same, rtol=1e-6)


def test_a_model_without_a_gpu_names_the_cure(spark):
    model = made(nets.column, "regressor")
    model.setDevice("cuda")
    with pytest.raises(InvalidInput, match=r"PyTorch sees 0 GPUs in this process\..*model.setDevice\('cpu'\)"):
        model.predict(X)
    assert len(model.setDevice("cpu").predict(X)) == len(X)
