"""The output of one layer of a module, such as an embedding, in place of the module's own output."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.training.objective.loss import shapes
from sparkdl.training.objective.module_factory import ModelFactory, new_module

# Each thread has its own list, so that threads may share a module.
_OUTPUTS: ContextVar[list[Any] | None] = ContextVar("outputs of the layer", default=None)


def _keep_output(_module: nn.Module, _inputs: Any, output: Any) -> None:
    if (outputs := _OUTPUTS.get()) is not None:  # a copy, since the next layer may change its input in place
        outputs.append(output.clone() if isinstance(output, Tensor) else output)


class LayerModule(nn.Module):
    """Returns the output of a module's layer, by its dotted name; raises ``InvalidInput`` if there is none."""

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        layers = dict(module.named_modules())
        if not layer or layer not in layers:
            raise InvalidInput(f"there is no layer {layer!r}; the model has {listed([*filter(None, layers)])}.")
        self.module, self._layer = module, layer
        layers[layer].register_forward_hook(_keep_output)

    def forward(self, *inputs: Any) -> Tensor:
        """The layer's output; of several calls, the last one's."""
        outputs: list[Any] = []
        token = _OUTPUTS.set(outputs)
        try:
            self.module(*inputs)
        finally:
            _OUTPUTS.reset(token)
        if not outputs:
            raise InvalidInput(
                f"forward() does not call the layer {self._layer!r}; expected one that it calls. A model that was "
                "saved as a torch.export program has no layers: save it with a factory that can be imported."
            )
        output = outputs[-1]
        if not isinstance(output, Tensor):
            raise InvalidInput(f"the layer {self._layer!r} returned {shapes(output)}; expected one tensor [B, ...].")
        return output


@dataclass(frozen=True)
class LayerOutput:
    """Factory of a ``LayerModule``, from a model factory or a module."""

    factory: ModelFactory | nn.Module
    layer: str

    def __call__(self) -> LayerModule:
        """Make the module; raises as ``LayerModule`` does."""
        return LayerModule(new_module(self.factory), self.layer)
