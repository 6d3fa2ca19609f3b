"""Guarantees of every strategy, and further ones of synchronous strategies.

A concrete test class inherits a suite, has a fixture ``cluster`` and says which strategy. The cluster decides which
worker gets which rows: workers report the rows of each step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import WorkerFailed
from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.weights import read_state
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import work

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
SLOW = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
DECAYING = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
ADAM = partial(torch.optim.Adam, lr=0.01)
CLASSES = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0, 4.0]), ignore_index=-1)
HALVING = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
UNEVEN = {1: (998,), 2: (0, 998), 4: (1, 0, 997, 0)}
UNEVEN_CASES = (
    *("class weights and ignored labels", "SGD", "Adam in fp32", "weights"),
    *("sparse embeddings, clipping", "sparse embeddings, SparseAdam"),
)
ROWS = 48
NUMBER = pa.float64()
SCHEMA = pa.schema({"row": pa.int64(), "x": pa.list_(NUMBER, 3), "y": NUMBER, "label": pa.int64(), "weight": NUMBER})


@dataclass(frozen=True)
class Case:
    """A training and the columns it reads.

    Attributes:
        batch_size: rows of the global batch; None for all.
        tolerance: maximum difference from the weights of a single process.
    """

    model: Any = work.Net
    loss: nn.Module = field(default_factory=nn.MSELoss)
    optimizer: Any = SGD
    scheduler: Any = None
    target: str = "y"
    weight: str | None = None
    precision: str = "fp64"
    max_grad_norm: float | None = None
    batch_size: int | None = None
    epochs: int = 4
    accumulate: int = 1
    tolerance: float = 1e-12

    def columns(self) -> Columns:
        return Columns(
            (InputColumn("x"),),
            InputColumn(self.target),
            None if self.weight is None else InputColumn(self.weight),
            row_id=InputColumn("row"),
            floating="float64" if self.precision == "fp64" else "float32",
        )

    def training(self, strategy: Strategy | None = None, rows: int = ROWS, layout: Layout | None = None) -> Training:
        settings: dict[str, Any] = {"precision": self.precision, "max_grad_norm": self.max_grad_norm}
        settings |= {"scheduler_interval": "step", "micro_batches": self.accumulate}
        objective = Objective(work.Seeded(self.model), self.loss, self.optimizer, self.scheduler, **settings)
        options = {"seed": 5, "strategy": strategy or AllReduce(), "layout": layout or Replicated()}
        return Training(objective, self.batch_size or rows, self.epochs, **options)


CASES = {
    "SGD": Case(epochs=10),
    "Adam": Case(optimizer=ADAM, epochs=10),
    "SGD in fp32": Case(precision="fp32", epochs=10, tolerance=1e-5),
    "Adam in fp32": Case(optimizer=ADAM, precision="fp32", epochs=10, tolerance=1e-5),
    "minibatches": Case(batch_size=7),
    # With SLOW weights stay near 1; at a rate of 0.1 they reach 1e4, and a GPU's other rounding grows as they do.
    "minibatches of less than a row each": Case(optimizer=SLOW, batch_size=1, epochs=1),
    "weights": Case(weight="weight", batch_size=10),
    "class weights and ignored labels": Case(work.Classifier, CLASSES, target="label"),
    "class weights and ignored labels in minibatches": Case(work.Classifier, CLASSES, target="label", batch_size=7),
    "two pieces": Case(accumulate=2, batch_size=20),
    "three pieces, weights": Case(accumulate=3, batch_size=10, weight="weight"),
    "three pieces, class weights": Case(work.Classifier, CLASSES, target="label", batch_size=10, accumulate=3),
    "clipping": Case(max_grad_norm=0.05),
    "scheduler": Case(scheduler=HALVING),
    "unused parameters": Case(work.Unused, optimizer=DECAYING),
    "parameters for a few rows": Case(work.Gated, optimizer=DECAYING, batch_size=6),
    "parameters for a few rows, Adam": Case(work.Gated, optimizer=ADAM, batch_size=6, accumulate=2),
    "frozen parameters": Case(work.Frozen, optimizer=DECAYING),
    "tied weights": Case(work.Tied, batch_size=20),
    "sparse embeddings, clipping": Case(
        work.LookupNet, optimizer=partial(torch.optim.SGD, lr=0.01), max_grad_norm=0.5, batch_size=9, accumulate=2
    ),
    "sparse embeddings, Adagrad": Case(work.LookupNet, optimizer=partial(torch.optim.Adagrad, lr=0.05), batch_size=4),
    "sparse embeddings, SparseAdam": Case(
        work.Lookup, optimizer=partial(torch.optim.SparseAdam, lr=0.01), batch_size=4
    ),
}


SAMPLE = ("Adam in fp32", "three pieces, class weights", "parameters for a few rows, Adam")


def numbers(rows: int = ROWS) -> dict[str, np.ndarray]:
    """Columns ``x`` ``[rows, 3]``, ``y``, ``label``, ``weight`` and ``row``, the number of the row."""
    random = np.random.default_rng(rows)
    x = random.normal(size=(rows, 3))
    x[:, 0] = np.where(np.arange(rows) < 5, 1, -1) * np.abs(x[:, 0])
    return {
        "row": np.arange(rows),
        "x": x,
        "y": np.sin(x).sum(1),
        "label": random.integers(-1, 4, rows),
        "weight": random.integers(0, 4, rows) / 2,
    }


def assert_equal(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 0.0) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=tolerance, err_msg=name)


class StrategyContract:
    """Guarantees of every strategy."""

    strategy: ClassVar[Strategy] = AllReduce()
    layout: ClassVar[Layout] = Replicated()
    partners: ClassVar[int] = 1  # workers that run on the same rows
    alike: ClassVar[int] = 1  # workers that draw the same random numbers
    masks: ClassVar[Any] = work.Masks
    stumbles: ClassVar[Any] = work.Stumbles
    models: ClassVar[Mapping[Any, Any]] = {}  # a case's model -> the model that trains in its place

    def case(self, case: Case) -> Case:
        """The case with the model that trains in its place."""
        return replace(case, model=self.models.get(case.model, case.model))

    def fit(self, cluster, case: Case, data: Any = None, rows: int = ROWS) -> list[dict[str, Any]]:
        """Train, and check that all workers end alike."""
        data = numbers(rows) if data is None else data
        training = self.case(case).training(self.strategy, rows, self.layout)
        first, *others = workers = whole(cluster.gang(work.Fit(training), data, case.columns()), self.layout)
        for worker in others:
            assert_equal(worker["parameters"], first["parameters"])
            assert [row["loss"] for row in worker["history"]] == [row["loss"] for row in first["history"]]
        return workers

    def test_one_worker_is_plain_optimizer(self, cluster):
        case = Case(optimizer=ADAM, precision="fp32", batch_size=7)
        (worker,) = self.fit(InlineCluster(), case, numbers())
        expected = single_process(case.training(self.strategy), numbers(), case.columns(), worker["steps"])
        assert_equal(worker["parameters"], expected)

    def test_epochs_have_each_row_once(self, cluster):
        workers = self.fit(cluster, Case(batch_size=7, epochs=2))
        steps = together(workers)
        assert [len(rows) for rows in steps] == [7, 7, 7, 7, 7, 7, 6] * 2
        for epoch in (steps[:7], steps[7:]):
            assert sorted(np.concatenate(epoch)) == list(range(ROWS))
        assert all(worker["clock"] == {"epoch": 2, "step": 14, "samples": 2 * ROWS} for worker in workers)

    def test_workers_start_from_rank_0_and_end_alike(self, cluster):
        still = self.case(Case(work.Constant, optimizer=partial(torch.optim.SGD, lr=0.0), precision="fp32", epochs=2))
        training = still.training(self.strategy, layout=self.layout)
        training = replace(training, objective=replace(training.objective, model=still.model))
        workers = whole(cluster.gang(work.Fit(training), numbers(), still.columns()), self.layout)
        (alone,) = InlineCluster().gang(work.Fit(replace(training, layout=Replicated())), numbers(), still.columns())
        first = workers[0]["start"]
        assert_equal(first, alone["start"])  # the same for any number of workers
        buffers = {name: value for worker in workers for name, value in worker["buffers"].items()}
        for worker in workers:
            assert_equal(worker["parameters"] | buffers | worker["buffers"], first)
        if isinstance(self.layout, Replicated):
            assert len({worker["start"]["head.weight"].tobytes() for worker in workers}) == cluster.size

    def test_run_is_deterministic(self, cluster):
        case = Case(self.masks, optimizer=ADAM, precision="fp32", batch_size=20, epochs=2)
        workers, repeated = self.fit(cluster, case), self.fit(cluster, case)
        for first, second in zip(workers, repeated, strict=True):
            assert_equal(first["parameters"], second["parameters"])
            np.testing.assert_array_equal(first["seen"], second["seen"])
        masks = {np.stack(worker["seen"]).tobytes() for worker in workers}
        assert len(masks) == cluster.size // self.alike  # others draw different masks
        assert len({mask.tobytes() for mask in workers[0]["seen"]}) == len(workers[0]["seen"])

    def test_batch_statistics_are_averaged_by_rows(self, cluster):
        case = Case(work.Normalised, epochs=1)
        for rows in (ROWS, 5 * cluster.size + 2):
            workers = self.fit(cluster, case, rows=rows)
            expected = {"norm.running_mean": np.zeros(3), "norm.running_var": np.zeros(3)}
            for first in range(0, len(workers), self.partners):
                replica = workers[first : first + self.partners]
                x = numbers(rows)["x"][np.concatenate([worker["steps"][0] for worker in replica])]
                expected["norm.running_mean"] += len(x) / rows * 0.1 * x.mean(0)
                expected["norm.running_var"] += len(x) / rows * (0.9 + 0.1 * x.var(0, ddof=1))
            statistics = [{name: worker["buffers"][name] for name in expected} for worker in workers]
            for buffers in statistics:
                assert_equal(buffers, statistics[0])
                assert_equal(buffers, expected, 1e-12)

    def test_half_precision_stays_near_single(self, cluster):
        half, full = (self.fit(cluster, Case(precision=name, epochs=10))[0] for name in ("bf16", "fp32"))
        assert_equal(half["parameters"], full["parameters"], 0.02)
        assert half["history"][-1]["loss"] == pytest.approx(full["history"][-1]["loss"], rel=0.05)
        assert (half["parameters"]["head.weight"] != full["parameters"]["head.weight"]).any()

    def test_a_scaled_loss_falls_and_replicas_skip_the_same_steps(self, cluster):
        workers = self.fit(cluster, Case(precision="fp16", epochs=10))
        for worker in workers:
            assert_equal(worker["parameters"], workers[0]["parameters"])
        losses = [row["loss"] for row in workers[0]["history"]]
        assert losses[-1] < losses[0]

    def test_error_in_step_names_step_and_rank(self, cluster):
        rank = cluster.size - 1
        with pytest.raises(WorkerFailed, match="ArithmeticError: stumbled over a row") as caught:
            self.fit(cluster, Case(partial(self.stumbles, rank, 2), batch_size=12))
        assert (caught.value.rank, caught.value.step, caught.value.stage) == (rank, 2, "work")
        assert "in forward" in caught.value.trace


class SynchronousContract(StrategyContract):
    """Further guarantees of strategies that take the steps of a single process.

    The arithmetic does not depend on the cluster: one class runs all ``CASES``, classes of other clusters a ``SAMPLE``.
    """

    cases: ClassVar[Sequence[str]] = tuple(CASES)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test over the cases of its class."""
        everywhere = len(metafunc.cls.cases) == len(CASES)
        for name, cases in (("name", metafunc.cls.cases), ("uneven", UNEVEN_CASES if everywhere else UNEVEN_CASES[:1])):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, cases)

    def test_training_is_single_process(self, cluster, name):
        case = self.case(CASES[name])
        workers = self.fit(cluster, case)
        expected = single_process(case.training(self.strategy), numbers(), case.columns(), together(workers))
        assert_equal(workers[0]["parameters"], expected, case.tolerance)

    def test_training_on_uneven_shards_is_single_process(self, cluster, uneven):
        case, data = self.case(replace(CASES[uneven], batch_size=400, epochs=2)), numbers(998)
        ends = np.cumsum(UNEVEN[cluster.size])[:-1]
        columns = {name: np.split(array, ends) for name, array in data.items()}
        shards = [dict(zip(columns, map(list, arrays), strict=True)) for arrays in zip(*columns.values(), strict=True)]
        workers = self.fit(cluster, case, [pa.table(shard, schema=SCHEMA) for shard in shards], rows=998)
        assert [sum(map(len, worker["steps"])) for worker in workers] == [2 * rows for rows in UNEVEN[cluster.size]]
        expected = single_process(case.training(self.strategy, 998), data, case.columns(), together(workers))
        assert_equal(workers[0]["parameters"], expected, case.tolerance)


def whole(workers: list[dict[str, Any]], layout: Layout) -> list[dict[str, Any]]:
    """The answers of ``work.Fit`` with whole parameters, merged from the workers' slices if the layout has slices."""
    if isinstance(layout, Replicated):
        return workers
    merged = read_state(merge_weights([worker["weights"] for worker in workers]))
    names = {name for worker in workers for name in worker["parameters"]}
    return [worker | {"parameters": {name: merged[name].numpy() for name in names}} for worker in workers]


def together(workers: list[dict[str, Any]]) -> list[np.ndarray]:
    """The rows of each step over all workers."""
    return [np.concatenate(rows) for rows in zip(*(worker["steps"] for worker in workers), strict=True)]


# ---- training with torch alone, which distributed training must equal ------------------------------------------------


def single_process(
    training: Training, data: dict[str, np.ndarray], columns: Columns, steps: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights after the given steps, of which each has its rows; the model factory is deterministic."""
    objective = training.objective
    module = work.new_model(training).to(objective.dtype).train()
    for part in module.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):  # SparseAdam alone needs sparse gradients
            part.sparse = getattr(objective.optimizer, "func", None) is torch.optim.SparseAdam
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = objective.optimizer(trained)
    scheduler = None if objective.scheduler is None else objective.scheduler(optimizer)
    dtypes = {name: objective.dtype if array.dtype.kind == "f" else None for name, array in data.items()}
    tensors = {name: torch.as_tensor(array, dtype=dtypes[name]) for name, array in data.items()}
    loss = copy.deepcopy(objective.loss)
    assert isinstance(loss, nn.Module)
    loss.to(objective.dtype)
    for rows in steps:
        batch = {name: tensor[torch.from_numpy(rows)] for name, tensor in tensors.items()}
        optimizer.zero_grad()
        output = module(*(batch[column.name] for column in columns.inputs))
        assert columns.target is not None
        weights = None if columns.weight is None else batch[columns.weight.name]
        _mean(loss, output, batch[columns.target.name], weights).backward()
        if objective.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(trained, objective.max_grad_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return work.arrays(dict(module.named_parameters(remove_duplicate=False)))


def _mean(loss: nn.Module, output: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return loss(output, target)
    unreduced = copy.deepcopy(loss)
    unreduced.reduction = "none"
    return (weights * unreduced(output, target)).sum() / weights.sum()
