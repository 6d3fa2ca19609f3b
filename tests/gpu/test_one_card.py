"""What needs a GPU, on one card: `make gpu` runs it, also without Spark, Java and the project's other tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.checkpoint.async_saver import on_host
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.weights import pack, read_state
from sparkdl.serving.predictor import Predictor
from sparkdl.serving.trained_module import TrainedModule
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.table import Table
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.spec import TrainingResult
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = 600
COLUMNS = Columns((InputColumn("x"),), InputColumn("y", "int64"), row_id=InputColumn("id", "int64"))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))


def table() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS, 20)).astype(np.float32)
    return {"id": np.arange(ROWS), "x": x, "y": (x @ draw.standard_normal((20, 4))).argmax(1)}


def training(precision: str = "fp32", **changes: Any) -> Training:
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    objective = Objective(net, nn.CrossEntropyLoss(), sgd, precision=precision)
    return replace(Training(objective, 60, epochs=5), **changes)


def fitted(work: Any, size: int = 1, **options: Any) -> list[TrainingResult]:
    with LocalCluster(size, **({"device": "cuda"} | options)) as cluster:
        return cluster.gang(work, table(), COLUMNS)


def losses(trained: TrainingResult) -> list[float]:
    return [row["loss"] for row in trained.history]


@pytest.fixture(scope="module")
def on_cpu() -> list[float]:
    return losses(fitted(training(), device="cpu")[0])


@pytest.mark.parametrize("cache", ["always", "never"])
def test_losses_on_nccl_equal_those_on_the_cpu(on_cpu, cache):
    assert losses(fitted(training(cache_on_device=cache))[0]) == pytest.approx(on_cpu, rel=1e-3)


@pytest.mark.parametrize(
    "strategy",
    [
        *(AllReduce(), LocalSGD(every=3, momentum=0.3), ElasticAveraging(every=3), Gossip("random", every=3)),
        *(ParameterServer(), ParameterServer(2)),
    ],
)
def test_two_workers_share_a_card_with_gloo(strategy):
    one, two = fitted(training(strategy=strategy), 2, backend="gloo")
    assert losses(one) == losses(two)
    assert losses(one)[-1] < losses(one)[0] / 2  # other rows share a batch than with one worker
    if torch.cuda.device_count() == 1:
        with pytest.raises(InvalidInput, match="needs 2 GPUs; this machine has 1"):
            LocalCluster(2, device="cuda")


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))


def test_two_workers_with_sync_batch_norm_equal_one():
    work = training(batch_size=ROWS, layout=Replicated(sync_batch_norm=True))
    work = replace(work, objective=replace(work.objective, model=normalised))
    one, two = fitted(work), fitted(work, 2, backend="gloo")
    assert losses(two[0]) == pytest.approx(losses(one[0]), rel=1e-3)


class Vectors(nn.Module):
    def __init__(self, host: bool) -> None:
        super().__init__()
        self.rows, self.layers = Table(1000, 20, mode="sum", host=host), net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x + self.rows((100 * x).long().abs().clamp(max=999)))
        return output


def of_vectors(host: bool) -> Training:
    work = training()
    return replace(work, objective=replace(work.objective, model=partial(Vectors, host)))


@pytest.mark.parametrize("host", [False, True])
def test_tables_on_the_card_and_on_the_host_equal_those_on_the_cpu(host):
    expected = losses(fitted(of_vectors(host), device="cpu")[0])
    assert losses(fitted(of_vectors(host))[0]) == pytest.approx(expected, rel=1e-3)
    assert losses(fitted(of_vectors(host), 2, backend="gloo")[0])[-1] < expected[0] / 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_near(on_cpu, precision):
    assert losses(fitted(training(precision=precision))[0])[-1] == pytest.approx(on_cpu[-1], rel=0.2)


@dataclass(frozen=True)
class Deterministic:
    """Trains with torch's deterministic algorithms."""

    training: Training

    def __call__(self, world: World, shard: Shard | None) -> TrainingResult:
        torch.use_deterministic_algorithms(True)
        try:
            return self.training(world, shard)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_resumed_run_is_bit_equal(tmp_path, monkeypatch, precision):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    whole = fitted(Deterministic(training(precision=precision)))[0]
    store = Checkpointer(Checkpoints(str(tmp_path), run="one"), CheckpointInterval.of("1 epochs"))
    fitted(Deterministic(training(precision=precision, epochs=2, checkpointer=store)))
    resumed = fitted(Deterministic(training(precision=precision, checkpointer=store)))[0]
    assert losses(resumed) == losses(whole)
    found, expected = (read_state(merge_weights([one.weights])) for one in (resumed, whole))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@dataclass(frozen=True)
class Measured:
    """Bytes that are allocated on the card before and after a training in the same process."""

    training: Training

    def __call__(self, world: World, shard: Shard | None) -> tuple[int, int]:
        before = torch.cuda.memory_allocated(world.device)
        self.training(world, shard)
        return before, torch.cuda.memory_allocated(world.device)


def test_memory_is_freed_between_gangs():
    with LocalCluster(1, device="cuda") as cluster:
        first, *later = [cluster.gang(Measured(training()), table(), COLUMNS)[0] for _ in range(4)]
    workspace = later[0][0] - first[0]  # cuBLAS keeps it for the process
    assert 0 <= workspace < 100 << 20
    assert len({before for before, _ in later}) == 1


def test_a_checkpoint_has_the_values_of_the_card():
    values = torch.arange(10 << 20, dtype=torch.float32)  # 40 MB, more than one piece
    state = {"whole": values, "half": values[:9].bfloat16(), "flags": values[:5] > 2, "scalar": values[7], "none": {}}
    state |= {"empty": values[:0], "last": values[:120].view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)}
    on_card = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    saved = on_host(on_card, torch.device("cuda:0"), torch.cuda.current_stream().record_event())
    assert saved.pop("none") == state.pop("none")
    for name, tensor in state.items():
        assert not saved[name].is_cuda
        assert torch.equal(saved[name], tensor), name


def test_predictions_equal_those_of_the_cpu():
    trained = TrainedModule(net, pack(net()), "classifier", output=[4])
    names = ("predictionCol", "probabilityCol", "rawPredictionCol")
    params = {"inputCols": ["x"], "columnSpecs": [], "labelCol": "y", "thresholds": None, "collate": None}
    params |= {"assembleInputs": False} | dict(zip(names, ("prediction", "probability", ""), strict=True))
    gpu, cpu = (Predictor.of(trained, {**params, "device": device}).predict(table()) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(np.stack(gpu["probability"]), np.stack(cpu["probability"]), atol=1e-5)
