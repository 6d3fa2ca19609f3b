"""Gradient descent in rounds: every shard sends the sum of its rows' gradients, and the driver takes the step.

w' = w - lr * sum_k G_k / sum_k M_k        G_k: sum of the gradients of shard k, M_k: what its rows weigh
"""

from dataclasses import dataclass

from sparkdl.data.shard import Shard
from sparkdl.rounds import Algorithm, Memory, State, Update, add
from sparkdl.rounds.aggregation import scalars
from sparkdl.rounds.evaluate import evaluate
from sparkdl.rounds.parameters import flatten, gradient_of, module_of, start, trainable, unflatten
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class GradientDescent(Algorithm):
    lr: float
    rounds: int

    @property
    def uses_optimizer(self) -> bool:
        return False  # the objective's optimizer is not used

    def init(self, objective: Objective, seed: int) -> State:
        weights, names = start(objective, seed)
        return {"weights": weights, "names": names, "round": 0, "loss": None}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        module = module_of(objective, state["weights"])
        loss, denominator = evaluate(objective, module, shard)
        return {"gradient": gradient_of(trainable(module)), **scalars(loss=loss, denominator=denominator)}, None

    def reduce(self, left: Update, right: Update) -> Update:
        return add(left, right)

    def apply(self, state: State, update: Update) -> State:
        weights, names = state["weights"], state["names"]
        after = flatten(weights, names) - self.lr * update["gradient"] / update["denominator"]
        loss = float(update["loss"] / update["denominator"])
        return {**state, "weights": unflatten(after, weights, names), "round": state["round"] + 1, "loss": loss}

    def converged(self, state: State) -> bool:
        return bool(state["round"] >= self.rounds)

    def metrics(self, state: State) -> dict[str, float | str]:
        return {"loss": state["loss"]}
