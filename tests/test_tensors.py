"""A batch that is cut for gradient accumulation stays the same batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sparkdl.tensors import DTYPES, Batch


def batch(rows: int, *, masses: Tensor | None = None, target: bool = True) -> Batch:
    draw = torch.Generator().manual_seed(rows)
    return Batch(
        inputs=(torch.randn(rows, 3, generator=draw), torch.arange(rows)),
        target=torch.randn(rows, generator=draw) if target else None,
        weights=None if masses is None else masses.float(),
        masses=masses,
        rows=rows,
        weight=float(rows if masses is None else masses.sum()),
        share=0.25,
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
        for name in ("target", "weights", "masses"):
            tensor = getattr(whole, name)
            tensors = [getattr(piece, name) for piece in cut]
            assert tensors == [None] * pieces if tensor is None else torch.equal(torch.cat(tensors), tensor)
        assert {(piece.share, piece.total) for piece in cut} == {(0.25, 4 * rows)}
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
                summed += piece.fraction * float(weighted.sum()) / piece.weight
            first += piece.rows
        expected = (losses if masses is None else losses * masses).sum() / whole.weight
        assert summed == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
        assert sum(piece.fraction for piece in whole.split(pieces)) == pytest.approx(1, abs=1e-12)


def test_one_piece_is_the_batch_itself() -> None:
    whole = batch(5)
    assert list(whole.split(1)) == [whole]
    assert whole.fraction == 1


def test_pieces_of_nothing_weigh_nothing() -> None:
    for whole in (batch(0), batch(3, masses=torch.zeros(3).double())):
        assert [piece.fraction for piece in whole.split(4)] == [0.0] * 4


def test_pieces_share_the_memory_of_the_batch() -> None:
    whole = batch(6)
    assert [piece.inputs[0].data_ptr() for piece in whole.split(2)] == [
        whole.inputs[0].data_ptr(),
        whole.inputs[0][3:].data_ptr(),
    ]


def test_dtypes_have_the_names_of_numpy() -> None:
    for name, dtype in DTYPES.items():
        assert torch.from_numpy(np.zeros(1, name)).dtype == dtype
