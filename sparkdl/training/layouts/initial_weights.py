"""Initial weights of a replica that no worker holds whole.

The workers build the module without parameters. Then they make one tensor after another, and each worker keeps its
slice of the tensor:

* By default, rank 0 alone calls the factory with parameters, and sends each tensor to all workers. The weights are
  bit-identical to the weights of ``Replicated``. Rank 0 needs memory for the weights once.
* With ``init="modules"``, each worker initialises one module after another by its ``reset_parameters``, under a random
  generator of (seed, number of the module). With a function, the worker calls the function for each module after that.
  No worker ever holds the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.sampler import generator
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slices
from sparkdl.training.layouts.table import check_new_rows, drop_weights, without_rows
from sparkdl.training.objective.module_factory import new_module
from sparkdl.training.objective.objective import Objective
from sparkdl.training.rng import forked

Init = Literal["modules"] | Callable[[nn.Module], object] | None
"""Default: the weights of rank 0's factory; else each module is initialised alone."""

_REMEDY = "Set init to a function that initialises one module, as nn.Module.apply takes it, or leave init out."


@dataclass(frozen=True)
class InitialWeights:
    """A module without parameters, and where its weights come from.

    Attributes:
        world: this worker's world.
        module: the module; its parameters are on the device ``meta``, and its buffers are rank 0's.
        source: the module with parameters, on rank 0 if the weights are its; else None.
        init: which weights.
    """

    world: World
    module: nn.Module
    source: nn.Module | None
    init: Init

    @staticmethod
    def of(objective: Objective, world: World, init: Init) -> InitialWeights:
        """Build the module, all workers at the same place, and its tables without weights.

        Raises:
            InvalidInput: as ``check_init``; or a table has rows already, or its weight is another module's too.
        """
        with without_rows():  # the layout makes the rows
            source = objective.build("cpu", warn=True) if init is None and world.rank == 0 else None
            module = objective.build(world.device, parameters=False)
        for one in (module, source):
            if one is not None:
                check_new_rows(one)
                drop_weights(one)
        check_init(module, objective, init)
        if any(not parameter.is_meta for parameter in module.parameters()):  # the factory needs or has values
            module = new_module(module, parameters=False)
        for parameter in module.parameters():  # without values, and contiguous, as slices are
            parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        sent: dict[int, Tensor] = {}  # a buffer of several modules is sent once, and stays one
        for name, buffer in [*module.named_buffers(remove_duplicate=False)]:
            first = buffer if source is None else source.get_buffer(name)  # each worker has drawn others
            if id(buffer) not in sent:
                sent[id(buffer)] = first.to(world.device)
                world.group().broadcast_(sent[id(buffer)])
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, sent[id(buffer)])
        return InitialWeights(world, module, source, init)

    def deal(self, slices: Slices) -> dict[str, Tensor]:
        """This worker's values of each parameter in ``slices``, by name, on its device; a collective."""
        values = {}
        for name, tensor in self._sent() if self.init is None else self._initialised():
            if name in slices:
                values[name] = tensor[slices[name].index].to(self.world.device, copy=True).contiguous()
        return values

    def fill(self, values: Mapping[str, Tensor]) -> nn.Module:
        """The module with the values that ``deal`` returned, whole ones or slices, and no other parameters."""
        parameters: dict[int, nn.Parameter | None] = {
            id(value): like(values[name], value) if name in values else None
            for name, value in self.module.named_parameters()
        }
        for name, value in [*self.module.named_parameters(remove_duplicate=False)]:
            owner, _, key = name.rpartition(".")
            self.module.get_submodule(owner)._parameters[key] = parameters[id(value)]
        return self.module

    def _sent(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.module.named_parameters():
            tensor = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.world.device)
            if self.source is not None:
                tensor.copy_(self.source.get_parameter(name).detach())
                self.source.get_parameter(name).data = torch.empty(0)  # frees it
            self.world.group().broadcast_(tensor)
            yield name, tensor

    def _initialised(self) -> Iterator[tuple[str, Tensor]]:
        seed = torch.randint(1 << 62, (1,), device=self.world.device)
        self.world.group().broadcast_(seed)
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        for number, (_, part) in enumerate(_owners(self.module)):
            on_meta = dict(part._parameters)
            with forked(self.world.device):
                torch.manual_seed(generator(int(seed), number).initial_seed())
                tensors = _initialise(part, self.init)
            part._parameters.update(on_meta)
            for key, parameter in on_meta.items():
                if parameter is not None and id(parameter) in names:  # a tied one is initialised with its first module
                    yield names.pop(id(parameter)), tensors[key]


def like(tensor: Tensor, parameter: nn.Parameter) -> nn.Parameter:
    """A parameter with the values of a tensor, and with the attributes that users set on another parameter."""
    result = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
    result.__dict__.update(parameter.__dict__)
    return result


def check_init_field(layout: str, init: object) -> None:
    """Raise InvalidInput unless the field ``init`` of a layout has one of the values of ``Init``."""
    if not (init in (None, "modules") or callable(init)):
        raise InvalidInput(f"{layout}.init is {init!r}; expected None, 'modules' or a function of a module.")


def check_init(module: nn.Module, objective: Objective, init: Init) -> None:
    """Raise InvalidInput if ``init`` would not make the weights that the factory makes.

    Args:
        module: the module as the factory returned it; its parameters may be on the device ``meta``.
        objective: the objective.
        init: which weights.
    """
    if init is None:
        return
    if isinstance(objective.model, nn.Module):
        raise InvalidInput(
            "init makes new weights, and model is a module, which has weights. Leave init out, or set model to a "
            "factory, such as the module's class."
        )
    seen: set[int] = set()  # a tied parameter is initialised with its first module
    for name, part in _owners(module) if init == "modules" else ():
        fresh = {key for key, value in _values(part) if id(value) not in seen}
        seen |= {id(value) for _, value in _values(part)}
        kind = f"{name or 'the model'}, a {type(part).__name__},"
        if not hasattr(part, "reset_parameters"):
            raise InvalidInput(f"init is 'modules', and {kind} has parameters and no reset_parameters(). {_REMEDY}")
        before = {key: value._version for key, value in _values(part)}
        if not all(value.is_meta for _, value in _values(part)):
            continue
        part.reset_parameters()
        late = [key for key, value in _values(part) if not before[key] or value._version != 2 * before[key]]
        if late := [key for key in late if key in fresh]:
            raise InvalidInput(
                f"init is 'modules', and {kind} has parameters that the module's reset_parameters() does not write, "
                f"or that the model writes after it: {', '.join(late)}. {_REMEDY}"
            )


def _initialise(part: nn.Module, init: Init) -> dict[str, Tensor]:
    """Initialise the parameters of a module, without its children, on the CPU."""
    for name, value in _values(part):
        data = torch.empty(value.shape, dtype=value.dtype)
        part._parameters[name] = nn.Parameter(data, requires_grad=value.requires_grad)
    if hasattr(part, "reset_parameters"):
        part.reset_parameters()  # type: ignore[operator]
    if callable(init):
        init(part)
    if unset := [name for name, value in _values(part) if not value._version]:
        raise InvalidInput(
            f"init did not write {', '.join(unset)} of a {type(part).__name__}, which has no reset_parameters(); "
            "expected a function that initialises each module that has parameters."
        )
    return {name: value.detach() for name, value in _values(part)}


def _owners(module: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, part) for name, part in module.named_modules() if [*_values(part)])


def _values(part: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, value) for name, value in part._parameters.items() if value is not None]
