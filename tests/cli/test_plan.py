"""``sparkdl plan``: the table, its order, and mistakes; no session starts."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl import AllReduce, TorchClassifier, TorchRegressor
from sparkdl.cli import plan as command
from sparkdl.cli.commands import run
from sparkdl.training.cost.memory import ModelMemory
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.sharded import Sharded
from tests.sessions import ROOT

LINK = ("--bandwidth", "100", "--latency", "0.001")
CONFIGURED = ("--config", str(ROOT / "conf/train/digits.yaml"))


@pytest.fixture
def planned(nets, monkeypatch, capsys):
    """Run the command without Spark: the exit code, the lines of the table, and the errors."""
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", None)

    def planned(*words: object) -> tuple[int, list[str], str]:
        code = run("plan", [str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out.partition("memory of a worker")[0].splitlines(), err

    return planned


@pytest.mark.parametrize(("layout", "row"), [(Sharded(), True), (Sharded(replicas=2), True), (Pipelined(2), False)])
def test_layout_of_the_estimator_is_a_row_and_memory_follows(capsys, layout, row):
    network = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000))
    estimator = TorchRegressor(model=network, layout=layout, optimizer=torch.optim.Adam, runDir="/nowhere")
    with nullcontext() if row else pytest.warns(UserWarning, match="Pipelined sends activations"):
        command.plan(estimator=estimator, bandwidth=100.0, latency=0.001, workers=4)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if " over " in line]
    assert len(rows) == row
    if row:
        gathered = 3 * 4 * 2 * 1000 * 1001 * (1 - 1 / (4 // layout.replicas)) / 1e6
        between = 4 * 2 * 1000 * 1001 / 2 / 1e6 * (layout.replicas > 1)  # the sum of half of the gradients
        assert float(rows[0][-4]) == pytest.approx(gathered + between, rel=0.01)
    needed = ModelMemory.of(estimator.objective(), network, saves=True)
    assert f"{needed.replicated(4) / 1e6:.1f} MB with Replicated()" in out
    assert needed.trained == 4 * 4 * 2 * 1000 * 1001


def test_configuration_of_train_gives_model_and_workers(planned):
    code, (first, header, *rows), _ = planned(*CONFIGURED, *LINK, "--compute", 0.05)
    assert code == 0
    assert first == "2 workers, 1 on each host; 100 Mbit/s; latency 0.001 s; 0.05 s of computation"
    assert header.split() == ["strategy", "MB", "a", "step", "messages", "s", "a", "step", "efficiency"]
    assert len(rows) == len(command.STRATEGIES)
    (row,) = [row.split() for row in rows if row.startswith("AllReduce() ")]
    from digits_net import Net

    cost = AllReduce().explain(Net(24), 2, 100.0, 0.001, compute=0.05)
    expected = f"{cost.bytes / 1e6:.3f} {cost.messages:.1f} {cost.seconds:.4f} {cost.efficiency:.0%}"
    assert row[1:] == expected.split()


def test_strategy_of_the_configuration_is_a_row_and_the_fastest_is_first(planned, monkeypatch):
    monkeypatch.setattr(command, "STRATEGIES", (AllReduce(),))
    strategy = ("--estimator.strategy", "sparkdl.AllReduce", "--estimator.strategy.bucket_bytes", "1")
    code, (*_, first, second), _ = planned(*CONFIGURED, *LINK, *strategy)
    assert code == 0
    assert first.startswith("AllReduce() ")
    assert first.endswith(" -")
    assert second.startswith("AllReduce(bucket_bytes=1) ")  # a message for each parameter


def test_algorithm_of_rounds_has_no_cost(planned):
    words = ("--estimator.strategy", "sparkdl.ParallelSGD", "--estimator.strategy.rounds", 3)
    with pytest.warns(UserWarning, match=r"strategy=ParallelSGD\(rounds=3\) is ignored: its steps have no cost model"):
        code, _, _ = planned(*CONFIGURED, *LINK, *words)
    assert code == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("some_nets.Own",), "its steps have no cost model"),
        (("sparkdl.AllReduce", "--estimator.strategy.reduce", "some_nets.Sums"), ".* has no cost model"),
        (("sparkdl.AllReduce", "--estimator.strategy.reduce", "some_nets.OfProtocol"), ".* has no cost model"),
    ],
)
def test_strategy_without_a_cost_model_is_no_row(planned, words, reason):
    with pytest.warns(UserWarning, match=rf"^strategy=.*(Own|Sums|OfProtocol).* is ignored: {reason}"):
        code, (_, _, *rows), _ = planned(*CONFIGURED, *LINK, "--estimator.strategy", *words)
    assert (code, len(rows)) == (0, len(command.STRATEGIES))


def test_strategy_needs_only_exchanges(planned):
    code, (_, _, first, *_), _ = planned(*CONFIGURED, *LINK, "--estimator.strategy", "some_nets.WithCost")
    assert (code, first.split()[-4:]) == (0, ["0.000", "0.0", "0.0000", "-"])


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 4), ("fp64", 8)])
@pytest.mark.parametrize("model", [nn.Linear(99, 10), partial(nn.Linear, 99), nn.Linear(99, 10).half()])
def test_parameters_of_a_module_or_factory_count_in_the_dtype_of_the_training(capsys, model, precision, size):
    settings = {} if isinstance(model, nn.Module) else {"modelArgs": {"out_features": 10}}
    estimator = TorchClassifier(model=model, precision=precision, numWorkers=2, **settings)
    command.plan(estimator=estimator, bandwidth=100.0, latency=0.001)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("AllReduce() ")]
    assert row.split()[1] == f"{(1000 + 2) * size / 1e6:.3f}"


def test_model_alone_and_workers_that_share_hosts(planned):
    words = ("--model", "torch.nn.Linear", "--model.in_features", 8, "--model.out_features", 8, *LINK, "--workers")
    code, (first, _, *rows), _ = planned(*words, 1)
    assert (code, first.partition(",")[0]) == (0, "1 worker")
    assert len([row for row in rows if "(every=8)" in row]) == 3
    separate, shared = (planned(*words, 4, "--workers_per_host", number) for number in (1, 4))
    assert separate[1][0].startswith("4 workers, 1 on each host")
    assert shared[1][0].startswith("4 workers, 4 on each host")
    seconds = [float(lines[-1].split()[-2]) for _, lines, _ in (separate, shared)]
    assert seconds[0] > seconds[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*LINK, "--workers", 2), "no model and estimator are given; expected one of them."),
        ((*LINK, *CONFIGURED, "--model", "some_nets.Net"), "a model and estimator are given; expected one of them."),
        ((*LINK, "--model", "some_nets.Net"), "workers is missing; expected their number, or an estimator"),
        ((*LINK, *CONFIGURED, "--workers", 0), "workers is 0; expected a whole number of at least 1."),
        ((*LINK, *CONFIGURED, "--compute", ".nan"), "compute is nan; expected a finite number of at least 0."),
    ],
)
def test_mistake_ends_with_2(planned, words, message):
    code, lines, err = planned(*words)
    assert (code, lines) == (2, [])
    assert message in err
