"""docs/data-types.md: torch."""

from __future__ import annotations

import torch


def page(execute, folder):
    augment = execute({"torch": torch})["augment"]
    image = torch.arange(2 * 3 * 3.0).reshape(2, 3, 3)
    (flipped,), target = augment((image,), torch.tensor([1, 2]), torch.Generator().manual_seed(0))
    for before, after in zip(image, flipped, strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(-1))
    assert target.tolist() == [1, 2]
