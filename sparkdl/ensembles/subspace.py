"""Random subspaces: each member sees some of the features.

T. K. Ho, The random subspace method for constructing decision forests, IEEE PAMI 20(8), 1998.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sparkdl.objective import ModelFactory
from sparkdl.program import Signature


@dataclass(frozen=True)
class Subspace:
    """Which features a member sees.

    Attributes:
        size: ``"sqrt"``, ``"log2"``, a share in (0, 1], or a number of at least 1.
        seed: of the choice.
    """

    size: str | float | int
    seed: int

    def indices(self, features: int) -> list[int]:
        """The features, in ascending order; at least one.

        Args:
            features: how many there are.

        Raises:
            InvalidInput: there are fewer than ``size``.
        """
        raise NotImplementedError


def masked(factory: ModelFactory | nn.Module, subspace: Subspace, inputs: Signature) -> ModelFactory | nn.Module:
    """A factory of the module whose inputs are 0 where the subspace has no feature."""
    raise NotImplementedError
