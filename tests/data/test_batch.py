"""Batches cut for gradient accumulation, and ragged rows."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.data.batch import DTYPES, Batch, Ragged, arguments


def batch(rows, *, denominators=None, target=True):
    draw = torch.Generator().manual_seed(rows)
    return Batch(
        inputs=(torch.randn(rows, 3, generator=draw), torch.arange(rows)),
        target=torch.randn(rows, generator=draw) if target else None,
        weights=None if denominators is None else denominators.float(),
        denominators=denominators,
        rows=rows,
        weight=float(rows if denominators is None else denominators.sum()),
        weight_fraction=0.25,
        total=4 * rows,
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 100])
def test_micro_batches_have_all_rows_in_order_and_the_mean_of_the_batch(rows, count):
    losses = torch.randn(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = torch.tensor(np.random.default_rng(rows).choice([0.0, 0.5, 2.0, 3.25], rows))
    for denominators, target in itertools.product((None, drawn), (True, False)):
        source = batch(rows, denominators=denominators, target=target)
        cut, last = zip(*source.split(count), strict=True)
        assert [*last] == [False] * (count - 1) + [True]
        sizes = [piece.rows for piece in cut]
        assert (len(cut), sum(sizes)) == (count, rows)
        assert max(sizes) - min(sizes) <= 1
        for index, tensor in enumerate(source.inputs):
            assert torch.equal(torch.cat([piece.inputs[index] for piece in cut]), tensor)
        for name in ("target", "weights", "denominators"):
            tensor, tensors = getattr(source, name), [getattr(piece, name) for piece in cut]
            assert tensors == [None] * count if tensor is None else torch.equal(torch.cat(tensors), tensor)
        assert {(piece.weight_fraction, piece.total) for piece in cut} == {(0.25, 4 * rows)}
        if source.weight:
            weighted = losses if denominators is None else losses * source.weights
            sums = [float(shard.sum()) for shard in weighted.split(sizes)]
            shards = [
                piece.micro_fraction * one / piece.weight for piece, one in zip(cut, sums, strict=True) if piece.weight
            ]
            assert sum(shards) == pytest.approx(float(weighted.sum()) / source.weight, rel=1e-12, abs=1e-12)
            assert sum(piece.micro_fraction for piece in cut) == pytest.approx(1, abs=1e-12)


def test_one_micro_batch_is_the_batch_and_several_share_its_memory():
    source = batch(6)
    assert list(source.split(1)) == [(source, True)]
    assert source.micro_fraction == 1
    assert {name: torch.from_numpy(np.zeros(1, name)).dtype for name in DTYPES} == DTYPES
    for empty in (batch(0), batch(3, denominators=torch.zeros(3).double())):
        assert [piece.micro_fraction for piece, _ in empty.split(4)] == [0.0] * 4
    pointers = [piece.inputs[0].data_ptr() for piece, _ in source.split(2)]
    assert pointers == [source.inputs[0].data_ptr(), source.inputs[0][3:].data_ptr()]


ROWS = [[3, 1], [], [4, 1, 5, 9], [2], [], []]


def ragged(rows, padding=None):
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
    return Ragged(values, torch.tensor(np.cumsum([0, *map(len, rows)])), padding)


def listed(actual):
    return [actual.values[first:last].tolist() for first, last in itertools.pairwise(actual.bounds.tolist())]


def test_ragged_rows_slice_like_a_list_and_split_into_micro_batches():
    source = Batch((ragged(ROWS), torch.arange(6)), None, None, None, 6, 6.0, 1.0)
    tokens, numbers = zip(*[piece.inputs for piece, _ in source.split(4)], strict=True)
    assert [*map(listed, tokens)] == [ROWS[:1], ROWS[1:3], ROWS[3:4], ROWS[4:]]
    assert [piece.tolist() for piece in numbers] == [[0], [1, 2], [3], [4, 5]]
    for first, last in itertools.product(range(7), repeat=2):
        actual = ragged(ROWS)[first:last]
        assert listed(actual) == ROWS[first:last]
        assert (len(actual), int(actual.bounds[0])) == (len(ROWS[first:last]), 0)
        assert actual.lengths.tolist() == [len(row) for row in ROWS[first:last]]


@pytest.mark.parametrize("seed", range(20))
def test_ragged_rows_are_selected_in_any_order(seed):
    draw = np.random.default_rng(seed)
    rows = [draw.integers(0, 99, draw.integers(0, 5)).tolist() for _ in range(30)]
    chosen = draw.integers(0, 30, draw.integers(0, 60))
    for dtype in (torch.int32, torch.int64):
        actual = ragged(rows).index_select(0, torch.tensor(chosen, dtype=dtype))
        assert listed(actual) == [rows[index] for index in chosen]


def test_offsets_fit_an_embedding_bag():
    values, offsets = ragged(ROWS).arguments()
    assert offsets.tolist() == [0, 2, 2, 6, 7, 7]
    bag = nn.EmbeddingBag(10, 3, mode="sum")
    expected = torch.stack([bag.weight[torch.tensor(row, dtype=torch.int64)].sum(0) for row in ROWS])
    torch.testing.assert_close(bag(values, offsets), expected)
    assert bag(*ragged([]).arguments()).shape == (0, 3)
    assert torch.equal(bag(*ragged([[], []]).arguments()), torch.zeros(2, 3))


def test_padded_rows_and_their_mask_are_two_arguments():
    values, mask = ragged(ROWS, padding=-1).arguments()
    assert values.tolist() == [row + [-1] * (4 - len(row)) for row in ROWS]
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[True] * len(row) + [False] * (4 - len(row)) for row in ROWS]
    for rows in ([], [[], []]):
        values, mask = ragged(rows, padding=0).arguments()
        assert values.shape == mask.shape == (len(rows), 0)
    vectors = torch.arange(10.0).view(5, 2)
    padded, mask = Ragged(vectors, torch.tensor([0, 3, 3, 5]), 0.5).arguments()
    assert padded.shape == (3, 3, 2)
    assert torch.equal(padded[mask], vectors)
    assert torch.equal(padded[~mask], torch.full((4, 2), 0.5))
    actual = arguments((torch.arange(6), ragged(ROWS, padding=0), torch.arange(6)))
    assert [tuple(piece.shape) for piece in actual] == [(6,), (6, 4), (6, 4), (6,)]
    assert arguments(()) == []


def test_ragged_rows_reject_steps_and_other_dimensions():
    with pytest.raises(IndexError, match="step 2"):
        ragged(ROWS)[::2]
    with pytest.raises(IndexError, match="dimension 1"):
        ragged(ROWS).index_select(1, torch.arange(2))
