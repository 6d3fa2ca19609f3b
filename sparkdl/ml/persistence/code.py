"""The parts of functions, objects and modules, and the library that their code belongs to."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from functools import cached_property
from types import CellType, CodeType, FunctionType, MemberDescriptorType
from typing import Any

from torch import nn

_LIBRARIES = {*sys.stdlib_module_names, "numpy", "py4j", "pyspark", "sparkdl", "torch", "torchmetrics"}
_OF_CLASSES = ("__doc__", "__firstlineno__")  # a class body stores its docstring and its line under these names
_OF_MODULES = {*vars(nn.Module())}
_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def globals_of(code: CodeType) -> set[str]:
    """Return the names of the globals that code reads, nested functions included."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(globals_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def instructions(code: CodeType) -> str:
    """Return the instructions with their constants in place: a docstring shifts the numbers of constants."""
    found = list(dis.get_instructions(code))
    stored = {number for number, each in enumerate(found) if each.opname == "STORE_NAME" and each.argval in _OF_CLASSES}
    found = [each for number, each in enumerate(found) if number not in stored and number + 1 not in stored]
    numbers = {each.offset: number for number, each in enumerate(found)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    lines = [
        f"{each.opname} {numbers.get(each.argval) if each.opcode in jumps else _constant(each.argval)}"
        for each in found
    ]
    count = code.co_argcount + code.co_kwonlyargcount
    head = (code.co_varnames[:count], code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _ARGUMENTS)
    return "\n".join([repr(head), *lines, getattr(code, "co_exceptiontable", b"").hex()])


def content(cell: CellType) -> object:
    """Return the value of a closure's variable; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def attributes(value: object) -> dict[str, object]:
    """Return an object's own attributes by name, slots included, without cached properties."""
    kind = type(value)
    slots = [n for each in kind.__mro__ for n, m in vars(each).items() if isinstance(m, MemberDescriptorType)]
    found = {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}
    return {n: found[n] for n in sorted(found) if not isinstance(getattr(kind, n, None), cached_property)}


def module_parts(module: nn.Module) -> Iterator[Any]:
    """Yield the classes, attributes, buffers and parameters of a module and its submodules."""
    for name, each in module.named_modules():
        passed = "_" if of_library(type(each)) else ()  # a library's caches, such as the flat weights of an RNN
        own = {n: v for n, v in attributes(each).items() if n not in _OF_MODULES and not n.startswith(passed)}
        yield name, type(each), own, dict(each.named_buffers(recurse=False))  # also buffers outside the state
    yield {name: each.requires_grad for name, each in module.named_parameters()}
    yield module.state_dict()


def module_of(value: object) -> str:
    """Return the name of the module that holds the code; ``functools.wraps`` gives a function another's name."""
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__", ""))
    return str(getattr(value, "__module__", None) or "builtins")


def of_library(value: object) -> bool:
    """Return whether a function or class belongs to Python or to a library that runs the training."""
    return module_of(value).partition(".")[0] in _LIBRARIES


def of_program(kind: type, module: str = "") -> bool:
    """Return whether a class belongs to the program of a module, and not to an installed package."""
    file = str(getattr(sys.modules.get(module_of(kind)), "__file__", ""))
    near = module_of(kind).partition(".")[0] == module.partition(".")[0]
    return not of_library(kind) and (near or "-packages" not in file)


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return f"({instructions(value)})"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    return f"({', '.join(map(_constant, value))},)" if isinstance(value, tuple) else repr(value)
