"""Items made ahead in a thread: all of them, in order, errors in their place, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sparkdl.data.prefetch import prefetch

LONG = 20.0


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("depth", [1, 2, 100])
def test_every_item_comes_in_order(count: int, depth: int) -> None:
    assert list(prefetch(range(count), depth=depth)) == list(range(count))


def test_items_are_made_in_another_thread() -> None:
    assert set(prefetch(threading.current_thread().name for _ in range(5))) == {"sparkdl-prefetch"}


def test_nothing_starts_before_the_first_item_is_wanted() -> None:
    def never() -> Iterator[int]:
        raise AssertionError("was started")
        yield 0

    items = prefetch(never())
    assert not [thread for thread in threading.enumerate() if thread.name == "sparkdl-prefetch"]
    del items


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_is_made_than_the_queue_holds_and_one_in_hand(depth: int) -> None:
    made = threading.Semaphore(0)
    count = 0

    def items() -> Iterator[int]:
        nonlocal count
        for item in range(100):
            count += 1
            made.release()
            yield item

    stream = prefetch(items(), depth=depth)
    for taken in range(1, 5):
        assert next(stream) == taken - 1
        while count < taken + depth + 1:  # what may be made is made
            assert made.acquire(timeout=LONG)
        assert count == taken + depth + 1
    stream.close()  # type: ignore[attr-defined]
    assert count == 4 + depth + 1


@pytest.mark.parametrize("before", [0, 1, 7])
def test_an_error_comes_where_its_item_would_have_come(before: int) -> None:
    def items() -> Iterator[int]:
        yield from range(before)
        raise OSError("the disk is gone")

    stream = prefetch(items())
    assert [next(stream) for _ in range(before)] == list(range(before))
    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(stream)
    assert "items" in [entry.name for entry in caught.traceback]  # it says where it was raised


def test_even_an_exit_is_raised_in_the_consumer() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise SystemExit(3)

    stream = prefetch(items())
    assert next(stream) == 1
    with pytest.raises(SystemExit):
        next(stream)


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("how", ["close", "del", "error"])
def test_a_consumer_that_stops_early_ends_the_thread(taken: int, how: str) -> None:
    stream = prefetch(range(10_000))
    assert [next(stream) for _ in range(taken)] == list(range(taken))
    if how == "close":
        stream.close()  # type: ignore[attr-defined]
    elif how == "error":
        with pytest.raises(KeyError):
            stream.throw(KeyError())  # type: ignore[attr-defined]
    del stream


def test_two_streams_do_not_mix() -> None:
    first, second = prefetch(range(50)), prefetch(range(100, 150))
    assert list(zip(first, second, strict=True)) == list(zip(range(50), range(100, 150), strict=True))
