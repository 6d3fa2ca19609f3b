"""Stages of a model: modules that run one after the other, with one tensor between two.

An ``nn.Sequential`` is cut between its children. Of any other model, ``torch.fx`` traces ``forward()`` down to the
modules at which stages begin. What ``forward()`` computes between two modules belongs to the stage before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import fx, nn
from torch.fx.passes.split_module import split_module

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput

_REMEDY = "Set split to modules that forward() calls in order with one tensor between two, or make an nn.Sequential."


def stages_of(module: nn.Module, firsts: Sequence[str]) -> list[nn.Module]:
    """The stages of a model, which share its modules.

    Args:
        module: the model; its parameters may be on the device ``meta``.
        firsts: names of the modules at which the second stage and all later ones begin.

    Raises:
        InvalidInput: the model cannot be cut there, or two stages share a parameter.
    """
    in_order = is_sequence(module) and {*firsts} <= module._modules.keys()
    stages = _of_sequence(module, firsts) if in_order else _traced(module, firsts)
    owners: dict[int, set[int]] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            owners.setdefault(id(parameter), set()).add(number)
    names = {id(value): name for name, value in module.named_parameters()}
    if shared := [names[one] for one, numbers in owners.items() if len(numbers) > 1]:
        raise InvalidInput(f"the stages share {listed(shared)}; expected tied weights in one stage. {_REMEDY}")
    if missing := [name for one, name in names.items() if one not in owners]:
        raise InvalidInput(f"no stage calls the modules of {listed(missing)}. {_REMEDY}")
    for number, stage in enumerate(stages):
        if not any(parameter.requires_grad for parameter in stage.parameters()):
            raise InvalidInput(f"stage {number} has no trained parameter. {_REMEDY}")
    return stages


def is_sequence(module: nn.Module) -> bool:
    """Whether a model runs its children one after the other, and nothing else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of a sequence, each as often as it runs."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _of_sequence(module: nn.Module, firsts: Sequence[str]) -> list[nn.Module]:
    stages: list[OrderedDict[str, nn.Module]] = [OrderedDict()]
    left = [*firsts]
    for name, child in children(module):
        if left and name == left[0]:
            stages.append(OrderedDict())
            left.pop(0)
        stages[-1][name] = child
    if left or not all(stages):
        raise InvalidInput(f"split is {[*firsts]}; expected names of children in their order, without the first one.")
    return [nn.Sequential(stage) for stage in stages]


class _Tracer(fx.Tracer):
    """Traces into the modules that contain the first module of a stage."""

    def __init__(self, firsts: Sequence[str]) -> None:
        super().__init__()
        self._firsts = firsts

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(first.startswith(f"{module_qualified_name}.") for first in self._firsts)


def _traced(module: nn.Module, firsts: Sequence[str]) -> list[nn.Module]:
    modes, training = [], module.training
    for mode in (False, True):
        try:
            modes.append(_Tracer(firsts).trace(module.train(mode)))
        except Exception as error:
            raise InvalidInput(f"forward() cannot be traced: {type(error).__name__}: {error}. {_REMEDY}") from error
        finally:
            module.train(training)
    graph = modes[1]
    places = [node for node in graph.nodes if node.op == "placeholder"]
    if any(node.args for node in places):
        raise InvalidInput(f"forward() has optional arguments. {_REMEDY}")
    if str(modes[0]) != str(graph):
        raise InvalidInput(f"forward() computes something else in training, outside of its modules. {_REMEDY}")
    if used := [str(node.target) for node in graph.nodes if node.op == "get_attr"]:
        raise InvalidInput(f"forward() uses {listed(used)} outside of the modules that it calls. {_REMEDY}")
    numbers, number, left = {}, 0, [*firsts]
    for node in graph.nodes:
        if left and node.op == "call_module" and node.target == left[0]:
            number += 1
            left.pop(0)
        numbers[node.name] = number
    if left:
        raise InvalidInput(f"forward() does not call {left[0]} after the modules before it. {_REMEDY}")
    parts = split_module(fx.GraphModule(module, graph), module, lambda node: numbers[node.name])
    return _in_order(parts)


def _in_order(parts: fx.GraphModule) -> list[nn.Module]:
    calls: list[Any] = [node for node in parts.graph.nodes if node.op == "call_module"]
    (output,) = (node for node in parts.graph.nodes if node.op == "output")
    if calls[0].args != tuple(node for node in parts.graph.nodes if node.op == "placeholder"):
        raise InvalidInput(f"the first stage does not use the inputs in their order. {_REMEDY}")
    for before, call in zip(calls, [*calls[1:], output], strict=True):
        if call.args != (before,) or call.kwargs:
            raise InvalidInput(f"{call.name} does not get one tensor, the result of the stage before it. {_REMEDY}")
    return [parts.get_submodule(str(call.target)) for call in calls]
