"""Tables whose rows lie on all workers train as sparse embeddings in a single process do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.weights import read_state
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.row_adagrad import RowAdagrad
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.table import Table
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.contracts import work
from tests.contracts.layout_contract import HELD, HELD_COLUMNS, Fails, assert_close, resumable, resume
from tests.contracts.strategy_contract import ROWS, SCHEMA, SLOW, Case, numbers, together
from tests.results import merged

OPTIMIZERS = {
    "RowAdagrad": partial(RowAdagrad, lr=0.05),
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "SparseAdam": partial(torch.optim.SparseAdam, lr=0.01),
}
SIZE, WIDTH = 40, 2


class Looking(nn.Module):
    """Two look-ups in one table, whose id 0 is padding, a bag of ids, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = work.Net()

    def forward(self, x: Tensor) -> Tensor:
        ids = (8 * x).long().abs().clamp(max=SIZE - 2)
        bag = self.bag(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1]))
        rows = self.numbers(ids).sum(1) + self.numbers(ids[:, 0] + 1)
        output: Tensor = (rows * bag).sum(-1) + self.dense(x)
        return output


class WithTables(Looking):
    def __init__(self, optimizer: Callable[..., Any] = RowAdagrad, admit: int = 0) -> None:
        super().__init__()
        init = waves if admit else 1.0
        self.numbers = Table(SIZE, WIDTH, padding_idx=0, optimizer=optimizer, init=init, admit=admit)
        self.bag = Table(SIZE, WIDTH, mode="sum", optimizer=optimizer, init=init, admit=admit)


def waves(ids: Tensor) -> Tensor:
    return torch.stack([ids.double().sin(), ids.double().cos()], 1)


class Admission:
    """Counts the ids of an embedding in a single process, drops gradients of rare ones, and begins rows."""

    def __init__(self, part: nn.Module, admit: int) -> None:
        self.part, self.admit, self.seen, self.ids = part, admit, torch.zeros(SIZE, dtype=torch.int64), list[Tensor]()
        part.register_forward_pre_hook(lambda _, inputs: self.ids.append(inputs[0].flatten()))

    def drop(self) -> None:
        gradient = self.part.weight.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        admitted = self.seen[rows] >= self.admit
        places = rows[admitted].unsqueeze(0)
        self.part.weight.grad = torch.sparse_coo_tensor(places, values[admitted], gradient.shape)

    @torch.no_grad()
    def begin(self) -> None:
        before = self.seen.clone()
        self.seen += torch.bincount(torch.cat(self.ids), minlength=SIZE)
        self.ids.clear()
        begun = ((before < self.admit) & (self.seen >= self.admit)).nonzero().squeeze(1)
        if self.part.padding_idx is not None:
            begun = begun[begun != self.part.padding_idx]
        self.part.weight[begun] = waves(begun)


class WithEmbeddings(Looking):
    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.numbers = nn.Embedding(SIZE, WIDTH, padding_idx=0, sparse=True)
        self.bag = nn.EmbeddingBag(SIZE, WIDTH, mode="sum", sparse=True)
        self.double().load_state_dict(weights)


@dataclass(frozen=True)
class Initial:
    """The weights of a placed replica: this worker's rows of tables, and its dense weights."""

    case: Case

    def __call__(self, world: World, shard: Shard | None) -> tuple[dict[str, Tensor], dict[str, range]]:
        replica = Replicated().place(self.case.training().objective, world, Feed(Plan((1,) * world.size, 1, seed=5)))
        held = {name: part.held for name, part in replica.module.named_modules() if isinstance(part, Table)}
        return {name: value.detach() for name, value in replica.module.state_dict().items()}, held


def initial(case: Case) -> dict[str, Tensor]:
    """The initial weights of a run of the seed 5, in one process."""
    return InlineCluster().gang(Initial(case))[0][0]


def single_process(case: Case, data: dict[str, np.ndarray], steps: list[np.ndarray]) -> dict[str, Tensor]:
    """Train sparse embeddings in place of tables by torch alone, and return the weights after these steps."""
    module = WithEmbeddings(initial(case))
    assert isinstance(case.model, partial)
    factories = [(module.dense, case.optimizer), *((part, case.model.args[0]) for part in (module.numbers, module.bag))]
    optimizers = [factory([*part.parameters()]) for part, factory in factories]
    scheduler = None if case.scheduler is None else case.scheduler(optimizers[0])
    admit = case.model.keywords.get("admit", 0)
    admissions = [Admission(part, admit) for part in (module.numbers, module.bag)] if admit else []
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    for rows in steps:
        weights = torch.from_numpy(data["weight"][rows]) if case.weight else torch.ones(len(rows))
        errors = (module(torch.from_numpy(data["x"][rows])) - torch.from_numpy(data["y"][rows])).square()
        ((weights * errors).sum() / weights.sum()).backward()
        for admission in admissions:
            admission.drop()
        gradients = [value.grad for value in module.parameters() if value.grad is not None]
        if case.max_grad_norm is not None:
            values = [one.coalesce().values() if one.is_sparse else one for one in gradients]
            factor = (case.max_grad_norm / (nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
            for one in gradients:
                one.mul_(factor)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * optimizers[0].param_groups[0]["lr"] / rates[0]
            optimizer.step()
            optimizer.zero_grad()
        for admission in admissions:
            admission.begin()
        if scheduler is not None:
            scheduler.step()
    return {name: value.detach() for name, value in module.state_dict().items()}


STRATEGIES = [AllReduce(), ParameterServer()]
HALVING = partial(torch.optim.lr_scheduler.StepLR, step_size=5, gamma=0.5)
CASES = {name: Case(partial(WithTables, one), batch_size=7) for name, one in OPTIMIZERS.items()}
CASES |= {
    "less than a row each": replace(CASES["SparseAdam"], optimizer=SLOW, batch_size=1, epochs=1),
    "two pieces, clipping, weights": replace(
        *(CASES["Adagrad"],), accumulate=2, max_grad_norm=0.3, batch_size=10, weight="weight"
    ),
    "schedule": replace(CASES["RowAdagrad"], scheduler=HALVING),
    "admission, clipping": Case(partial(WithTables, OPTIMIZERS["SGD"], admit=4), batch_size=7, max_grad_norm=0.3),
    "admission, pieces": Case(partial(WithTables, OPTIMIZERS["Adagrad"], admit=3), batch_size=10, accumulate=2),
}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_tables_train_as_sparse_embeddings_do(pair, name, strategy):
    case, data = CASES[name], numbers()
    workers = pair.gang(work.Fit(case.training(strategy)), data, case.columns())
    assert_close(merged_fit(workers), single_process(case, data, together(workers)))
    held = [len(worker["parameters"]["numbers.weight"]) for worker in workers]
    assert held == [SIZE // 2] * 2


@pytest.mark.parametrize(
    ("replicas", "name"),
    [
        (1, "two pieces, clipping, weights"),
        (1, "admission, clipping"),
        pytest.param(2, "two pieces, clipping, weights", marks=pytest.mark.slow),
        pytest.param(4, "admission, clipping", marks=pytest.mark.slow),
    ],
)
def test_tables_train_beside_slices(request, replicas, name):
    """Norm, share of rows and counts of ids cover all workers."""
    cluster, data = request.getfixturevalue("pair" if replicas == 1 else "four"), numbers()
    case = replace(CASES[name], epochs=1)
    weights = merged(cluster.gang(case.training(layout=Sharded(replicas=replicas)), data, case.columns()))
    assert_close(weights, merged(cluster.gang(case.training(), data, case.columns())))


def merged_fit(workers: list[dict[str, Any]]) -> dict[str, Tensor]:
    return read_state(merge_weights([worker["weights"] for worker in workers]))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("shares", [(14, 33), (0, 47)], ids=["uneven", "a worker without rows"])
def test_tables_train_on_uneven_shards(pair, shares, strategy):
    case, data = replace(CASES["SparseAdam"], batch_size=9), numbers()
    parts = [slice(0, shares[0]), slice(shares[0], ROWS)]
    shards = [pa.table({name: list(values[part]) for name, values in data.items()}, schema=SCHEMA) for part in parts]
    workers = pair.gang(work.Fit(case.training(strategy)), shards, case.columns())
    assert_close(merged_fit(workers), single_process(case, data, together(workers)))


def test_initial_rows_are_equal_on_any_number_of_workers(pair, four):
    case = CASES["SGD"]
    whole = initial(case)
    for cluster in (pair, four):
        for weights, held in cluster.gang(Initial(case)):
            for name, ids in held.items():
                assert torch.equal(weights[f"{name}.weight"], whole[f"{name}.weight"][[*ids]])
    assert not whole["numbers.weight"][0].any()
    assert whole["numbers.weight"][1:].abs().max() <= 1
    assert not torch.equal(whole["numbers.weight"][1:], whole["bag.weight"][1:])


@pytest.mark.parametrize("strategy", [LocalSGD(every=1), LocalSGD(every=3), Gossip(every=2)], ids=repr)
def test_rows_are_synchronous_under_strategies_whose_replicas_differ(pair, strategy):
    case, data = replace(CASES["Adagrad"], batch_size=8, epochs=2), numbers()
    workers = pair.gang(case.training(strategy), data, case.columns())
    weights = merged(workers)
    if strategy == LocalSGD(every=1):
        assert_close(weights, merged(pair.gang(case.training(), data, case.columns())))
    assert all(value.isfinite().all() for value in weights.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "admit", "strategy"),
    [*((name, 0, AllReduce()) for name in OPTIMIZERS), *(("RowAdagrad", 4, one) for one in STRATEGIES)],
)
def test_a_run_resumes_with_other_workers_and_within_an_epoch(pair, tmp_path, optimizer, admit, strategy):
    model = partial(WithTables, OPTIMIZERS[optimizer], admit=admit)
    settings = {"batch_size": 10, "model": model, "strategy": strategy}
    expected = resume(pair, resumable(tmp_path / "undisturbed", "AdamW", Replicated(), **settings))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), callbacks=(Fails(8),), **settings))
    assert_close(resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), **settings)), expected, 0)
    alone = InlineCluster()
    settings = {"model": model, "strategy": strategy}
    expected = resume(alone, resumable(tmp_path / "alone", "AdamW", Replicated(), **settings))
    for epochs, cluster in enumerate([pair, alone, pair], start=1):
        weights = resume(cluster, resumable(tmp_path / "other", "AdamW", Replicated(), **settings, epochs=epochs))
    weights = resume(alone, resumable(tmp_path / "other", "AdamW", Replicated(), **settings))
    assert_close(weights, expected)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_validation_and_the_best_epoch(pair, strategy):
    """All validation rows are of the first worker; a step has all others."""
    training = replace(replace(CASES["Adagrad"], batch_size=None, weight="weight").training(strategy), patience=2)
    alone, results = (cluster.gang(training, HELD, HELD_COLUMNS) for cluster in (InlineCluster(), pair))
    assert_close(merged(results), merged(alone))
    for row, other in zip(results[0].history, alone[0].history, strict=True):
        assert row["valid_loss"] == pytest.approx(other["valid_loss"], rel=1e-9)


class Shared(WithTables):
    """One table under two names, and a layer that is larger than both."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = self.numbers
        self.wide = nn.Linear(3, 200)

    def forward(self, x: Tensor) -> Tensor:
        ids = (8 * x).long().abs().clamp(max=SIZE - 2)
        rows = self.numbers(ids).sum(1) * self.bag(ids[:, 0] + 1)
        output: Tensor = rows.sum(-1) + self.dense(x) + self.wide(x).mean(-1)
        return output


def test_a_run_with_tables_resumes_under_another_layout(pair, tmp_path):
    alone = InlineCluster()
    expected = resume(alone, resumable(tmp_path / "alone", "AdamW", Replicated(), model=WithTables))
    places = [(pair, Sharded()), (pair, Replicated()), (alone, Replicated()), (pair, Sharded())]
    for epochs, (cluster, layout) in enumerate(places, start=1):
        training = resumable(tmp_path / "other", "AdamW", layout, model=WithTables, epochs=epochs)
        weights = resume(cluster, training)
    assert_close(weights, expected)


def test_one_table_under_two_names_resumes(pair, tmp_path):
    settings = {"batch_size": 10, "model": Shared}
    expected = resume(pair, resumable(tmp_path / "undisturbed", "AdamW", Replicated(), **settings))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), callbacks=(Fails(8),), **settings))
    assert_close(resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), **settings)), expected, 0)
    resume(pair, resumable(tmp_path / "other", "AdamW", Replicated(), **settings, epochs=1))
    resume(InlineCluster(), resumable(tmp_path / "other", "AdamW", Replicated(), **settings))


def test_tables_of_other_optimizers_do_not_resume(pair, tmp_path):
    for name in ("RowAdagrad", "SparseAdam"):
        training = resumable(tmp_path, "AdamW", Replicated(), model=partial(WithTables, OPTIMIZERS[name]))
        if name == "SparseAdam":
            with pytest.raises(InvalidInput, match="its tables have the optimizers"):
                resume(pair, training)
            return
        resume(pair, replace(training, epochs=1))


class Faulty(WithTables):
    """Ids, rows or weights that a gang does not take."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        if fault == "loaded":
            self.numbers.load_state_dict({"weight": torch.ones(SIZE, WIDTH)})
        if fault == "rows":
            with torch.no_grad():
                self.numbers.weight.zero_()
        if fault == "owner":
            self.head = nn.Linear(WIDTH, 1, bias=False)
            self.head.weight = self.numbers.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "id":
            self.numbers(torch.full((2, 1), SIZE))
        if self.fault == "dtype":
            self.numbers(torch.ones(2, dtype=torch.uint8))
        if self.fault == "copy":
            copy.deepcopy(self.numbers)(torch.ones(2, dtype=torch.int64))
        return super().forward(x)


def stacked(ids: Tensor) -> Tensor:
    return torch.stack([torch.full((WIDTH,), float(number + 1)) for number in ids])


class Few(nn.Module):
    """A table of fewer rows than workers, whose function of ids takes no empty list."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.row = work.Net(), Table(1, WIDTH, init=stacked, admit=40)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.dense(x) * self.row(torch.zeros(len(x), dtype=torch.int64)).sum(1)
        return output


def test_a_table_of_fewer_rows_than_workers_resumes(pair, tmp_path):
    settings = {"batch_size": 10, "model": Few}
    expected = resume(pair, resumable(tmp_path / "undisturbed", "AdamW", Replicated(), **settings))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), callbacks=(Fails(8),), **settings))
    assert_close(resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), **settings)), expected, 0)
    assert expected["row.weight"].all()


@pytest.mark.parametrize("model", [partial(Faulty, "loaded"), WithTables()], ids=["factory", "module"])
def test_slices_take_no_rows_of_a_factory(pair, model):
    case = Case(epochs=1)
    training = case.training(layout=Sharded())
    training = replace(training, objective=replace(training.objective, model=model))
    with pytest.raises(InvalidInput, match="Table 'numbers' has rows, as in a module"):
        pair.gang(training, numbers(), case.columns())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("id", rf"ids \[2, 1\] have {SIZE} at \[0, 0\]"),
        ("dtype", r"ids of torch.uint8"),
        ("copy", "was copied, or no module has it"),
        ("rows", "the factory writes rows of Table 'numbers'"),
        ("owner", "the weight of Table 'numbers' is another module's too"),
    ],
)
def test_what_a_gang_does_not_take_raises(pair, fault, message):
    case = Case(partial(Faulty, fault), epochs=1)
    with pytest.raises(InvalidInput, match=message):
        pair.gang(case.training(), numbers(), case.columns())


class Unfrozen(WithTables):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(True)


def test_rows_are_no_parameters_of_the_models_optimizer(pair):
    case = Case(Unfrozen, batch_size=10, epochs=1, optimizer=SLOW)
    results = (
        pair.gang(replace(case, model=one).training(), numbers(), case.columns()) for one in (Unfrozen, WithTables)
    )
    actual, expected = map(merged, results)
    assert_close(actual, expected, 0)
