"""Solvers for a shard's local problem in a round of ADMM.

    x = argmin_x  f(x) = F(x)/M + rho/2 ||x - v||^2

``F`` is the sum of the shard's losses, ``M`` the denominator of all shards' mean loss, and ``v = z - u``.
``ConjugateGradient`` and ``NewtonCG`` use conjugate gradients (M. Hestenes and E. Stiefel, Methods of conjugate
gradients for solving linear systems, 1952), with Hessian-vector products from a second backward pass. ``NewtonCG`` is
thus an inexact Newton method, Newton-CG, rather than L-BFGS: a product costs only a backward pass through the stored
graph, and wherever ``F`` is convex, ``f`` is strongly convex.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch
from sparkdl.data.batching import fits, row_bytes
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import BelowOne, CheckedFields, Count, NonNegative
from sparkdl.rounds.evaluate import batches, summed_losses
from sparkdl.rounds.local_training import LocalTraining, toward
from sparkdl.rounds.parameters import trainable
from sparkdl.telemetry.step_timer import enter_phase
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.buckets import views


@dataclass(frozen=True)
class TaylorExpansion:
    """Second-order expansion of a local problem around a point."""

    x: Tensor  # [n]
    value: float  # f(x)
    gradient: Tensor  # of f, [n]
    product: Callable[[Tensor], Tensor]  # d, [n] -> the Hessian times d

    @property
    def steepness(self) -> float:
        """Norm of the gradient."""
        return float(self.gradient.norm())


@dataclass(frozen=True)
class ShardProblem:
    """A shard's local problem; ``module`` holds the start, and finally the solution.

    All vectors are on the objective's device.
    """

    objective: Objective
    module: nn.Module
    shard: Shard  # of ``as_only_shard``
    denominator: float  # M
    rho: float  # of one shard
    v: Tensor  # [n]
    round: int
    key: tuple[int, ...]  # random numbers depend on it and ``round`` alone

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters."""
        return list(trainable(self.module).values())

    @property
    def x(self) -> Tensor:
        """A copy of the current parameters, ``[n]``."""
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    def set(self, x: Tensor) -> None:
        """Set the parameters."""
        for parameter, piece in zip(self.parameters, views(x, [one.shape for one in self.parameters]), strict=True):
            parameter.detach().copy_(piece)

    def expand(self, x: Tensor) -> TaylorExpansion:
        """Expand the problem around ``x``; the expansion keeps the graphs of all rows in memory."""
        self.set(x)
        total, gradient, graphs = 0.0, torch.zeros_like(x), list[Sequence[Tensor]]()
        for loss, _ in summed_losses(self.objective, self.module, self.shard, self._held):
            gradients = torch.autograd.grad(
                loss, self.parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )
            total += float(loss.detach())
            gradient += torch.cat([part.detach().flatten() for part in gradients])
            graphs.append(gradients)
        delta = x - self.v
        value = total / self.denominator + self.rho / 2 * float(delta.double().square().sum())

        def product(d: Tensor) -> Tensor:
            enter_phase("backward")
            curved = self._curved(graphs, d) / self.denominator + self.rho * d
            enter_phase("update")
            return curved

        return TaylorExpansion(x, value, gradient / self.denominator + self.rho * delta, product)

    @cached_property
    def _held(self) -> list[Batch] | None:
        device = self.objective.device
        if not fits(row_bytes(self.shard) * self.shard.rows, device, "auto"):
            return None
        return [*batches(self.shard, device=device)]

    def begin(self, x: Tensor) -> TaylorExpansion:
        """Expand around a solver's start; raises InvalidInput if the loss or its gradient is not finite there."""
        start = self.expand(x)
        if not math.isfinite(start.value + start.steepness):
            raise InvalidInput("the loss or its gradient is not finite; scale the inputs, or take a larger rho.")
        return start

    def _curved(self, graphs: Sequence[Sequence[Tensor]], d: Tensor) -> Tensor:
        curved, shaped = torch.zeros_like(d), views(d, [one.shape for one in self.parameters])
        for graph in graphs:
            # If a gradient does not depend on the parameters, its curvature is 0.
            pairs = [pair for pair in zip(graph, shaped, strict=True) if pair[0].requires_grad]
            if pairs:
                gradients, along = zip(*pairs, strict=True)
                products = torch.autograd.grad(
                    gradients, self.parameters, along, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                curved += torch.cat([part.flatten() for part in products])
        return curved


@dataclass(frozen=True)
class ConjugateGradient(CheckedFields):
    """Exact solver if the loss is quadratic in the parameters, as squared errors of a linear model are.

    It solves ``H x = b`` by conjugate gradients until the residual is at rounding level.

    Attributes:
        tolerance: largest residual, relative to the residual at ``v``. After ``10 n + 100`` steps for ``n`` parameters
            it must be below ``sqrt(tolerance)`` or at rounding level; else ``solve`` raises.
    """

    tolerance: BelowOne = 1e-12

    uses_optimizer = False

    def solve(self, problem: ShardProblem) -> None:
        """Set the module to the solution; raises InvalidInput if the loss is not quadratic in the parameters."""
        start = problem.begin(problem.v)
        first, steps = start.steepness, 10 * len(problem.v) + 100
        step = conjugate_gradients(start.product, -start.gradient, goal=self.tolerance * first, steps=steps)
        end = problem.expand(problem.v + step)
        least = max(self.tolerance, 1e2 * torch.finfo(step.dtype).eps)
        if end.steepness**2 <= least * max(first**2, 1e-300):
            return
        bound = _rounding(problem.expand(problem.v), end)  # anew: the first graphs are those of other parameters
        problem.set(end.x)
        if end.steepness > bound:
            raise InvalidInput(
                "the loss is not quadratic in the parameters, as solver=ConjugateGradient() requires; take "
                "solver=NewtonCG() for convex losses, or solver=LocalSGDSolver() for networks."
            )


@dataclass(frozen=True)
class NewtonCG(CheckedFields):
    """Inexact Newton-CG for smooth convex losses, warm-started at the shard's last solution.

    Conjugate gradients give a step, which is halved until ``f`` decreases enough: J. Nocedal and S. Wright, Numerical
    optimization, 2nd edition 2006, algorithm 7.1. As ADMM converges, the last round's solution approaches this round's,
    so a fixed relative reduction suffices: the errors are then summable (S. Boyd et al. 2011, section 3.4.4). The
    graphs of all rows of the shard stay in memory.

    Attributes:
        reduction: stop if the gradient's norm, relative to the start's, is at most this; 0 solves exactly.
        tolerance: stop if the gradient's norm is at most this.
        iterations: largest number of Newton steps.
    """

    reduction: BelowOne = 0.1
    tolerance: NonNegative = 1e-10
    iterations: Count = 20

    uses_optimizer = False

    def solve(self, problem: ShardProblem) -> None:
        """Set the module to the solution."""
        point = problem.begin(problem.x)
        enough = max(self.reduction * point.steepness, self.tolerance)
        for _ in range(self.iterations):
            if point.steepness <= enough:
                break
            goal = max(0.1 * point.steepness, enough) / 2
            step = conjugate_gradients(point.product, -point.gradient, goal=goal, steps=10 * len(point.x))
            after = _along(problem, point, step)
            if after is None:
                break
            point = after
        problem.set(point.x)


@dataclass(frozen=True)
class LocalSGDSolver(CheckedFields):
    """Inexact solver for networks: epochs of the objective's optimizer, warm-started at the shard's last solution.

    Attributes:
        epochs: passes over the shard's rows.
        batch_size: rows of a step.
    """

    epochs: Count = 1
    batch_size: Count = 32

    uses_optimizer = True

    def solve(self, problem: ShardProblem) -> None:
        # Local training minimises the shard's mean loss, so that the quadratic is scaled accordingly.
        """Set the module to the result of the epochs."""
        pull = toward(problem.v, problem.rho * problem.denominator / problem.shard.denominator())
        local = LocalTraining(self.epochs, self.batch_size, problem.round, problem.key, pull)
        local.train(problem.objective, problem.module, problem.shard)


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, *, goal: float, steps: int) -> Tensor:
    """Solve ``A x = b`` from ``x = 0``, with ``product(d) = A d`` for a symmetric ``A``; all vectors are ``[n]``.

    It takes at most ``steps`` products, and ends once the residual's norm is at most ``goal``. If ``A`` is not positive
    definite, it returns the last iterate, or ``b`` if the first step shows it.
    """
    x, residual, d = torch.zeros_like(b), b.clone(), b.clone()
    squared = float(residual @ residual)
    for step in range(steps):
        if math.sqrt(squared) <= goal:
            break
        along = product(d)
        curvature = float(d @ along)
        if not curvature > 0:
            return x if step else b
        length = squared / curvature
        x += length * d
        residual -= length * along
        before, squared = squared, float(residual @ residual)
        d = residual + squared / before * d
    return x


def _rounding(start: TaylorExpansion, end: TaylorExpansion) -> float:
    """Bound on the gradient's norm at ``end`` that is due to rounding.

    If ``v`` is already the solution, both gradients are rounding errors. With ``L`` the Hessian's stretch, rounding
    ``x`` gives a gradient of ``L eps ||x||``. Rows of loss ``f`` have gradients of about ``sqrt(L f)``, rounded too.
    """
    stretch = float(start.product(start.gradient).norm()) / max(start.steepness, 1e-300)
    size = stretch * float(end.x.norm()) + math.sqrt(stretch * abs(end.value))
    return 1e2 * torch.finfo(end.x.dtype).eps * size


def _along(problem: ShardProblem, start: TaylorExpansion, step: Tensor) -> TaylorExpansion | None:
    slope = float(start.gradient @ step)
    slack = 10 * torch.finfo(step.dtype).eps * abs(start.value)
    for halvings in range(30):
        t = 0.5**halvings
        point = problem.expand(start.x + t * step)
        if point.value <= start.value + 1e-4 * t * slope + slack and math.isfinite(point.steepness):
            return point
    return None
