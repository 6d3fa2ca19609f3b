"""``sparkdl plan``: the table, its order, and mistakes; no session starts."""

from __future__ import annotations

import pytest

from sparkdl.cli import plan as command
from sparkdl.cli.commands import run
from sparkdl.training.strategies.allreduce import AllReduce
from tests.sessions import ROOT

LINK = ("--bandwidth", "100", "--latency", "0.001")
CONFIGURED = ("--config", str(ROOT / "conf/train/digits.yaml"))


@pytest.fixture
def planned(nets, monkeypatch, capsys):
    """Run the command without Spark: the exit code, the lines, and the errors."""
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", None)

    def planned(*words: object) -> tuple[int, list[str], str]:
        code = run("plan", [str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return planned


def test_configuration_of_train_gives_model_and_workers(planned):
    code, (first, header, *rows), _ = planned(*CONFIGURED, *LINK, "--compute", 0.05)
    assert code == 0
    assert first == "2 workers, 1 on each host; 100 Mbit/s; latency 0.001 s; 0.05 s of computation"
    assert header.split() == ["strategy", "MB", "a", "step", "messages", "s", "a", "step", "efficiency"]
    assert len(rows) == len(command.STRATEGIES)
    (row,) = [row.split() for row in rows if row.startswith("AllReduce() ")]
    from digits_net import Net

    expected = AllReduce().explain(Net(24), 2, 100.0, 0.001, compute=0.05)
    assert row[1:] == [
        f"{expected.bytes / 1e6:.3f}",
        f"{expected.messages:.1f}",
        f"{expected.seconds:.4f}",
        f"{expected.efficiency:.0%}",
    ]


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


def test_model_alone_and_workers_that_share_hosts(planned):
    words = ("--model", "torch.nn.Linear", "--model.in_features", 8, "--model.out_features", 8, "--workers", 4, *LINK)
    separate, shared = (planned(*words, "--workers_per_host", number) for number in (1, 4))
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
        ((*LINK, *CONFIGURED, "--workers", -1), "workers is -1 and workers_per_host 1; expected at least 1."),
        (("--bandwidth", 0, "--latency", 0, *CONFIGURED), "bandwidth is 0.0 Mbit/s; expected more than 0."),
        ((*LINK, *CONFIGURED, "--compute", -1), "compute is -1.0 s; expected at least 0."),
    ],
)
def test_mistake_ends_with_2(planned, words, message):
    code, lines, err = planned(*words)
    assert (code, lines) == (2, [])
    assert message in err
