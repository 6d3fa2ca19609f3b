"""A batch that is cut for gradient accumulation stays the same batch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.data.batch import DTYPES, Batch, Ragged, arguments


def batch(rows: int, *, masses: Tensor | None = None, target: bool = True) -> Batch:
    draw = torch.Generator().manual_seed(rows)
    return Batch(
        inputs=(torch.randn(rows, 3, generator=draw), torch.arange(rows)),
        target=torch.randn(rows, generator=draw) if target else None,
        weights=None if masses is None else masses.float(),
        denominators=masses,
        rows=rows,
        weight=float(rows if masses is None else masses.sum()),
        weight_fraction=0.25,
        total=4 * rows,
    )


def random_masses(rows: int) -> Tensor:
    return torch.tensor(np.random.default_rng(rows).choice([0.0, 0.5, 2.0, 3.25], rows))


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 100])
def test_pieces_are_the_rows_in_their_order(rows: int, pieces: int) -> None:
    for whole in (batch(rows), batch(rows, masses=random_masses(rows)), batch(rows, target=False)):
        cut = list(whole.split(pieces))
        assert len(cut) == pieces
        assert sum(piece.rows for piece in cut) == rows
        assert max(piece.rows for piece in cut) - min(piece.rows for piece in cut) <= 1
        for index, tensor in enumerate(whole.inputs):
            assert torch.equal(torch.cat([piece.inputs[index] for piece in cut]), tensor)
        for name in ("target", "weights", "denominators"):
            tensor = getattr(whole, name)
            tensors = [getattr(piece, name) for piece in cut]
            assert tensors == [None] * pieces if tensor is None else torch.equal(torch.cat(tensors), tensor)
        assert {(piece.weight_fraction, piece.total) for piece in cut} == {(0.25, 4 * rows)}
        assert all(len(piece.inputs[0]) == piece.rows for piece in cut)


@pytest.mark.parametrize("pieces", [2, 3, 7, 50])
@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_the_pieces_together_have_the_mean_of_the_whole(rows: int, pieces: int) -> None:
    losses = torch.randn(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for masses in (None, random_masses(rows)):
        whole = batch(rows, masses=masses)
        if not whole.weight:
            continue
        summed, first = 0.0, 0
        for piece in whole.split(pieces):
            own = losses[first : first + piece.rows]
            weighted = own if piece.weights is None else own * piece.weights
            if piece.weight:
                summed += piece.micro_fraction * float(weighted.sum()) / piece.weight
            first += piece.rows
        expected = (losses if masses is None else losses * masses).sum() / whole.weight
        assert summed == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
        assert sum(piece.micro_fraction for piece in whole.split(pieces)) == pytest.approx(1, abs=1e-12)


def test_one_piece_is_the_batch_itself() -> None:
    whole = batch(5)
    assert list(whole.split(1)) == [whole]
    assert whole.micro_fraction == 1


def test_pieces_of_nothing_weigh_nothing() -> None:
    for whole in (batch(0), batch(3, masses=torch.zeros(3).double())):
        assert [piece.micro_fraction for piece in whole.split(4)] == [0.0] * 4


def test_pieces_share_the_memory_of_the_batch() -> None:
    whole = batch(6)
    assert [piece.inputs[0].data_ptr() for piece in whole.split(2)] == [
        whole.inputs[0].data_ptr(),
        whole.inputs[0][3:].data_ptr(),
    ]


def test_dtypes_have_the_names_of_numpy() -> None:
    for name, dtype in DTYPES.items():
        assert torch.from_numpy(np.zeros(1, name)).dtype == dtype


# ---- rows of several lengths -----------------------------------------------------------------------------------------

ROWS = [[3, 1], [], [4, 1, 5, 9], [2], [], []]


def ragged(rows: list[list[Any]], padding: float | None = None) -> Ragged:
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
    return Ragged(values, torch.tensor(np.cumsum([0, *map(len, rows)])), padding)


def listed(found: Ragged) -> list[list[int]]:
    return [found.values[first:last].tolist() for first, last in itertools.pairwise(found.bounds.tolist())]


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("last", range(7))
def test_ragged_rows_are_cut_like_a_list(first: int, last: int) -> None:
    found = ragged(ROWS)[first:last]
    assert listed(found) == ROWS[first:last]
    assert len(found) == len(ROWS[first:last])
    assert int(found.bounds[0]) == 0
    assert found.lengths.tolist() == [len(row) for row in ROWS[first:last]]


@pytest.mark.parametrize("seed", range(20))
def test_ragged_rows_in_any_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [draw.integers(0, 99, draw.integers(0, 5)).tolist() for _ in range(30)]
    chosen = draw.integers(0, 30, draw.integers(0, 60))
    for dtype in (torch.int32, torch.int64):
        found = ragged(rows).index_select(0, torch.tensor(chosen, dtype=dtype))
        assert listed(found) == [rows[index] for index in chosen]


def test_a_ragged_batch_is_cut_for_accumulation() -> None:
    whole = Batch((ragged(ROWS), torch.arange(6)), None, None, None, 6, 6.0, 1.0)
    pieces = [piece.inputs for piece in whole.split(4)]
    assert [listed(tokens) for tokens, _ in pieces] == [ROWS[:1], ROWS[1:3], ROWS[3:4], ROWS[4:]]
    assert [numbers.tolist() for _, numbers in pieces] == [[0], [1, 2], [3], [4, 5]]


def test_offsets_are_what_an_embedding_bag_takes() -> None:
    values, offsets = ragged(ROWS).arguments()
    assert offsets.tolist() == [0, 2, 2, 6, 7, 7]
    bag = nn.EmbeddingBag(10, 3, mode="sum")
    expected = torch.stack([bag.weight[torch.tensor(row, dtype=torch.int64)].sum(0) for row in ROWS])
    torch.testing.assert_close(bag(values, offsets), expected)
    assert bag(*ragged([]).arguments()).shape == (0, 3)
    assert torch.equal(bag(*ragged([[], []]).arguments()), torch.zeros(2, 3))


def test_padded_rows_and_their_mask() -> None:
    values, mask = ragged(ROWS, padding=-1).arguments()
    assert values.tolist() == [row + [-1] * (4 - len(row)) for row in ROWS]
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[True] * len(row) + [False] * (4 - len(row)) for row in ROWS]
    for rows in ([], [[], []]):
        values, mask = ragged(rows, padding=0).arguments()
        assert values.shape == mask.shape == (len(rows), 0)


def test_padded_rows_of_vectors() -> None:
    values = torch.arange(10.0).view(5, 2)
    padded, mask = Ragged(values, torch.tensor([0, 3, 3, 5]), 0.5).arguments()
    assert padded.shape == (3, 3, 2)
    assert torch.equal(padded[mask], values)
    assert torch.equal(padded[~mask], torch.full((4, 2), 0.5))


def test_ragged_inputs_are_two_arguments_and_others_one() -> None:
    tokens, number = ragged(ROWS, padding=0), torch.arange(6)
    found = arguments((number, tokens, number))
    assert [tuple(each.shape) for each in found] == [(6,), (6, 4), (6, 4), (6,)]
    assert arguments(()) == []


def test_ragged_rows_have_one_dimension_to_cut() -> None:
    with pytest.raises(IndexError, match="a step of 2"):
        ragged(ROWS)[::2]
    with pytest.raises(IndexError, match="1 was asked for"):
        ragged(ROWS).index_select(1, torch.arange(2))
