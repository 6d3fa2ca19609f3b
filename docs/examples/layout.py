"""Workers recompute activations in the backward pass, which saves memory, over any layout that keeps whole blocks."""

from dataclasses import dataclass, field
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from sparkdl.cluster.group.world import World
from sparkdl.training.layouts import Layout, Replica
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Recomputed(Layout):
    """Keeps only the inputs of each block, and runs the block's forward pass twice.

    Attributes:
        blocks: names of the model's children that are blocks; default: all children.
        layout: how the model is placed, such as ``Sharded()``.
    """

    blocks: tuple[str, ...] | None = None
    layout: Layout = field(default_factory=Replicated)

    def place(self, objective: Objective, world: World, feed: Feed) -> Replica:
        replica = self.layout.place(objective, world, feed)
        for name, block in replica.module.named_children():
            counts_batches = any(True for _ in block.buffers())  # as BatchNorm does: it would count each batch twice
            if (self.blocks is None or name in self.blocks) and not counts_batches:
                # With use_reentrant=True a strategy would get some gradients in several pieces.
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return replica

    def multiple(self, size: int) -> int:
        return self.layout.multiple(size)

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        self.layout.check(objective, module, workers)
