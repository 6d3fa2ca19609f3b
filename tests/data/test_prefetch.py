"""Prefetched items: all, in order, errors in their place, and no thread left behind."""

from __future__ import annotations

import itertools
import threading

import pytest

from sparkdl.data.prefetch import prefetch


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("depth", [1, 2, 100])
def test_every_item_comes_in_order_from_another_thread(depth):
    for count in (0, 1, 2, 3, 1000):
        assert list(prefetch(range(count), depth=depth)) == list(range(count))
    items = prefetch((threading.current_thread().name for _ in range(5)), depth=depth)
    assert "sparkdl-prefetch_0" not in [thread.name for thread in threading.enumerate()]  # before the first request
    assert set(items) == {"sparkdl-prefetch_0"}
    first, second = prefetch(range(50), depth=depth), prefetch(range(100, 150), depth=depth)
    assert list(zip(first, second, strict=True)) == list(zip(range(50), range(100, 150), strict=True))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_producer_is_at_most_the_queue_and_one_item_ahead(depth):
    produced, count = threading.Semaphore(0), 0

    def items():
        nonlocal count
        for item in itertools.count():
            count += 1
            produced.release()
            yield item

    stream = prefetch(items(), depth=depth)
    for taken in range(1, 5):
        assert next(stream) == taken - 1
        while count < taken + depth + 1:
            assert produced.acquire(timeout=20)
        assert count == taken + depth + 1
    stream.close()
    assert count == 4 + depth + 1


@pytest.mark.parametrize("error", [OSError("the disk is gone"), SystemExit("the disk is gone")], ids=repr)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_error_comes_in_the_place_of_its_item(before, error):
    def items():
        yield from range(before)
        raise error

    stream = prefetch(items())
    assert [next(stream) for _ in range(before)] == list(range(before))
    with pytest.raises(type(error), match="the disk is gone") as caught:
        next(stream)
    assert "items" in [entry.name for entry in caught.traceback]
