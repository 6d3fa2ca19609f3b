"""Parallel SGD: every part trains alone from the same weights, and the weights are averaged.

    w_k  = SGD(w; part k)          ``epochs`` passes over the part's own rows, k = 1 ... K
    w'   = sum_k p_k w_k           p_k = M_k / sum M, what the part's rows weigh; 1 / K with ``weighted=False``

With one round it is SimuParallelSGD: M. Zinkevich, M. Weimer, A. Smola and L. Li, Parallelized stochastic gradient
descent, NIPS 2010, for convex losses. With more, iterated averaging: R. McDonald, K. Hall and G. Mann, Distributed
training strategies for the structured perceptron, NAACL 2010; with deep networks all parts must begin with the same
weights in each round, as they do here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.data.shard import Part
from sparkdl.rounds import Memory, State, Update, add
from sparkdl.rounds.aggregation import average, scalars, weighed
from sparkdl.rounds.evaluate import alone, mass_of
from sparkdl.rounds.hyperparameters import whole
from sparkdl.rounds.local_training import Local
from sparkdl.rounds.parameters import averaged, module_of, start, trainable, weights_of
from sparkdl.training.objective import Objective


@dataclass(frozen=True)
class ParallelSGD:
    """Parallel SGD.

    Attributes:
        rounds: how often weights are averaged; 1 is Zinkevich's form.
        epochs: passes over a part's rows in a round.
        batch_size: rows of a step of one part.
        weighted: a part counts as much as its rows weigh; False for all parts the same.
        shuffle: deal the rows out anew, so that every part represents the whole; False for data that are mixed already.
    """

    rounds: int = 10
    epochs: int = 1
    batch_size: int = 32
    weighted: bool = True
    shuffle: bool = True

    def __post_init__(self) -> None:
        whole(self, rounds=1, epochs=1, batch_size=1)

    @property
    def takes_steps(self) -> bool:
        """See ``Algorithm``."""
        return True

    def init(self, objective: Objective, seed: int) -> State:
        """See ``Algorithm``."""
        weights, _ = start(objective, seed)
        return {"weights": weights, "round": 0, "seed": seed, "loss": None}

    def map(self, objective: Objective, state: State, part: Part, memory: Memory) -> tuple[Update, Memory]:
        """See ``Algorithm``: the part's own training, from the common weights."""
        module = module_of(objective, state["weights"])
        local = Local(self.epochs, self.batch_size, state["round"], (state["seed"], part.index))
        own = alone(part, objective.criterion())
        loss, _ = local.train(objective, module, own)
        mass = mass_of(own)
        share = mass if self.weighted else float(mass > 0)
        # Of what is trained, all: there something that is not finite is to be refused.
        names, found = {*averaged(state["weights"]), *trainable(module)}, weights_of(module)
        sent = {name: tensor for name, tensor in found.items() if name in names}
        return {**weighed(sent, share), **scalars(loss=loss, mass=mass)}, None

    def reduce(self, one: Update, other: Update) -> Update:
        """See ``Algorithm``: sums."""
        return add(one, other)

    def apply(self, state: State, update: Update) -> State:
        """See ``Algorithm``: the average."""
        loss, mass = float(update["loss"]), float(update["mass"])
        weights = average(update, state["weights"])
        return {**state, "weights": weights, "round": state["round"] + 1, "loss": loss / mass}

    def done(self, state: State) -> bool:
        """See ``Algorithm``."""
        return bool(state["round"] >= self.rounds)

    def row(self, state: State) -> dict[str, float | str]:
        """See ``Algorithm``: the mean loss of the parts' last passes, each before its step."""
        return {"loss": state["loss"]}
