"""What becomes of the members' outputs, in torch: votes, a mean or a sum.

With the output h_m of member m = 1 ... M, its weight a_m, A = sum_m a_m, and of classes k the probability p_m(k) that
is the softmax of the scores h_m, or 1 - sigmoid(h_m) and sigmoid(h_m) of a single score,

    soft    votes_k = sum_m a_m p_m(k)
    hard    votes_k = sum_m a_m 1[k = argmax_j p_m(j)]
    mean    h = sum_m a_m h_m / A
    sum     h = intercept + sum_m a_m h_m

and the disagreement of numbers, or of arrays of D numbers d,

    sqrt(sum_m a_m (1 / D) sum_d (h_md - h_d)^2 / A)

Probabilities are what the members themselves give. All sums run over the members in their order and in float64, as
Spark's expressions do (``chained.py``): what is a tie for one is a tie for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from sparkdl.errors import InvalidInput

Rule = Literal["soft", "hard", "mean", "sum"]
RULES: tuple[Rule, ...] = ("soft", "hard", "mean", "sum")
VOTES: tuple[Rule, ...] = ("soft", "hard")


@dataclass(frozen=True)
class Combining:
    """How members' outputs become one.

    Attributes:
        rule: votes, a mean or a sum.
        weights: of the members.
        intercept: of a sum.
        disagreement: whether the result goes on with what tells how far the members are apart.
        same_type: whether numbers come in the dtype of the members' outputs, and not in float64.
    """

    rule: Rule
    weights: tuple[float, ...]
    intercept: float = 0.0
    disagreement: bool = False
    same_type: bool = False

    def __call__(self, outputs: Tensor) -> Tensor:
        """The outputs of all members as one.

        Args:
            outputs: ``[M, B, ...]``, float32 or float64.

        Returns:
            Of the rules of classifiers float64 votes ``[B, classes]``, with disagreement followed by the weight of
            the members that predict each class, ``[B, 2 * classes]``. Of the others the members' shape ``[B, ...]``,
            with disagreement ``[B, D + 1]``, that in the last column.
        """
        return self._votes(outputs) if self.rule in VOTES else self._number(outputs)

    def _votes(self, outputs: Tensor) -> Tensor:
        if self.rule == "hard":
            votes = self._ballots(outputs)
            return votes.repeat(1, 2) if self.disagreement else votes
        votes = weighted(probabilities(outputs), self.weights)
        return torch.cat([votes, self._ballots(outputs)], 1) if self.disagreement else votes

    def _ballots(self, outputs: Tensor) -> Tensor:
        """The weight of the members that predict each class, ``[B, K]``; NaN where one of them has no prediction."""
        scores = torch.stack([-_score(outputs), _score(outputs)], -1) if _is_one_score(outputs) else outputs
        ballots = torch.zeros_like(scores[0], dtype=torch.float64)
        largest, classes = scores.max(-1, keepdim=True)  # of equals the first; NaN where there is one
        for best, weight in zip(classes, self.weights, strict=True):
            ballots.scatter_add_(1, best, torch.full_like(best, weight, dtype=ballots.dtype))
        return ballots.masked_fill_(largest.isnan().any(0), torch.nan)

    def _number(self, outputs: Tensor) -> Tensor:
        total, dtype = weighted(outputs, self.weights), outputs.dtype if self.same_type else torch.float64
        mass = in_order(self.weights)
        found = total / mass if self.rule == "mean" else total + self.intercept
        if not self.disagreement:
            return found.to(dtype)
        squares = (outputs.double() - found).square_().flatten(2) if outputs.dim() > 2 else None
        spread = (outputs.double() - found).square_() if squares is None else squares.mean(-1)
        apart = (weighted(spread, self.weights) / mass).sqrt_()
        return torch.cat([found.reshape(len(found), -1), apart.unsqueeze(1)], 1).to(dtype)


def weighted(values: Tensor, weights: Sequence[float]) -> Tensor:
    """``sum_m a_m values_m`` of ``[M, ...]`` in float64, in the order of the members."""
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value, weight in zip(values, weights, strict=True):
        total += weight * value.double()  # one after the other and rounded: as Spark does it
    return total


def in_order(numbers: Sequence[float]) -> float:
    """Their sum from left to right; Python's own compensates for rounding since 3.12."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def probabilities(outputs: Tensor) -> Tensor:
    """The probabilities that members give to classes, ``[M, B, K]``, in the arithmetic of the members.

    Args:
        outputs: of classifiers: scores ``[M, B, K]``, or the score of class 1 alone, ``[M, B, 1]`` or ``[M, B]``.

    Raises:
        InvalidInput: they have another shape.
    """
    if not _is_one_score(outputs):
        # Along the last dimension, where it is short, torch takes ten times as long.
        return outputs.transpose(1, 2).contiguous().softmax(1).transpose(1, 2)
    chance = _score(outputs).sigmoid()
    return torch.stack([1 - chance, chance], -1)


def _is_one_score(outputs: Tensor) -> bool:
    if outputs.dim() not in (2, 3):
        raise InvalidInput(
            f"the output of a classifier's model has the shape {list(outputs.shape[1:])}; expected [B, classes], [B] "
            "or [B, 1]."
        )
    return outputs.dim() == 2 or outputs.shape[-1] == 1


def _score(outputs: Tensor) -> Tensor:
    return outputs.reshape(*outputs.shape[:2])


def _two_scores(output: Tensor) -> Tensor:
    """The scores of two classes where a member has one: their softmax is its sigmoid."""
    if output.dim() > 2 or not _is_one_score(output.unsqueeze(0)):
        return output.double()
    score = output.reshape(-1).double()
    return torch.stack([functional.logsigmoid(-score), functional.logsigmoid(score)], -1)


def alike(outputs: Sequence[Tensor], rule: Rule) -> Tensor:
    """The outputs of members that need not have the same shape, ``[M, B, ...]``.

    Classifiers of two classes may have one score or two, and numbers the shape ``[B]`` or ``[B, 1]``.

    Raises:
        InvalidInput: they cannot be combined.
    """
    shapes = {tuple(output.shape) for output in outputs}
    if len(shapes) > 1 and rule in VOTES:
        outputs = [_two_scores(output) for output in outputs]
    elif len(shapes) > 1:
        outputs = [output.reshape(-1) if output.dim() == 2 and output.shape[1] == 1 else output for output in outputs]
    shapes = {tuple(output.shape) for output in outputs}
    if len(shapes) > 1:
        found = ", ".join(str(list(shape)) for shape in sorted(shapes))
        raise InvalidInput(f"the members' outputs have the shapes {found}; expected one shape.")
    return torch.stack([output if output.dtype == torch.float64 else output.float() for output in outputs])
