"""The benchmarks run, say what they were asked, and are judged by the bar that their pages name.

What they find is nobody's business here: no test asserts on time.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks.events.made import count, write_run
from benchmarks.pairs import Pairs, Side, interleave, verdict
from benchmarks.recovery.saving import CheckpointWatch, Lost
from sparkdl.telemetry.html import RunData
from tests.telemetry.html.looking import find_browser

ROOT = Path(__file__).resolve().parents[1]
THEMES = sorted(path.parent.name for path in ROOT.glob("benchmarks/*/main.py"))
LAST_LINE = re.compile(r"(ratio \d[\d.e+-]*|share \d\.\d+|anonymous memory \d+ MB) \(bar: .+\)")

each_theme = pytest.mark.parametrize("theme", THEMES)


def test_all_themes_are_found():
    assert THEMES[:8] == ["ensemble_parallel", "epoch", "events", "federated", "fit", "images", "launch", "memory"]
    assert THEMES[8:] == ["recovery", "rounds_overhead", "rounds_vs_mllib", "spool", "step", "transform", "wide"]


# ---- programs and pages -----------------------------------------------------------------------------------------


@each_theme
def test_help(theme, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{theme}.main").main(["--help"])
    assert ended.value.code == 0
    assert "--rounds" in capsys.readouterr().out


@each_theme
def test_an_unknown_option_is_refused(theme, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{theme}.main").main(["--round-trips", "1"])
    assert ended.value.code == 2
    assert "--round-trips" in capsys.readouterr().err


@each_theme
def test_pages_name_the_bar_and_the_command(theme):
    bar = importlib.import_module(f"benchmarks.{theme}.main").BAR
    page = (ROOT / "benchmarks" / theme / "README.md").read_text(encoding="utf-8")
    assert f"Bar: {bar}" in page
    assert f"python -m benchmarks.{theme}.main" in page
    assert [line for line in page.splitlines() if line.startswith("## ")][:3] == [
        "## Result",
        "## Environment",
        "## How to reproduce",
    ]
    overview = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in overview if line.startswith(f"| [{theme}]({theme})")]
    assert f"| {bar} |" in row
    assert f"`python -m benchmarks.{theme}.main`" in row


# ---- pairs ------------------------------------------------------------------------------------------------------


def sides(figures: dict[str, list[float]], called: list[str]) -> list[Side]:
    """Sides that give their figures one after the other and note that they were called."""
    taken = {name: iter(values) for name, values in figures.items()}

    def measure(name: str) -> float:
        called.append(name)
        return next(taken[name])

    return [Side(name, lambda name=name: measure(name)) for name in figures]


def test_sides_take_turns_in_going_first():
    called: list[str] = []
    interleave(*sides({"a": [1.0] * 4, "b": [1.0] * 4}, called), rounds=3, warmups=1)
    assert "".join(called) == "abbaabba"


def test_warmups_do_not_count():
    pairs = interleave(*sides({"a": [100.0, 2.0, 2.0], "b": [1.0, 1.0, 1.0]}, []), rounds=2, warmups=1)
    assert pairs.warmups == [(100.0, 1.0)]
    assert pairs.rounds == [(2.0, 1.0), (2.0, 1.0)]
    assert pairs.ratio == 2.0


def test_the_ratio_is_the_median_within_rounds():
    # A slow minute of the machine falls on both sides of the last round; the ratio of the medians would be 2.5.
    pairs = Pairs("a", "b", [(4.0, 2.0), (5.0, 1.0), (30.0, 10.0)])
    assert pairs.ratio == 3.0
    assert pairs.error == pytest.approx((7 / 9) ** 0.5)  # of 2, 5 and 3: the variance 7/3, over 3


def test_the_table_shows_every_round():
    table = Pairs("ours", "theirs", [(4.0, 2.0), (12_345.6, 2.0), (8.0, 2.0)], [(9.0, 3.0)]).table("seconds")
    head, *lines = [line.split() for line in table.splitlines()]
    assert head == ["seconds", "ours", "theirs", "ratio"]
    assert lines == [
        ["warm-up", "9", "3", "3.000"],
        ["round", "1", "4", "2", "2.000"],
        ["round", "2", "12,346", "2", "6172.800"],
        ["round", "3", "8", "2", "4.000"],
        ["least", "4", "2", "2.000"],
        ["most", "12,346", "2", "6172.800"],
        ["median", "8", "2", "4.000"],
    ]


def test_the_verdict_keeps_digits_that_decide():
    assert verdict(5.9, "at least 5") == "ratio 5.9 (bar: at least 5)"
    assert verdict(1.05123, "at most 1.05") == "ratio 1.051 (bar: at most 1.05)"
    assert LAST_LINE.fullmatch(verdict(12.3456, "at least 4"))


# ---- what a checkpoint costs -------------------------------------------------------------------------------------


def test_lost_is_what_the_steps_beside_a_checkpoint_took_longer():
    taken = [1.0] * 10 + [2.0, 1.5] + [1.0] * 8  # seconds of each step
    ends = list(accumulate(taken))
    # After step 10, and in its place in the midst of the second step from then on.
    lost = Lost.of(CheckpointWatch(ends, {10: ends[10] + 0.5}), 2, 10, 20)
    assert lost == Lost(step=1.0, pause=1.0, lost=1.5, saved=2.5, interval=11.5)
    assert lost.share == pytest.approx(10 / 11.5)


def test_a_checkpoint_needs_steps_to_compare_with():
    ends = list(accumulate([1.0] * 20))
    with pytest.raises(RuntimeError, match="only 3 steps around the checkpoint after step 10"):
        Lost.of(CheckpointWatch(ends, {10: ends[15] + 0.5}), 9, 10, 19)


# ---- small runs, as a user starts them --------------------------------------------------------------------------


def run(theme: str, *arguments: str, folder: Path) -> list[str]:
    """What a benchmark prints, by lines."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{theme}.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_epoch_runs_and_both_sides_take_the_same_steps(tmp_path):
    *_, losses, last = run("epoch", "--rounds", "1", "--rows", "8192", "--epochs", "2", folder=tmp_path)
    assert LAST_LINE.fullmatch(last)
    ours, theirs = (float(loss) for loss in re.findall(r"\d+\.\d+", losses))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recovery_runs(tmp_path):
    *_, killed, stopped, _, shares, last = run(
        "recovery", "detection", "--rounds", "1", "--limit", "2", folder=tmp_path
    )
    assert killed.startswith("a killed member: ")
    assert stopped.endswith("(bar: at most 2, the limit, + 5)")
    assert shares.startswith("of each bar: detection ")
    assert LAST_LINE.fullmatch(last)


def test_recovery_refuses_an_unknown_part(capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("benchmarks.recovery.main").main(["stale"])
    assert ended.value.code == 2
    assert "there is no part stale; expected executor, detection, stall, throughput" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("parts", [("rows", "first"), ("page",)])
def test_events_runs(tmp_path, parts):
    if "page" in parts:
        find_browser()
    *_, shares, last = run("events", *parts, "--rounds", "1", "--rows", "1024", "--events", "2000", folder=tmp_path)
    assert re.findall(r"(\w+) \d[\d.e+-]*", shares) == [*parts]
    assert LAST_LINE.fullmatch(last)


def test_a_made_run_has_as_many_events_as_were_wanted(tmp_path):
    write_run(str(tmp_path), members=3, events=3_000)
    assert count(str(tmp_path)) == pytest.approx(3_000, abs=10)
    data = RunData.read(str(tmp_path))
    assert {"begin", "started", "span", "step", "progress", "heartbeat", "epoch", "end"} <= {
        e.kind for e in data.events
    }
    assert [*data.phases()] == [0, 1, 2]
    assert data.report["slowest_rank"] == 2


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_spool_runs(tmp_path):
    lines = run("spool", "--rounds", "1", "--rows", "4000", folder=tmp_path)
    assert LAST_LINE.fullmatch(lines[-1])
    assert any(line.split() == ["seconds", "spool", "count", "ratio"] for line in lines)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("arguments", [("transform",), ("transform", "--vector"), ("images",)])
def test_scoring_runs(tmp_path, arguments):
    lines = run(*arguments, "--rounds", "1", "--rows", "2000", folder=tmp_path)
    assert LAST_LINE.fullmatch(lines[-1])


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "arguments", [("fixed", "reading", "--rounds", "1", "--rows", "4000"), ("large", "--width", "300")]
)
def test_rounds_overhead_runs(tmp_path, arguments):
    *_, shares, last = run("rounds_overhead", *arguments, folder=tmp_path)
    parts = [each for each in arguments if each in ("fixed", "reading", "large")]
    assert re.findall(r"(\w+) \d[\d.e+-]*", shares) == parts
    assert shares.startswith("of each bar: ")
    assert LAST_LINE.fullmatch(last)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_members_of_an_ensemble_are_measured(tmp_path):
    small = [*("--rounds", "1", "--rows", "4000", "--scored", "2000"), *("--members", "2", "--epochs", "1")]
    *_, shares, last = run("ensemble_parallel", *small, folder=tmp_path)
    assert re.findall(r"(\w+) \d[\d.e+-]*", shares) == ["training", "scoring"]
    assert LAST_LINE.fullmatch(last)
