"""Collectives against their equations, and against the messages of simulated rings and trees."""

import pytest

from sparkdl.training.cost.traffic import (
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    at_once,
    broadcast,
    layered,
    neighbours,
    one_per_host,
    reduce,
    reduce_scatter,
)

SIZE = 1200.0 * 128  # M


@pytest.mark.parametrize("workers", [2, 3, 8, 128])
def test_equations_of_workers_with_hosts_of_their_own(workers):
    hosts, most = one_per_host(workers), workers - 1
    share = most / workers * SIZE
    expected = {
        all_reduce(SIZE, hosts): (2 * share, 2 * most, 2 * share),
        reduce_scatter(SIZE, hosts): (share, most, share),
        all_gather(SIZE, hosts): (most * SIZE, 1, most * SIZE),
        all_to_all(SIZE, hosts): (share, 1, share),
        neighbours(SIZE, hosts, (1,)): (SIZE, 1, SIZE),
    }
    for traffic, (sent, messages, over_the_link) in expected.items():
        assert traffic.bytes == pytest.approx(sent)
        assert traffic.messages == messages
        assert traffic.link_bytes == pytest.approx(over_the_link)
        assert (traffic.local_messages, traffic.local_bytes) == (0, 0)


def test_broadcast_reaches_all_workers_by_a_tree():
    for workers, rounds in {2: 1, 3: 2, 4: 2, 5: 3, 8: 3}.items():
        traffic = broadcast(SIZE, one_per_host(workers))
        assert (traffic.messages, traffic.link_bytes) == (rounds, rounds * SIZE)
        assert traffic.bytes == pytest.approx((workers - 1) / workers * SIZE)  # each but the root receives once


def test_reduce_sends_the_parts_of_a_reduce_scatter_to_one_worker():
    for workers in (2, 3, 8):
        traffic, share = reduce(SIZE, one_per_host(workers)), (workers - 1) / workers * SIZE
        assert traffic.messages == workers
        assert traffic.link_bytes == pytest.approx(2 * share)
        assert traffic.bytes * workers == pytest.approx((workers - 1) * SIZE + share)


def test_one_worker_sends_nothing():
    for collective in (all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce):
        assert collective(SIZE, one_per_host(1)) == Traffic()
    assert neighbours(SIZE, one_per_host(1), (1, -1)) == Traffic()


def test_neighbours_on_a_ring_are_two_unless_there_is_one():
    for workers, count in {2: 1, 3: 2, 8: 2}.items():
        traffic = neighbours(SIZE, one_per_host(workers), (1, -1))
        assert (traffic.bytes, traffic.messages, traffic.link_bytes) == (count * SIZE, 1, count * SIZE)


def test_collectives_that_start_together_wait_once():
    one, two = all_reduce(SIZE, one_per_host(4)), all_gather(SIZE, one_per_host(4))
    both = at_once([one, two])
    assert (both.messages, (one + two).messages) == (6, 7)
    assert (both.bytes, both.link_bytes) == ((one + two).bytes, (one + two).link_bytes)


# ---- workers that share hosts --------------------------------------------------------------------------------------

IN_ORDER, IN_TURN, TOGETHER = "aabbcc", "abcabc", "aaaaaa"


def test_ring_in_host_order_crosses_each_link_once():
    ring = all_reduce(SIZE, one_per_host(6)).bytes
    in_order, in_turn, together = (all_reduce(SIZE, hosts) for hosts in (IN_ORDER, IN_TURN, TOGETHER))
    assert in_order.bytes == in_turn.bytes == together.bytes == ring
    assert (in_order.link_bytes, in_turn.link_bytes, together.link_bytes) == pytest.approx((ring, 2 * ring, 0))
    assert (in_order.messages, in_turn.messages, together.messages) == (10, 10, 0)
    assert (together.local_messages, together.local_bytes) == pytest.approx((10, 6 * ring))


def test_all_gather_is_a_ring_if_several_hosts_have_several_workers():
    in_order, in_turn = (all_gather(SIZE, hosts) for hosts in (IN_ORDER, IN_TURN))
    assert in_order.bytes == in_turn.bytes == all_gather(SIZE, one_per_host(6)).bytes
    assert (in_order.messages, in_order.link_bytes, in_turn.link_bytes) == (5, 5 * SIZE, 2 * 5 * SIZE)
    assert all_gather(SIZE, TOGETHER).local_messages == 1  # at once on one host


def test_all_to_all_shares_the_link_in_any_order():
    for hosts in (IN_ORDER, IN_TURN):
        assert all_to_all(SIZE, hosts).link_bytes == 2 * 4 * SIZE / 6  # 2 workers send to 4 others
    assert all_to_all(SIZE, TOGETHER).link_bytes == 0


def test_layered_reduction_crosses_links_with_one_worker_per_host():
    between = all_reduce(SIZE, one_per_host(3))
    traffic = layered(SIZE, ["aa", "bb", "cc"])
    assert (traffic.messages, traffic.link_bytes) == (between.messages, between.link_bytes)
    assert (traffic.local_messages, traffic.local_bytes) == (3, 2.5 * SIZE)
    # Inside a host, the leader sends half of the bytes to reduce and all to answer, the other worker all to reduce.
    assert traffic.bytes == pytest.approx((2.5 * SIZE + between.bytes) / 2)
    assert layered(SIZE, ["a", "b", "c"]) == between
    assert layered(SIZE, ["ab", "cd"]).messages == 3 + 2  # groups across hosts use their links
