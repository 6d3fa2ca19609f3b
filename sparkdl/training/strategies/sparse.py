"""Sums of sparse gradients, as ``nn.Embedding(sparse=True)`` has: workers exchange the rows that they touched.

    g = sum_i p_i g_i         g_i [V, d] has values in the rows R_i alone that worker i's batch used

Every worker sends the indices and the values of R_i to all others, and adds what it gets in rank order. So all workers
have equal bits. Worker i of n sends (n - 1) |R_i| rows in a step; of a dense table it would send 2 V (n - 1) / n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def sparse_parameters(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[int]:
    """The indices of parameters with sparse gradients: weights of sparse embeddings that no other module shares.

    ``forward()`` may use such a weight only by calling the embedding; the gradient of another use is dense.
    """
    owners = Counter(id(value) for part in module.modules() for value in part.parameters(recurse=False))
    embeddings = [part for part in module.modules() if isinstance(part, _EMBEDDINGS) and part.sparse]
    uses = Counter(id(part.weight) for part in embeddings)
    return [index for index, one in enumerate(parameters) if 0 < uses[id(one)] == owners[id(one)]]


class SparseSum:
    """Sums the sparse gradients of one parameter ``[V, ...]`` over the workers.

    Attributes:
        bytes: the bytes that this worker sent in the last step.
    """

    def __init__(self, parameter: nn.Parameter, group: Group) -> None:
        self._parameter, self._group, self.bytes = parameter, group, 0

    def reduce(self, gradient: Tensor | None, share: float) -> Tensor | None:
        """The sum of all workers' gradients, each times its worker's share; None if no worker has one.

        Raises InvalidInput for a dense gradient.
        """
        rows = torch.empty(0, dtype=torch.int64, device=self._parameter.device)
        values = self._parameter.detach()[:0]
        if gradient is not None:
            if not gradient.is_sparse:
                raise InvalidInput(
                    f"the weight {list(gradient.shape)} of a sparse embedding has a dense gradient: forward() uses the "
                    "weight without the embedding. Set sparse=False."
                )
            gradient = gradient.coalesce()
            rows, values = gradient.indices()[0], gradient.values() * share
        # The first element says whether there is a gradient: a batch without any row of the table may have one.
        message = torch.cat([rows.new_tensor([gradient is not None]), rows])
        self.bytes = (self._group.size - 1) * (message.nbytes + values.nbytes)
        received = self._send(message)
        summands = torch.cat(self._send(values))
        if not bool(torch.stack([part[0] for part in received]).any()):
            return None
        indices = torch.cat([part[1:] for part in received]).unsqueeze(0)
        shape = self._parameter.shape
        return torch.sparse_coo_tensor(indices, summands, shape, check_invariants=False).coalesce()

    def _send(self, rows: Tensor) -> list[Tensor]:
        return self._group.all_to_all_rows([rows] * self._group.size)
