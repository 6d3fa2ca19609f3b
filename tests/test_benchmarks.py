"""The arithmetic of the benchmarks, and their pages, which name the bars of the programs. No test runs one."""

from __future__ import annotations

import importlib
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks.pairs import Pairs, Side, interleave, verdict
from benchmarks.recovery.saving import CheckpointWatch, Lost
from benchmarks.slow_links.links import block_seconds, counted_per_step, reached, sent_per_step
from benchmarks.slow_links.network import bucket, bytes_sent
from benchmarks.slow_links.picture import computed, measured
from benchmarks.slow_links.strategies import BARS, BASELINE, CANDIDATES
from benchmarks.slow_links.training import Run

ROOT = Path(__file__).resolve().parents[1]
THEMES = sorted(path.parent.name for path in ROOT.glob("benchmarks/*/main.py"))


@pytest.mark.parametrize("theme", THEMES)
def test_program_and_page_of_a_theme(theme, capsys):
    assert len(THEMES) == 28
    module = importlib.import_module(f"benchmarks.{theme}.main")
    for words, code in (["--help"], 0), (["--round-trips", "1"], 2):
        with pytest.raises(SystemExit) as ended:
            module.main(words)
        assert ended.value.code == code
        assert ("--rounds" if code == 0 else "--round-trips") in "".join(capsys.readouterr())
    page = (ROOT / "benchmarks" / theme / "README.md").read_text(encoding="utf-8")
    assert f"Bar: {module.BAR}" in page
    assert f"python -m benchmarks.{theme}.main" in page
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings[:3] == ["## Result", "## Environment", "## How to reproduce"]
    overview = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in overview if line.startswith(f"| [{theme}]({theme})")]
    assert f"| {module.BAR} |" in row
    assert f"`python -m benchmarks.{theme}.main`" in row


# ---- pairs ------------------------------------------------------------------------------------------------------


def test_sides_alternate_and_warmups_do_not_count():
    called: list[str] = []
    figures = {"a": iter([100.0, 2.0, 2.0, 2.0]), "b": iter([1.0] * 4)}

    def side(name: str) -> Side:
        return Side(name, lambda: called.append(name) or next(figures[name]))

    pairs = interleave(side("a"), side("b"), rounds=3, warmups=1)
    assert "".join(called) == "abbaabba"
    assert pairs.warmups == [(100.0, 1.0)]
    assert pairs.rounds == [(2.0, 1.0)] * 3
    assert pairs.ratio == 2.0


def test_ratio_is_the_median_within_rounds():
    # A slow minute of the machine falls on both sides of the last round; the ratio of the medians would be 2.5.
    pairs = Pairs("a", "b", [(4.0, 2.0), (5.0, 1.0), (30.0, 10.0)])
    assert pairs.ratio == 3.0
    assert pairs.error == pytest.approx((7 / 9) ** 0.5)  # of 2, 5 and 3: the variance 7/3, over 3


def test_table_shows_every_round():
    table = Pairs("ours", "theirs", [(4.0, 2.0), (12_345.6, 2.0), (8.0, 2.0)], [(9.0, 3.0)]).table("seconds")
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "seconds ours theirs ratio",
        "warm-up 9 3 3.000",
        "round 1 4 2 2.000",
        "round 2 12,346 2 6172.800",
        "round 3 8 2 4.000",
        "least 4 2 2.000",
        "most 12,346 2 6172.800",
        "median 8 2 4.000",
    ]


def test_verdict_keeps_decisive_digits():
    assert verdict(5.9, "at least 5") == "ratio 5.9 (bar: at least 5)"
    assert verdict(1.05123, "at most 1.05") == "ratio 1.051 (bar: at most 1.05)"
    assert verdict(12.3456, "at least 4") == "ratio 12.35 (bar: at least 4)"


# ---- the cost of a checkpoint -------------------------------------------------------------------------------------


def test_checkpoint_costs_the_extra_time_of_the_steps_beside():
    taken = [1.0] * 10 + [2.0, 1.5] + [1.0] * 8  # seconds of each step
    ends = list(accumulate(taken))
    # After step 10, and in its place in the midst of the second step from then on.
    lost = Lost.of(CheckpointWatch(ends, {10: ends[10] + 0.5}), 2, 10, 20)
    assert lost == Lost(step=1.0, pause=1.0, lost=1.5, saved=2.5, interval=11.5)
    assert lost.share == pytest.approx(10 / 11.5)


def test_checkpoint_needs_steps_to_compare_with():
    ends = list(accumulate([1.0] * 20))
    with pytest.raises(RuntimeError, match="only 3 steps around the checkpoint after step 10"):
        Lost.of(CheckpointWatch(ends, {10: ends[15] + 0.5}), 9, 10, 19)


# ---- slow links ---------------------------------------------------------------------------------------------------

COUNTERS = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:   70140     810 0 0 0 0 0 0    70140     810 0 0 0 0 0 0
  eth0: 1234567    9876 0 0 0 0 0 0  7654321    8765 0 0 0 0 0 0
 eth01:     111       1 0 0 0 0 0 0      222       2 0 0 0 0 0 0
"""


def test_sent_bytes_are_the_ninth_counter_of_an_interface():
    assert bytes_sent(COUNTERS) == 7_654_321
    assert bytes_sent(COUNTERS, "eth01") == 222
    with pytest.raises(ValueError, match="no interface 'eth2'"):
        bytes_sent(COUNTERS, "eth2")


@pytest.mark.parametrize(("mbit", "burst"), [(10, "16384b"), (100, "25000b"), (1000, "250000b")])
def test_bucket_holds_two_packets_or_two_milliseconds(mbit, burst):
    words = bucket("space", "eth0", mbit)
    assert words[:3] == ["tc", "-n", "space"]
    assert words[words.index("rate") + 1] == f"{mbit}000000bit"
    assert words[words.index("burst") + 1] == burst


def rank_of(host, ends, sent, **more):
    return Run(**{"host": host, "ends": ends, "gradients": 0.1, "counted": 50, "sent": sent, "idle": 5.0} | more)


def test_slowest_rank_counts_and_workers_of_a_host_share_its_cable():
    first = rank_of("one", [1.0, 2.0, 3.0, 4.0], 420, accuracies={2: 0.8, 4: 0.9})
    runs = [first, rank_of("one", [1.0, 2.5, 3.0, 4.0], 420, accuracies={})]
    runs.append(rank_of("two", [1.0, 2.0, 3.0, 6.0], 430, accuracies={}))
    assert block_seconds(runs, 2) == [1.25, 1.75]
    assert reached(runs, 0.9) == (4, 6.0)
    assert reached(runs, 0.8) == (2, 2.5)
    assert reached(runs, 0.95) is None
    assert counted_per_step(runs) == 150
    assert sent_per_step(runs) == (420 - 5 * 4 + 430 - 5 * 6) / 4


def test_candidates_have_known_families_and_the_baseline_has_none():
    assert CANDIDATES[BASELINE].family == ""
    assert {candidate.family for candidate in CANDIDATES.values()} <= {"", *BARS}
    assert all(candidate.period >= 1 for candidate in CANDIDATES.values())


def test_picture_multiplies_steps_by_seconds_a_step():
    lines = [
        {"measurement": "target", "strategy": "a", "mbit": 100.0, "steps": steps, "seconds": seconds}
        for steps, seconds in ((10, 20.0), (12, 30.0), (14, 22.0), (None, None))
    ]
    lines += [
        {"measurement": "seconds", "strategy": strategy, "mbit": mbit, "seconds_per_step": each}
        for strategy, mbit, each in (("a", 1000.0, 0.5), ("a", 10.0, 9.0), ("b", 10.0, 1.0))
    ]
    assert measured(lines) == {"a": [(100.0, 22.0)]}
    assert computed(lines) == {"a": [(10.0, 108.0), (1000.0, 6.0)]}


def test_recovery_rejects_an_unknown_measurement(capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("benchmarks.recovery.main").main(["stale"])
    assert ended.value.code == 2
    assert "there is no measurement stale; expected executor, detection, stall, throughput" in capsys.readouterr().err
