"""Combination rules in torch: votes, mean or sum of the members' outputs; ``model.py`` has the equations.

The probability p_m(k) of class k is the softmax of member m's scores; for a single score s it is 1 - sigmoid(s) and
sigmoid(s). With A = sum_m a_m, the disagreement of arrays of D numbers d is

    sqrt(sum_m a_m (1 / D) sum_d (h_md - h_d)^2 / A)

All sums add in member order and in float64, as Spark's expressions do (``sql.py``), so both break ties alike.
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
    """Combines the members' outputs.

    Attributes:
        rule: votes, mean or sum.
        weights: member weights.
        intercept: constant of a sum.
        disagreement: whether to append the disagreement of the members.
        same_type: whether numbers keep the members' dtype instead of float64.
        separate: whether to return the members' own predictions side by side, for ``SqlCombiner``.
    """

    rule: Rule
    weights: tuple[float, ...]
    intercept: float = 0.0
    disagreement: bool = False
    same_type: bool = False
    separate: bool = False

    @property
    def column(self) -> str:
        """The output of a member that it combines: its ``"probability"`` or its ``"prediction"``."""
        return "probability" if self.rule == "soft" else "prediction"

    def __call__(self, outputs: Tensor) -> Tensor:
        """Combine the outputs of all members, ``[M, B, ...]``, float32 or float64.

        Votes are float64 ``[B, classes]``; with disagreement ``[B, 2 * classes]``, where the second half is the weight
        of the members that predict each class. Numbers have the members' shape ``[B, ...]``; with disagreement
        ``[B, D + 1]``, where the last column is the disagreement. Separate predictions are ``[B, M * K]`` in the
        members' dtype: K probabilities of a soft vote, the class of a hard vote, or K numbers.
        """
        if self.separate:
            return self._predictions(outputs).transpose(0, 1).flatten(1)
        return self._votes(outputs) if self.rule in VOTES else self._number(outputs)

    def _votes(self, outputs: Tensor) -> Tensor:
        if self.rule == "hard":
            votes = self._ballots(outputs)
            return votes.repeat(1, 2) if self.disagreement else votes
        votes = weighted(probabilities(outputs), self.weights)
        return torch.cat([votes, self._ballots(outputs)], 1) if self.disagreement else votes

    def _ballots(self, outputs: Tensor) -> Tensor:
        """Weight of the members that predict each class, ``[B, K]``; NaN if a member has no prediction."""
        scores = _scores(outputs)
        ballots = torch.zeros_like(scores[0], dtype=torch.float64)
        largest, classes = scores.max(-1, keepdim=True)  # the first of equals; NaN if any score is NaN
        for best, weight in zip(classes, self.weights, strict=True):
            ballots.scatter_add_(1, best, torch.full_like(best, weight, dtype=ballots.dtype))
        return ballots.masked_fill_(largest.isnan().any(0), torch.nan)

    def _predictions(self, outputs: Tensor) -> Tensor:
        """Each member's probabilities ``[M, B, K]``, classes ``[M, B]`` or numbers; a class is NaN if a score is."""
        if self.rule == "hard":
            largest, classes = _scores(outputs).max(-1)
            return classes.to(outputs.dtype).masked_fill_(largest.isnan(), torch.nan)
        return probabilities(outputs) if self.rule == "soft" else outputs

    def _number(self, outputs: Tensor) -> Tensor:
        total, dtype = weighted(outputs, self.weights), outputs.dtype if self.same_type else torch.float64
        total_weight = in_order(self.weights)
        number = total / total_weight if self.rule == "mean" else total + self.intercept
        if not self.disagreement:
            return number.to(dtype)
        squares = (outputs.double() - number).square_()
        spread = squares.flatten(2).mean(-1) if squares.dim() > 2 else squares
        disagreement = (weighted(spread, self.weights) / total_weight).sqrt_()
        return torch.cat([number.reshape(len(number), -1), disagreement.unsqueeze(1)], 1).to(dtype)


def weighted(values: Tensor, weights: Sequence[float]) -> Tensor:
    """``sum_m a_m values_m`` of ``[M, ...]`` in float64, in the order of the members."""
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value, weight in zip(values, weights, strict=True):
        total += weight * value.double()  # sequential rounding, like Spark's
    return total


def in_order(numbers: Sequence[float]) -> float:
    """Sum from left to right; since 3.12 Python's ``sum`` compensates for rounding."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def probabilities(outputs: Tensor) -> Tensor:
    """Class probabilities of the members, ``[M, B, K]``, in the outputs' dtype.

    The outputs are the scores ``[M, B, K]``, or the score of class 1 alone, ``[M, B, 1]`` or ``[M, B]``.
    """
    if not _is_one_score(outputs):
        # A softmax along a short last dimension takes torch ten times as long.
        return outputs.transpose(1, 2).contiguous().softmax(1).transpose(1, 2)
    chance = _score(outputs).sigmoid()
    return torch.stack([1 - chance, chance], -1)


def _scores(outputs: Tensor) -> Tensor:
    """Scores of all classes, ``[M, B, K]``; for a single score s, they are -s and s."""
    return torch.stack([-_score(outputs), _score(outputs)], -1) if _is_one_score(outputs) else outputs


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
    if output.dim() > 2 or not _is_one_score(output.unsqueeze(0)):
        return output.double()
    score = output.reshape(-1).double()
    return torch.stack([functional.logsigmoid(-score), functional.logsigmoid(score)], -1)


def _number(output: Tensor) -> Tensor:
    return output.reshape(-1) if output.dim() == 2 and output.shape[1] == 1 else output


def stack_outputs(outputs: Sequence[Tensor], rule: Rule) -> Tensor:
    """Stack member outputs to ``[M, B, ...]``; raises InvalidInput if their shapes are incompatible.

    Binary classifiers may have one score or two, and numbers the shape ``[B]`` or ``[B, 1]``.
    """
    if len({output.shape for output in outputs}) > 1:
        outputs = [_two_scores(output) if rule in VOTES else _number(output) for output in outputs]
    shapes = sorted({tuple(output.shape) for output in outputs})
    if len(shapes) > 1:
        names = ", ".join(str(list(shape)) for shape in shapes)
        raise InvalidInput(f"the members' outputs have the shapes {names}; expected one shape.")
    return torch.stack([output if output.dtype == torch.float64 else output.float() for output in outputs])
