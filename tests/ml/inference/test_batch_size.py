"""The size of pieces follows what is measured; the clock here is a list of rates, so that every search is known."""

from __future__ import annotations

import pytest

from sparkdl.ml.inference.batch_size import Pace


class Machine:
    """A clock that a piece of some rows moves on by what ``seconds(rows)`` says."""

    def __init__(self, seconds) -> None:
        self.now = 0.0
        self.seconds = seconds

    def __call__(self) -> float:
        return self.now

    def run(self, pace: Pace, rows: int) -> list[int]:
        """Send one batch through; the sizes of its pieces."""
        sizes, last = [], 0
        for piece in pace.pieces(rows):
            assert piece.start == last
            last = piece.stop
            sizes.append(piece.stop - piece.start)
            self.now += self.seconds(sizes[-1])
        assert last == rows
        return sizes


def cached(best: int):
    """A call costs something, and beyond ``best`` rows each row costs twice as much."""
    return lambda rows: 1e-3 + 1e-6 * rows * (1 if rows <= best else 2)


def settled(seconds, batch=10_000, batches=200, **others) -> Pace:
    machine = Machine(seconds)
    pace = Pace(clock=machine, **others)
    for _ in range(batches):
        machine.run(pace, batch)
    return pace


@pytest.mark.parametrize("best", [64, 256, 1024, 4096])
def test_the_search_climbs_or_descends_to_the_best(best):
    steep = settled(lambda rows: 1e-6 * rows * (1 + abs(rows - best) / best), batch=8192)
    assert steep.rows == best


def test_more_is_better_where_calls_are_dear():
    assert settled(lambda rows: 1.0, batch=1 << 13).rows == 1 << 13


def test_less_is_better_where_rows_are_dear():
    assert settled(lambda rows: 1e-6 * rows * rows).rows == 16


def test_of_equals_the_smaller_one_is_used():
    # 1 % more rows/s is within what measurements differ by.
    assert settled(lambda rows: 1e-6 * rows * (1 - 1e-9 * rows), first=512).rows < 1024


def test_memory_bounds_the_climb():
    assert settled(lambda rows: 1.0, most=2048).rows == 2048
    pace = Pace(first=512)
    pace.limit(3)
    assert [piece.stop - piece.start for piece in pace.pieces(7)] == [3, 2, 2]


def test_one_row_at_a_time_may_be_all_that_fits():
    pace = settled(lambda rows: 1.0, batch=40, most=0)
    assert (pace.most, pace.rows) == (1, 1)


def test_pieces_of_a_batch_are_as_equal_as_can_be():
    machine = Machine(lambda rows: 1.0)
    assert machine.run(Pace(first=512, clock=machine), 1100) == [550, 550]
    assert machine.run(Pace(first=512, clock=machine), 1400) == [467, 467, 466]
    assert machine.run(Pace(first=512, clock=machine), 1) == [1]
    assert machine.run(Pace(first=512, clock=machine), 0) == []


def test_small_batches_say_nothing_about_large_pieces():
    pace = settled(cached(1024), batch=100)
    assert pace.rows == 512
    machine = Machine(cached(1024))
    assert machine.run(pace, 100) == [100]


def test_no_piece_is_larger_than_the_batch():
    assert settled(lambda rows: 1.0, batch=700).rows == 512  # of which 700 rows are one piece
    assert settled(lambda rows: 1.0, batch=10_000).rows == 8192


def test_a_piece_that_was_disturbed_does_not_decide():
    slow = iter([50.0, 1.0, 1.0] * 100_000)
    assert settled(lambda rows: cached(2048)(rows) * next(slow)).rows == settled(cached(2048)).rows


def test_a_machine_that_changes_is_measured_again():
    machine = Machine(lambda rows: 1.0)
    pace = Pace(clock=machine)
    for _ in range(100):
        machine.run(pace, 8192)
    assert pace.rows == 8192
    machine.seconds = lambda rows: 1e-6 * rows * rows
    for _ in range(1000):
        machine.run(pace, 8192)
    assert pace.rows <= 64


def test_a_clock_that_stands_still_changes_nothing():
    assert settled(lambda rows: 0.0).rows == 512
