"""What code does, what functions and objects hold, and whose they are."""

from __future__ import annotations

import dis
import inspect
import sys
from functools import cached_property
from types import CellType, CodeType, FunctionType, MemberDescriptorType

_LIBRARIES = {*sys.stdlib_module_names, "numpy", "py4j", "pyspark", "sparkdl", "torch", "torchmetrics"}
_OF_CLASSES = ("__doc__", "__firstlineno__")  # what their code says of them
_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def globals_of(code: CodeType) -> set[str]:
    """The names of the globals that code reads, that within it too."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(globals_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def steps(code: CodeType) -> str:
    """What code does, with its constants in their places: a docstring is one too, and moves the numbers of others."""
    found = list(dis.get_instructions(code))
    said = {number for number, each in enumerate(found) if each.opname == "STORE_NAME" and each.argval in _OF_CLASSES}
    found = [each for number, each in enumerate(found) if number not in said and number + 1 not in said]
    numbers = {each.offset: number for number, each in enumerate(found)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    done = [
        f"{each.opname} {numbers.get(each.argval) if each.opcode in jumps else _constant(each.argval)}"
        for each in found
    ]
    count = code.co_argcount + code.co_kwonlyargcount
    head = (code.co_varnames[:count], code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _ARGUMENTS)
    return "\n".join([repr(head), *done, getattr(code, "co_exceptiontable", b"").hex()])


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return f"({steps(value)})"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    return f"({', '.join(map(_constant, value))},)" if isinstance(value, tuple) else repr(value)


def content(cell: CellType) -> object:
    """What a variable of the scope around a function has; None while it has nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def attributes(value: object) -> dict[str, object]:
    """The attributes that an object has of its own, by name, without what is cached."""
    kind = type(value)
    slots = [n for each in kind.__mro__ for n, m in vars(each).items() if isinstance(m, MemberDescriptorType)]
    found = {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}
    return {n: found[n] for n in sorted(found) if not isinstance(getattr(kind, n, None), cached_property)}


def module_of(value: object) -> str:
    """The name of the module that has the code; what ``functools.wraps`` says of a function is another's."""
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__", ""))
    return str(getattr(value, "__module__", None) or "builtins")


def of_library(value: object) -> bool:
    """Whether a value's code is of a library that runs the training, or of Python's own."""
    return module_of(value).partition(".")[0] in _LIBRARIES


def of_program(kind: type, module: str) -> bool:
    """Whether a class is of the program that a module is of, and of no package that was installed."""
    file = str(getattr(sys.modules.get(module_of(kind)), "__file__", ""))
    near = module_of(kind).partition(".")[0] == module.partition(".")[0]
    return not of_library(kind) and (near or "-packages" not in file)
