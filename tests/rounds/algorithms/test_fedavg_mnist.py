"""Handwritten digits of fifty clients: how many rounds federated averaging needs, at the best rates of the benchmark.

Without the images these tests are skipped; where SPARKDL_REQUIRE_DATA is set they fail instead.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.federated.digits import Images, alike, folder, tables, two_digits
from benchmarks.federated.main import BUDGET, CLIENTS, FED_AVG, FED_SGD, Bench

RATE = 0.3  # the best of FedAvg, both ways of dealing the images out
STEP_RATE = 1.0  # the best of FedSGD


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Figures that depend on the seed alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench():
    """Of a way to deal the images out."""
    if not (folder() / "t10k-images-idx3-ubyte.gz").is_file():
        say = pytest.fail if os.environ.get("SPARKDL_REQUIRE_DATA") else pytest.skip
        say(f"the images are not in {folder()}; set SPARKDL_DATA to the folder that has them")
    return Bench


@pytest.mark.slow
def test_five_times_fewer_rounds_than_a_step_of_all_clients(bench, record_property):
    found = bench(alike)
    averaging = found.run(replace(FED_AVG, rounds=BUDGET), RATE).rounds
    record_property("rounds", averaging)
    assert averaging <= BUDGET / 5
    # Five times as many rounds are not enough for one step in each.
    steps = found.run(replace(FED_SGD, rounds=5 * averaging - 1), STEP_RATE)
    assert steps.rounds == float("inf")


@pytest.mark.slow
def test_two_digits_a_client(bench, record_property):
    found = bench(two_digits).run(replace(FED_AVG, rounds=BUDGET), RATE)
    record_property("rounds", found.rounds)
    assert found.rounds <= BUDGET


# ---- how images are dealt out ------------------------------------------------------------------------------------


def images() -> Images:
    digits = np.random.default_rng(0).integers(0, 10, 3000)
    return Images(np.repeat(np.arange(3000, dtype=np.uint8)[:, None], 784, 1), digits)


def test_each_client_has_two_digits():
    owners = two_digits(images(), CLIENTS)
    held = [set(images().digits[owners == client].tolist()) for client in range(CLIENTS)]
    assert [len(digits) for digits in held] == [2] * CLIENTS
    assert all(sum(digit in digits for digits in held) == 10 for digit in range(10))


def test_alike_clients_have_as_many_rows_and_nearly_all_digits():
    owners = alike(images(), CLIENTS)
    assert np.bincount(owners).tolist() == [60] * CLIENTS
    assert all(len(set(images().digits[owners == client].tolist())) >= 8 for client in range(CLIENTS))


@pytest.mark.parametrize("split", [alike, two_digits])
def test_parts_have_whole_clients(split):
    owners = split(images(), CLIENTS)
    parts = tables(images(), owners, 5)
    assert sum(part.num_rows for part in parts) == 3000
    clients = [set(part["client"].to_pylist()) for part in parts]
    assert [len(each) for each in clients] == [10] * 5
    assert len(set.union(*clients)) == CLIENTS
