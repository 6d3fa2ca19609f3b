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
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def instructions(code: CodeType) -> str:
    """Return the instructions with their constants in place: a docstring shifts the numbers of constants."""
    steps = list(dis.get_instructions(code))
    stored = {number for number, step in enumerate(steps) if step.opname == "STORE_NAME" and step.argval in _OF_CLASSES}
    steps = [step for number, step in enumerate(steps) if number not in stored and number + 1 not in stored]
    numbers = {step.offset: number for number, step in enumerate(steps)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    arguments = [numbers.get(step.argval) if step.opcode in jumps else _constant(step.argval) for step in steps]
    lines = [f"{step.opname} {argument}" for step, argument in zip(steps, arguments, strict=True)]
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
    slots = [n for base in kind.__mro__ for n, m in vars(base).items() if isinstance(m, MemberDescriptorType)]
    values = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return {n: values[n] for n in sorted(values) if not isinstance(getattr(kind, n, None), cached_property)}


def module_parts(module: nn.Module) -> Iterator[Any]:
    """Yield the classes, attributes, buffers and parameters of a module and its submodules."""
    for name, inner in module.named_modules():
        ignored = "_" if of_library(type(inner)) else ()  # a library's caches, such as the flat weights of an RNN
        values = {n: v for n, v in attributes(inner).items() if n not in _OF_MODULES and not n.startswith(ignored)}
        yield name, type(inner), values, dict(inner.named_buffers(recurse=False))  # also buffers outside the state
    yield {name: parameter.requires_grad for name, parameter in module.named_parameters()}
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
