"""How one part solves its own problem in a round of ADMM.

    x = argmin_x  F(x)/M + rho/2 ||x - v||^2

with ``F`` the sum of the part's losses, ``M`` the mass of all parts' rows and ``v = z - u``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.feed.part import Part
from sparkdl.objective import Objective
from sparkdl.rounds.evaluation import ROWS, alone, batches, evaluate, mass_of
from sparkdl.rounds.flat import gradient_of, trainable
from sparkdl.rounds.local import Local, toward
from sparkdl.tensors import arguments


@dataclass(frozen=True)
class Problem:
    """What a part is to solve.

    Attributes:
        objective: the loss.
        module: has the start, and at the end the solution.
        part: the rows.
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
            first = 0
            for each in self.parameters.values():
                each.copy_(x[first : first + each.numel()].view_as(each))
                first += each.numel()

    def gradient(self) -> tuple[float, Tensor]:
        """The value at the parameters as they are, and its gradient."""
        self.module.zero_grad()
        total, _ = evaluate(self.objective, self.module, self.part)
        apart = self.x - self.v
        value = float(total) / self.mass + self.rho / 2 * float(apart.double().square().sum())
        return value, gradient_of(self.parameters) / self.mass + self.rho * apart


@dataclass(frozen=True)
class Quadratic:
    """Exact for a loss that is quadratic in the parameters: a linear model with squared errors.

    Conjugate gradients on ``H x = b``, with products ``H d`` from two backward passes, until the residual is down to
    rounding: M. Hestenes and E. Stiefel, Methods of conjugate gradients for solving linear systems, 1952.

    Attributes:
        tolerance: largest residual relative to the one at ``v``; the objective is refused as not quadratic where ten
            times as many steps as there are parameters, and a hundred more, do not reach its root.
    """

    tolerance: float = 1e-12

    @property
    def takes_steps(self) -> bool:
        """See ``Solver``."""
        return False

    def solve(self, problem: Problem) -> None:
        """Set the module to the solution."""
        problem.set(problem.v)
        _, g = problem.gradient()
        step, residual = torch.zeros_like(g), -g
        d, first = residual.clone(), float(residual.square().sum())
        squared, steps = first, 0
        while squared > self.tolerance**2 * first and steps < 10 * len(g) + 100:
            product = _curvature(problem, d) + problem.rho * d
            length = squared / float(d @ product)
            step += length * d
            residual -= length * product
            before, squared = squared, float(residual.square().sum())
            d = residual + squared / before * d
            steps += 1
        problem.set(problem.v + step)
        self._check(problem, first)

    def _check(self, problem: Problem, first: float) -> None:
        _, g = problem.gradient()
        if not float(g.square().sum()) <= max(self.tolerance, 1e2 * torch.finfo(g.dtype).eps) * max(first, 1e-300):
            raise InvalidInput(
                "the loss is not quadratic in the parameters, and solver=Quadratic() solves nothing else; take "
                "solver=Smooth() for convex ones or solver=Steps() for networks."
            )


@dataclass(frozen=True)
class Smooth:
    """For smooth convex losses: ``torch.optim.LBFGS`` with its line search, from where the part was last.

    Attributes:
        iterations: at most.
        tolerance: it is over when no entry of the gradient is larger than this.
    """

    iterations: int = 50
    tolerance: float = 1e-9

    @property
    def takes_steps(self) -> bool:
        """See ``Solver``."""
        return False

    def solve(self, problem: Problem) -> None:
        """Set the module to the solution."""
        optimizer = torch.optim.LBFGS(
            problem.parameters.values(),
            max_iter=self.iterations,
            tolerance_grad=self.tolerance,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            value, gradient = problem.gradient()
            first = 0
            for each in problem.parameters.values():
                each.grad = gradient[first : first + each.numel()].view_as(each).clone()
                first += each.numel()
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Steps:
    """For networks: a few passes of the objective's own optimizer, from where the part was last. It is inexact.

    Attributes:
        epochs: passes over the part's rows.
        batch_size: rows of a step.
    """

    epochs: int = 1
    batch_size: int = 32

    @property
    def takes_steps(self) -> bool:
        """See ``Solver``."""
        return True

    def solve(self, problem: Problem) -> None:
        """Set the module to what it comes to."""
        own = alone(problem.part, problem.objective.criterion())
        mass = mass_of(own)
        if not mass:
            problem.set(problem.v)  # the minimum of what is left
            return
        # The part's mean loss is what is minimised, and the quadratic is on its scale.
        pull = toward(problem.v, problem.rho * problem.mass / mass)
        local = Local(self.epochs, self.batch_size, problem.round, problem.key, pull)
        local.train(problem.objective, problem.module, own)


def _curvature(problem: Problem, d: Tensor) -> Tensor:
    """The Hessian of ``F / M`` times a direction."""
    parameters = list(problem.parameters.values())
    pieces = [
        piece.view_as(each)
        for piece, each in zip(torch.split(d, [each.numel() for each in parameters]), parameters, strict=True)
    ]
    criterion, found = problem.objective.criterion(), torch.zeros_like(d)
    for batch in batches(alone(problem.part, criterion), ROWS):
        loss = criterion(problem.module(*arguments(batch.inputs)), batch) * batch.weight
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
        along = sum((gradient * piece).sum() for gradient, piece in zip(gradients, pieces, strict=True))
        assert isinstance(along, Tensor)
        products = torch.autograd.grad(along, parameters, allow_unused=True, materialize_grads=True)
        found += torch.cat([each.flatten() for each in products])
    return found / problem.mass
