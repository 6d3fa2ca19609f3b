"""Makes modules from a user's factory, with parameters or without their values.

A module without parameters has each parameter on torch's device ``meta``: a shape and a dtype, no memory. Its buffers
have their values, also those that are not persistent, and tied parameters stay tied.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from sparkdl.errors import InvalidInput

ModelFactory = Callable[[], nn.Module]
_HAS_VALUES: ContextVar[bool] = ContextVar("has values", default=True)

logger = logging.getLogger(__name__)


def new_module(factory: ModelFactory | nn.Module, *, parameters: bool = True) -> nn.Module:
    """A new module of a factory, or a copy of a module.

    With ``parameters=False`` the parameters have no values. If the factory then fails, or uses them for other objects
    than its modules, the module is made with them, and a debug line says so.

    Raises:
        InvalidInput: the factory returned no module.
    """
    if parameters:
        return _checked(copy.deepcopy(factory) if isinstance(factory, nn.Module) else factory())
    if isinstance(factory, nn.Module):
        return copy.deepcopy(factory, {id(value): _on_meta(value) for value in factory.parameters()})
    try:
        with without_parameters() as originals:
            module = _checked(factory())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        computed = [name for name, buffer in module.named_buffers() if buffer.is_meta]
        computed += [name for part in module.modules() for name, value in vars(part).items() if _on_device_meta(value)]
        if not computed and not any(reference() is not None for reference in originals):
            return module
        reason = f"it uses its parameters for {computed or 'other objects'}"
    logger.debug("the factory is called again, with parameters: %s", reason)
    return new_module(factory)


@contextmanager
def without_parameters() -> Iterator[list[weakref.ref[nn.Parameter]]]:
    """In the block, a parameter moves to the device ``meta`` when a module of this thread registers it.

    Yields references to the parameters with values: one that is alive after the block is used elsewhere.
    """
    thread = threading.get_ident()
    known: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}  # so that tied parameters stay tied
    originals: list[weakref.ref[nn.Parameter]] = []

    def register(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if parameter.is_meta or threading.get_ident() != thread:
            return None
        if id(parameter) not in known or known[id(parameter)][0]() is not parameter:  # it may be freed meanwhile
            originals.append(weakref.ref(parameter))
            known[id(parameter)] = originals[-1], _on_meta(parameter)
        return known[id(parameter)][1]

    handle = register_module_parameter_registration_hook(register)  # type: ignore[arg-type]
    token = _HAS_VALUES.set(False)
    try:
        with warnings.catch_warnings():
            # A factory may load a file: that changes nothing here.
            warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter")
            yield originals
    finally:
        _HAS_VALUES.reset(token)
        handle.remove()


def has_values() -> bool:
    """Whether parameters that are made now keep their values."""
    return _HAS_VALUES.get()


def _on_device_meta(value: object) -> bool:
    """Whether a value, or an item of it, is computed from parameters without values."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(one, Tensor) and one.is_meta and not isinstance(one, nn.Parameter) for one in items)


def _on_meta(parameter: nn.Parameter) -> nn.Parameter:
    if is_lazy(parameter):
        return parameter
    empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    empty.__dict__.update(parameter.__dict__)  # attributes that users set, such as an optimizer's groups
    return empty


def _checked(module: object) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"the factory returned {type(module).__name__}; expected a torch.nn.Module.")
    return module
