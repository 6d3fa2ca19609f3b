"""Every worker holds the whole model and recomputes activations in the backward pass, which saves memory."""

from dataclasses import dataclass
from functools import partial

from torch.utils.checkpoint import checkpoint

from sparkdl.cluster.group.world import World
from sparkdl.training.layouts import Layout, Replica, Workers
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Recomputed(Layout):
    """Keeps only the inputs of each block, and runs the block's forward pass twice.

    Attributes:
        blocks: names of the model's children that are blocks; default: all children.
    """

    blocks: tuple[str, ...] | None = None

    def place(self, objective: Objective, world: World, feed: Feed) -> Replica:
        module = objective.build(world.device, warn=world.rank == 0)
        replica = ModuleReplica(objective, module, Workers.of(world))
        for name, block in replica.module.named_children():
            counts_batches = any(True for _ in block.buffers())  # as BatchNorm does: it would count each batch twice
            if (self.blocks is None or name in self.blocks) and not counts_batches:
                # With use_reentrant=True a strategy would get some gradients in several pieces.
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return replica
