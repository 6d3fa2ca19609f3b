"""Writes stubs for modules that declare Params, as generated methods exist only at run time, and tables for pages.

    make stubs

Type checkers and editors read the stub instead of the module. So the module holds only imports and declarations. On a
page, the line ``<!-- params: sparkdl.TorchClassifier ... -->`` precedes a table of the Params of these estimators.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from sparkdl.ml.param_declaration import ConstructedParams, Declared, Scope, ValidatedParams, own_params
from sparkdl.ml.persistence.formatting import format_value

_HEADER = '''# mypy: disable-error-code="assignment,override"
# Params of pyspark.ml's mixins may be None here, and labelCol a list.
"""Generated from ``{name}`` by ``docs.param_stubs``; do not edit."""
'''
_LITERALS = (str, int, float, bool, type(None))
_TABLE = re.compile(r"(<!-- params: (.*) -->\n\n)(?:\|.*\n)*")
_FITS = {
    "gangs": Scope.GANG,
    "rounds": Scope.ROUNDS,
    "rounds with steps": Scope.STEPS,
    "members in tasks": Scope.TASK,
}


def stub_of(module: ModuleType) -> str:
    """Generate the stub of a module whose classes extend ``ValidatedParams``, before ruff formats it.

    Each Param must be annotated as ``Param[type of its values]``.
    """
    tree = ast.parse(inspect.getsource(module))
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    extended = {ast.unparse(base) for node in nodes for base in node.bases}
    lines = [line for node in nodes for line in ("", *_class(node, getattr(module, node.name), extended))]
    imports = [*_imports(tree, "\n".join(lines)), "from typing_extensions import Self"]
    return "\n".join([_HEADER.format(name=module.__name__), *imports, *lines]) + "\n"


def _imports(tree: ast.Module, code: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names = [alias for alias in node.names if re.search(rf"\b{alias.name}\b", f"{code} annotations")]
            if names:
                yield ast.unparse(ast.ImportFrom(node.module, names, node.level))


def _class(node: ast.ClassDef, kind: type[ValidatedParams], extended: set[str]) -> Iterator[str]:
    yield f"class {node.name}({', '.join(map(ast.unparse, node.bases))}):"
    for declared in own_params(kind):
        yield f"    {declared.name}: {_annotation(kind, declared.name)}"
    if issubclass(kind, ConstructedParams) and node.name not in extended:  # an extended class is never constructed
        arguments = ", ".join(_argument(kind, declared) for declared in kind.declared().values())
        for name, returned in (("__init__", "None"), ("setParams", "Self")):
            yield f"    def {name}(self, *, {arguments}) -> {returned}: ..."
    for declared in own_params(kind):
        name, values = f"{declared.name[0].upper()}{declared.name[1:]}", _values(kind, declared.name)
        yield f"    def get{name}(self) -> {values}: ..."
        yield f"    def set{name}(self, value: {values}) -> Self: ..."


def _argument(kind: type[ValidatedParams], declared: Declared) -> str:
    values = _values(kind, declared.name)
    if declared.required:
        return f"{declared.name}: {values} | None = None"
    default = repr(declared.default) if isinstance(declared.default, _LITERALS) else "..."
    return f"{declared.name}: {values} = {default}"


def _values(kind: type[ValidatedParams], name: str) -> str:
    return _annotation(kind, name).removeprefix("Param[").removesuffix("]")


def _annotation(kind: type[ValidatedParams], name: str) -> str:
    (owner, *_) = [place for place in kind.__mro__ if isinstance(vars(place).get(name), Declared)]
    return str(inspect.get_annotations(owner)[name])


def with_tables(page: str) -> str:
    """Replace the tables of Params on a page by those of the declarations."""
    return _TABLE.sub(lambda match: match[1] + _table([*map(resolve_name, match[2].split())]), page)


def _table(kinds: list[type[ValidatedParams]]) -> str:
    declared: dict[tuple[str, str], dict[str, Declared]] = {}
    for kind in kinds:
        for name, found in kind.declared().items():
            declared.setdefault((name, found.doc), {})[kind.__name__] = found
    head = "| Param | default | used by | meaning |\n|---|---|---|---|\n"
    return head + "".join(_row(*names, among, len(kinds)) for names, among in declared.items())


def _row(name: str, doc: str, among: dict[str, Declared], kinds: int) -> str:
    defaults: dict[str, list[str]] = {}
    for kind, found in among.items():
        defaults.setdefault(_default(found), []).append(kind)
    only = next(iter(defaults)) if len(defaults) == 1 else None
    shown = only or "; ".join(f"{', '.join(owners)}: {default}" for default, owners in defaults.items())
    users = ", ".join(f"`{kind}`" for kind in among) if len(among) < kinds else _fits(next(iter(among.values())).scope)
    return f"| `{name}` | {shown} | {users} | {doc.replace('|', chr(92) + '|')} |\n"


def _default(declared: Declared) -> str:
    if declared.required:
        return "required"
    value = declared.default
    if is_dataclass(value) and not isinstance(value, type) and value == type(value)():
        return f"`{type(value).__name__}()`"
    return f"`{repr(value) if isinstance(value, str) else format_value(value)}`"


def _fits(scope: Scope) -> str:
    used = [fit for fit, flag in _FITS.items() if scope & flag]
    if len(used) == len(_FITS):
        return "all"
    return ", ".join(fit for fit in used if fit != "rounds with steps" or "rounds" not in used)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if argument.endswith(".md"):
            Path(argument).write_text(with_tables(Path(argument).read_text(encoding="utf-8")), encoding="utf-8")
            continue
        module = importlib.import_module(argument)
        assert module.__file__ is not None
        Path(module.__file__).with_suffix(".pyi").write_text(stub_of(module), encoding="utf-8")
