"""How one part solves its own problem in a round of ADMM.

    x = argmin_x  f(x) = F(x)/M + rho/2 ||x - v||^2

with ``F`` the sum of the part's losses, ``M`` the mass of all parts' rows and ``v = z - u``. ``Quadratic`` and
``Smooth`` multiply vectors by the Hessian, through a second backward pass, in conjugate gradients: M. Hestenes and
E. Stiefel, Methods of conjugate gradients for solving linear systems, 1952. ``Smooth`` is so an inexact Newton method,
Newton-CG, where L-BFGS could stand as well: a product costs but one backward pass through what the model has computed
already, and as ``f`` is strongly convex wherever ``F`` is convex, conjugate gradients need nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sparkdl.data.shard import Part
from sparkdl.errors import InvalidInput
from sparkdl.rounds.evaluate import batches, mass_of
from sparkdl.rounds.hyperparameters import whole
from sparkdl.rounds.local_training import Local, toward
from sparkdl.rounds.parameters import trainable
from sparkdl.telemetry.step_timer import end_step, enter
from sparkdl.training.objective import Objective, forward, trained


@dataclass(frozen=True)
class Expansion:
    """A part's problem around a point, to the second order.

    Attributes:
        x: the point, flat.
        value: ``f(x)``.
        gradient: its gradient, flat.
        product: a flat vector -> the Hessian times it.
    """

    x: Tensor
    value: float
    gradient: Tensor
    product: Callable[[Tensor], Tensor]

    @property
    def steepness(self) -> float:
        """The norm of the gradient."""
        return float(self.gradient.norm())


@dataclass(frozen=True)
class Problem:
    """What a part is to solve.

    Attributes:
        objective: the loss.
        module: has the start, and at the end the solution.
        part: the rows, of a part that is ``alone``.
        mass: ``M``.
        rho: ``rho``, of one part.
        v: ``v``, flat.
        round: which round.
        key: numbers that random numbers depend on, and on nothing else.
    """

    objective: Objective
    module: nn.Module
    part: Part
    mass: float
    rho: float
    v: Tensor
    round: int
    key: tuple[int, ...]
    parameters: dict[str, nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", trainable(self.module))

    @property
    def x(self) -> Tensor:
        """The parameters as they are, flat; a copy."""
        return torch.cat([each.detach().flatten() for each in self.parameters.values()])

    def set(self, x: Tensor) -> None:
        """Set the parameters."""
        with torch.no_grad():
            for each, piece in zip(self.parameters.values(), self._pieces(x), strict=True):
                each.copy_(piece)

    def expand(self, x: Tensor) -> Expansion:
        """The problem around ``x``; what the model has computed for the rows is kept for as long as that."""
        self.set(x)
        self.module.eval()
        criterion, total, parameters = self.objective.criterion(), 0.0, [*self.parameters.values()]
        gradient, graphs = torch.zeros_like(x), list[Sequence[Tensor]]()
        enter("feed")
        for batch in batches(self.part):
            enter("forward")
            loss = trained(criterion(forward(self.module, batch.inputs), batch)) * batch.weight
            enter("backward")
            found = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
            total += float(loss.detach())
            gradient += torch.cat([each.detach().flatten() for each in found])
            graphs.append(found)
            enter("feed")
        end_step(rows=self.part.rows)
        apart = x - self.v
        value = total / self.mass + self.rho / 2 * float(apart.double().square().sum())

        def product(d: Tensor) -> Tensor:
            enter("backward")
            found = self._curved(graphs, d) / self.mass + self.rho * d
            enter("update")
            return found

        return Expansion(x, value, gradient / self.mass + self.rho * apart, product)

    def begin(self, x: Tensor) -> Expansion:
        """The problem around the point where a solver begins.

        Raises:
            InvalidInput: the loss or its gradient is not finite there.
        """
        here = self.expand(x)
        if not math.isfinite(here.value + here.steepness):
            raise InvalidInput("the loss or its gradient is not finite; scale the inputs, or take a larger rho.")
        return here

    def _curved(self, graphs: Sequence[Sequence[Tensor]], d: Tensor) -> Tensor:
        """The Hessian of ``F`` times a direction: the gradient, along the direction, of the gradient."""
        parameters, pieces, found = [*self.parameters.values()], self._pieces(d), torch.zeros_like(d)
        for graph in graphs:
            # A gradient that does not depend on the parameters has no curvature.
            pairs = [pair for pair in zip(graph, pieces, strict=True) if pair[0].requires_grad]
            if pairs:
                gradients, along = zip(*pairs, strict=True)
                products = torch.autograd.grad(
                    gradients, parameters, along, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                found += torch.cat([each.flatten() for each in products])
        return found

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        parameters = [*self.parameters.values()]
        pieces = torch.split(flat, [each.numel() for each in parameters])
        return [piece.view_as(each) for piece, each in zip(pieces, parameters, strict=True)]


@dataclass(frozen=True)
class Quadratic:
    """Exact for a loss that is quadratic in the parameters: a linear model with squared errors.

    Conjugate gradients on ``H x = b`` until the residual is down to rounding.

    Attributes:
        tolerance: largest residual relative to the one at ``v``; the objective is refused as not quadratic where ten
            times as many steps as there are parameters, and a hundred more, reach neither its root nor rounding.
    """

    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise InvalidInput(f"Quadratic has tolerance={self.tolerance!r}; expected from 0 to below 1.")

    @property
    def takes_steps(self) -> bool:
        """See ``Solver``."""
        return False

    def solve(self, problem: Problem) -> None:
        """Set the module to the solution."""
        here = problem.begin(problem.v)
        first, steps = here.steepness, 10 * len(problem.v) + 100
        step = conjugate_gradients(here.product, -here.gradient, goal=self.tolerance * first, steps=steps)
        there = problem.expand(problem.v + step)
        least = max(self.tolerance, 1e2 * torch.finfo(step.dtype).eps)
        if not (there.steepness**2 <= least * max(first**2, 1e-300) or there.steepness <= _rounding(here, there)):
            raise InvalidInput(
                "the loss is not quadratic in the parameters, and solver=Quadratic() solves nothing else; take "
                "solver=Smooth() for convex ones or solver=Steps() for networks."
            )


@dataclass(frozen=True)
class Smooth:
    """For smooth convex losses: Newton's method, inexact, from where the part was last.

    Its steps are found by conjugate gradients and halved until enough is won: J. Nocedal and S. Wright, Numerical
    optimization, 2nd edition 2006, algorithm 7.1. As ADMM converges the problem of a round is nearly solved by the
    solution of the last, so that it suffices to come a certain way from there: the errors are then summable (S. Boyd
    et al. 2011, section 3.4.4). What the model computes for all of a part's rows is kept in memory meanwhile.

    Attributes:
        reduction: it is over when the gradient is this small relative to the one where it began; 0 for exact solutions.
        tolerance: it is over when the gradient's norm is no larger than this.
        iterations: steps, at most.
    """

    reduction: float = 0.1
    tolerance: float = 1e-10
    iterations: int = 20

    def __post_init__(self) -> None:
        whole(self, iterations=1)
        if not (0 <= self.reduction < 1 and self.tolerance >= 0):
            raise InvalidInput(
                f"Smooth has reduction={self.reduction!r} and tolerance={self.tolerance!r}; expected from 0 to below "
                "1, and at least 0."
            )

    @property
    def takes_steps(self) -> bool:
        """See ``Solver``."""
        return False

    def solve(self, problem: Problem) -> None:
        """Set the module to the solution."""
        here = problem.begin(problem.x)
        enough = max(self.reduction * here.steepness, self.tolerance)
        for _ in range(self.iterations):
            if here.steepness <= enough:
                break
            goal = max(0.1 * here.steepness, enough) / 2
            step = conjugate_gradients(here.product, -here.gradient, goal=goal, steps=10 * len(here.x))
            found = _along(problem, here, step)
            if found is None:
                break
            here = found
        problem.set(here.x)


@dataclass(frozen=True)
class Steps:
    """For networks: a few passes of the objective's own optimizer, from where the part was last. It is inexact.

    Attributes:
        epochs: passes over the part's rows.
        batch_size: rows of a step.
    """

    epochs: int = 1
    batch_size: int = 32

    def __post_init__(self) -> None:
        whole(self, epochs=1, batch_size=1)

    @property
    def takes_steps(self) -> bool:
        """See ``Solver``."""
        return True

    def solve(self, problem: Problem) -> None:
        """Set the module to what it comes to."""
        # The part's mean loss is what is minimised, and the quadratic is on its scale.
        pull = toward(problem.v, problem.rho * problem.mass / mass_of(problem.part))
        local = Local(self.epochs, self.batch_size, problem.round, problem.key, pull)
        local.train(problem.objective, problem.module, problem.part)


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, *, goal: float, steps: int) -> Tensor:
    """``x`` of ``A x = b``, from 0.

    Args:
        product: a vector -> ``A`` times it; ``A`` is symmetric.
        b: the right-hand side, ``[n]``.
        goal: it is over when the residual's norm is no larger than this.
        steps: products, at most.

    Returns:
        ``x``, or how far it came where ``A`` turned out not to be positive definite: ``b`` itself in the first step.
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


def _rounding(here: Expansion, there: Expansion) -> float:
    """How steep a quadratic may seem at its minimum ``there``.

    Where ``v`` is the solution already, the gradient is rounding at both ends, and cannot become small relative to
    itself. With ``L`` what the Hessian stretches by, a rounded ``x`` is ``L eps ||x||`` steep, and rows whose losses
    come to ``f`` have gradients of about ``sqrt(L f)``, whose sum is rounded too.
    """
    stretch = float(here.product(here.gradient).norm()) / max(here.steepness, 1e-300)
    size = stretch * float(there.x.norm()) + math.sqrt(stretch * abs(there.value))
    return 1e2 * torch.finfo(there.x.dtype).eps * size


def _along(problem: Problem, here: Expansion, step: Tensor) -> Expansion | None:
    """The problem around where the step leads, halved until enough is won; None where rounding is all there is."""
    slope = float(here.gradient @ step)
    slack = 10 * torch.finfo(step.dtype).eps * abs(here.value)
    for halvings in range(30):
        t = 0.5**halvings
        found = problem.expand(here.x + t * step)
        if found.value <= here.value + 1e-4 * t * slope + slack and math.isfinite(found.steepness):
            return found
    return None
