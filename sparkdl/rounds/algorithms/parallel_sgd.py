"""Parallel SGD: every shard trains from the same weights, then the weights are averaged.

    w_k  = SGD(w; shard k)         ``epochs`` passes over the shard's rows, k = 1 ... K
    w'   = sum_k p_k w_k           p_k = M_k / sum M, M_k the shard's denominator; 1 / K with ``weighted=False``

With one round it is SimuParallelSGD: M. Zinkevich, M. Weimer, A. Smola and L. Li, Parallelized stochastic gradient
descent, NIPS 2010, for convex losses. With several rounds it is iterated averaging: R. McDonald, K. Hall and G. Mann,
Distributed training strategies for the structured perceptron, NAACL 2010. Deep networks need the same start on all
shards in each round, which this algorithm provides.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.data.shard import Shard
from sparkdl.io.fields import CheckedFields, Count
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import average, scalars, scaled
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_training import LocalTraining
from sparkdl.rounds.parameters import averaged, module_of, start, trainable, weights_of
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class ParallelSGD(CheckedFields):
    """Parallel SGD.

    Attributes:
        rounds: number of averagings; 1 is Zinkevich's form.
        epochs: passes over a shard's rows per round.
        shard_batch_size: rows of a step of one shard.
        weighted: weight shards by the denominator of their rows; False weights all shards equally.
        shuffle: redistribute the rows, so that every shard represents the whole; False for data in random order.
    """

    rounds: Count = 10
    epochs: Count = 1
    shard_batch_size: Count = 32
    weighted: bool = True
    shuffle: bool = True

    uses_optimizer = True
    reduce = staticmethod(add)

    def init(self, objective: Objective, seed: int) -> State:
        """The initial weights."""
        weights, _ = start(objective, seed)
        return {"weights": weights, "round": 0, "seed": seed, "loss": None}

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        """Train on the shard from the common weights."""
        module = module_of(objective, state["weights"])
        local = LocalTraining(self.epochs, self.shard_batch_size, state["round"], (state["seed"], shard.index))
        shard = as_only_shard(shard, objective.criterion())
        loss, _ = local.train(objective, module, shard)
        denominator = shard.denominator()
        share = denominator if self.weighted else float(denominator > 0)
        # Trainable parameters are always sent, so that the loop detects values that are not finite.
        names, weights = {*averaged(state["weights"]), *trainable(module)}, weights_of(module)
        sent = {name: tensor for name, tensor in weights.items() if name in names}
        return {**scaled(sent, share), **scalars(loss=loss, denominator=denominator)}, None

    def apply(self, state: State, update: Update) -> State:
        """Average the weights."""
        loss, denominator = float(update["loss"]), float(update["denominator"])
        weights = average(update, state["weights"])
        return {**state, "weights": weights, "round": state["round"] + 1, "loss": loss / denominator}

    def converged(self, state: State) -> bool:
        """Whether all rounds are done."""
        return bool(state["round"] >= self.rounds)

    def metrics(self, state: State) -> dict[str, float | str]:
        """``loss``: mean loss of the shards' last epochs, each batch before its step."""
        return {"loss": state["loss"]}
