"""Pages of runs that really ran: gangs of processes that are killed and become fewer, and rounds."""

from __future__ import annotations

import os

import pytest

from benchmarks.events.browser import Browser
from sparkdl.cluster.local import LocalCluster
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.telemetry.html import RunData, make_page, read_runs
from tests.telemetry.html import runs
from tests.telemetry.html.looking import look

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of the same two processes: one goes well, one fails, two are rounds."""
    folder = tmp_path_factory.mktemp("runs")
    with LocalCluster(2, timeout=runs.TIMEOUT) as cluster:
        runs.gang(folder / "plain", cluster, runs.training())
        runs.gang(folder / "failed", cluster, runs.training(hooks=[runs.Fails()]), max_restarts=0)
        runs.rounds(folder / "SGD", cluster, ParallelSGD(rounds=3, epochs=2, shard_batch_size=50))
        runs.rounds(folder / "ADMM", cluster, ConsensusADMM(), max_rounds=2)
    return folder


def drawn(browser: Browser, data: list[RunData], folder) -> dict:
    found = look(browser, make_page(data), folder)
    assert found.trouble is None
    assert all(chart["drawn"] and chart["marks"] for chart in found.charts.values())
    return found.charts


def test_a_gang(browser, folder, tmp_path):
    data = RunData.read(str(folder / "plain"))
    assert (data.state, len(data.history), [*data.phases()]) == ("finished", 4, [0, 1])
    charts = drawn(browser, [data], tmp_path)
    assert list(charts) == ["loss", "metric-0", "metric-1", "throughput", "phases", "timeline"]
    assert charts["loss"]["legend"][:2] == ["loss", "valid_loss"]
    assert {"forward", "backward", "exchange", "validate"} <= {*charts["phases"]["legend"]}


def test_a_gang_that_failed(browser, folder, tmp_path):
    data = RunData.read(str(folder / "failed"))
    assert data.state == "failed"
    assert (data.error or "").startswith("WorkerFailed: ValueError: the <b>loss</b> went wrong")
    assert {"throughput", "phases", "timeline"} <= set(drawn(browser, [data], tmp_path))


def test_rounds(browser, folder, tmp_path):
    data = RunData.read(str(folder / "SGD"))
    assert (data.noun, [*data.phases()]) == ("part", [0, 1, 2])
    charts = drawn(browser, [data], tmp_path)
    assert list(charts) == ["loss", "throughput", "phases", "timeline"]
    assert charts["throughput"]["legend"] == ["part 0", "part 1", "part 2"]


def test_rounds_of_admm(browser, folder, tmp_path):
    charts = drawn(browser, [RunData.read(str(folder / "ADMM"))], tmp_path)
    assert charts["residuals"]["legend"] == ["primal", "dual"]
    assert "timeline" in charts


def test_a_gang_beside_rounds(browser, folder, tmp_path):
    data = read_runs([str(folder / "plain"), str(folder / "SGD")])
    charts = drawn(browser, data, tmp_path)
    assert charts["loss"]["legend"] == ["plain: loss", "plain: valid_loss", "SGD: loss", "SGD: valid_loss"]
    assert sorted(charts["phases"]["ticks"]) == ["SGD", "plain"]


def test_a_run_while_it_goes_on(browser, folder, tmp_path):
    """What its files hold before it is over: the events alone, the last line half written."""
    whole = next((folder / "plain" / "events").iterdir())
    lines = whole.read_bytes().splitlines(keepends=True)
    half = tmp_path / "half" / "events"
    half.mkdir(parents=True)
    (half / whole.name).write_bytes(b"".join(lines[: len(lines) * 2 // 3]) + lines[-2][:40])
    with pytest.warns(RuntimeWarning, match="is skipped"):
        data = RunData.read(str(tmp_path / "half"))
    assert data.state == "open"
    assert 0 < len(data.history) < 4
    assert {"loss", "throughput", "phases", "timeline"} <= set(drawn(browser, [data], tmp_path))


@pytest.mark.chaos
@pytest.mark.filterwarnings("ignore:rank 0. the gang has 2 members:RuntimeWarning")
def test_a_gang_of_three_of_whom_one_is_killed(browser, tmp_path):
    marker = str(tmp_path / "killed")
    with runs.Shrinking(3, timeout=runs.TIMEOUT) as cluster:
        cluster.marker = marker
        hooks = [runs.Kills(marker, rank=1, step=40)]
        runs.gang(tmp_path / "run", cluster, runs.training(hooks=hooks), min_size=1, elastic_timeout=0.2)
    assert os.path.exists(marker)
    data = RunData.read(str(tmp_path / "run"))
    assert [event.payload["size"] for event in data.of_kind("attempt")] == [3, 2]
    charts = drawn(browser, [data], tmp_path)
    assert {"workers", "timeline"} <= set(charts)
    assert "restart" in charts["timeline"]["legend"]
    page = make_page([data])
    assert "<h2>Attempts</h2>" in page
    assert "was killed by SIGKILL" in page
