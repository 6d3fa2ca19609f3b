"""Checks torch.export archives before torch reads them.

torch's loader trusts an archive: it unpickles payloads, runs any operator by attribute path, evaluates expressions with
sympy, and generates Python from the graph's names. So an archive may hold only the files of ``torch.export.save``, no
pickle, and no string that could be code. torch then reads a copy with the checked content only.
"""

from __future__ import annotations

import io
import json
import keyword
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.errors import InvalidInput

_MODEL = "models/model.json"
_CONFIGS = {
    "data/weights/model_weights_config.json": ("data/weights/", re.compile(r"weight_\d+")),
    "data/constants/model_constants_config.json": ("data/constants/", re.compile(r"tensor_\d+")),
}
_PLAIN = re.compile(
    r"models/model\.json|data/(weights/(weight_\d+|model_weights_config\.json)|"
    r"constants/(tensor_\d+|model_constants_config\.json))|archive_format|archive_version|byteorder|"
    r"\.data/\w+|\.format_version|\.storage_alignment"
)
_EXAMPLES = "data/sample_inputs/model.pt"

_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)", re.ASCII)
_OPERATOR = re.compile(
    r"_operator\.(abs|add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|not_|or_|pos|pow|sub|truediv)|"
    r"math\.(ceil|floor|sqrt|trunc)|torch\.(sym_(float|int|ite|max|min|not|sum)|_sym_sqrt)|"
    r"torch\.ops\.higher_order\.wrap_with_(autocast|set_grad_enabled)"  # these run a graph of the program itself
)
_CALL = re.compile(
    r"\b(Symbol|Integer|Float|Rational|Add|Mul|Pow|Min|Max|Mod|And|Or|Not|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|"
    r"StrictLessThan|LessThan|StrictGreaterThan|GreaterThan|floor|ceiling|Abs|FloorDiv|ModularIndexing|Where|"
    r"PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow|FloatTrueDiv|IntTrueDiv|"
    r"TruncToFloat|TruncToInt|RoundToInt|RoundDecimal|ToFloat|Identity|IsNonOverlappingAndDenseIndicator)\("
)
_ARITHMETIC = re.compile(
    r"([A-Za-z]\w*\b|\d+(\.\d+)?(e[+-]?\d+)?(?![\w.])|'([A-Za-z]\w*|-?\d+(\.\d*)?(e[+-]?\d+)?)'|[-+*/%<>=,() ])+",
    re.ASCII,
)
# Other calls, powers, unpacked arguments, dunders, prefixed or adjacent strings.
_NO_ARITHMETIC = re.compile(r"[\w')] *\(|[*(,] *\*|__|['\w] *'[\w-]|' *'")
_NAME = r"([^\W\d]\w*)?"
_STRUCTURE = {
    "key": re.compile(r"type|context|children_spec"),
    "type": re.compile(r"builtins\.(tuple|list|dict)"),
    "context": re.compile(rf'null|\[("{_NAME}"(, )?)*\]'),
}


@dataclass(frozen=True)
class Archive:
    """The files of an archive by their names below its root."""

    files: dict[str, bytes]
    repeated: tuple[str, ...]

    @staticmethod
    def read(archive: bytes) -> Archive:
        """Read an archive; raises ``InvalidInput`` if it is none, or is damaged."""
        try:
            with zipfile.ZipFile(io.BytesIO(archive)) as stored:
                entries = [entry for entry in stored.infolist() if not entry.is_dir()]
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                    raise zipfile.BadZipFile("it is compressed")
                names = [entry.filename.partition("/")[2] for entry in entries]
                files = {name: stored.read(entry) for name, entry in zip(names, entries, strict=True)}
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
            raise InvalidInput(f"the program's archive is damaged: {error}") from error
        return Archive(files, tuple(sorted({name for name in names if names.count(name) > 1})))

    def unsafe_entries(self) -> list[str]:
        """The contents that could run code when torch loads them; empty for a harmless program."""
        unsafe = [f"{name} occurs more than once" for name in self.repeated]
        for name, data in self.files.items():
            if not _PLAIN.fullmatch(name) and not name.startswith("extra/") and (data or name != _EXAMPLES):
                unsafe.append(f"{name} is a pickle, compiled code or another model")
        for name in _CONFIGS:
            unsafe += self._unsafe_payloads(name)
        unsafe += [f"{_MODEL} has the {entry}" for entry in _odd_strings(self._program())]
        return list(dict.fromkeys(unsafe))

    def sanitized(self) -> bytes:
        """Write a new archive with only the content that ``unsafe_entries`` checks."""
        checked = {name: data for name, data in self.files.items() if _PLAIN.fullmatch(name) or name == _EXAMPLES}
        checked |= {name: json.dumps(self._json(name)).encode() for name in _CONFIGS}
        checked[_MODEL] = json.dumps(self._program()).encode()
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as archive:
            for name, data in checked.items():
                archive.writestr(f"archive/{name}", data)
        return written.getvalue()

    def _program(self) -> Any:
        program = self._json(_MODEL, lambda item: item | {"metadata": {}} if "metadata" in item else item)
        try:
            module = program["graph_module"]
            module["module_call_graph"] = module["module_call_graph"][:1]
            module["treespec_namedtuple_fields"] = {}
            program["guards_code"] = []
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"the program's archive is damaged: {_MODEL} has no {error}.") from error
        return program

    def _unsafe_payloads(self, name: str) -> Iterator[str]:
        folder, allowed = _CONFIGS[name]
        config = self._json(name)
        payloads = config.get("config") if isinstance(config, dict) else None
        if not isinstance(payloads, dict) or not all(isinstance(meta, dict) for meta in payloads.values()):
            raise InvalidInput(f"the program's archive is damaged: {name} lists no tensors.")
        for key, meta in payloads.items():
            path = str(meta.get("path_name"))
            if meta.get("use_pickle") is not False or not allowed.fullmatch(path):
                yield f"{folder}{path} ({key}) is pickled"
        yield from (f"{name} has the {entry}" for entry in _odd_strings(config))

    def _json(self, name: str, change: Callable[[dict[str, Any]], Any] | None = None) -> Any:
        if name not in self.files:
            raise InvalidInput(f"the program's archive has no {name}; expected one that torch.export wrote.")
        try:
            return json.loads(self.files[name], object_hook=change)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the program's archive is damaged: {name}: {error}") from error


def _odd_strings(value: Any) -> Iterator[str]:
    for key, text in _strings(value):
        if key not in _CHECKS or not _CHECKS[key](text):
            yield f"{key} {text if len(text) < 100 else text[:100] + '...'!r}"


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    for inner in value if isinstance(value, list) else ():
        yield from _strings(inner, key)
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield "key", name
        yield from _strings(inner, name)


def _operator(target: str) -> bool:
    """Whether a target is an operator of ATen's dispatcher that accesses no files, or of plain arithmetic."""
    if (names := _ATEN.fullmatch(target)) is None:
        return bool(_OPERATOR.fullmatch(target))
    operator: Any = getattr(getattr(torch.ops.aten, names[1], None), names[2], None)
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    arguments = {argument.name for argument in operator._schema.arguments}
    return torch._C._dispatch_has_kernel(operator.name()) and "filename" not in arguments  # type: ignore[no-untyped-call]


def _expression(text: str) -> bool:
    """Whether a symbolic expression is plain arithmetic: torch lets sympy evaluate it as Python."""
    bare = _CALL.sub("(", text)
    words = re.findall(r"[A-Za-z]\w*", bare)
    plain = _ARITHMETIC.fullmatch(bare) and not _NO_ARITHMETIC.search(bare)
    return bool(plain) and not any(keyword.iskeyword(word) and word not in ("True", "False") for word in words)


def _structure(text: str) -> bool:
    """Whether inputs or outputs are nested tuples, lists and dicts: for other types, torch imports their classes."""
    try:
        protocol, spec = json.loads(text)
        return protocol == 1 and all(
            key in _STRUCTURE and _STRUCTURE[key].fullmatch(part) for key, part in _strings(spec)
        )
    except (ValueError, TypeError, RecursionError):
        return False


_PATHS = "key parameter_name buffer_name tensor_constant_name user_input_name fqn path_name"
_CHECKS: dict[str, Callable[[str], object]] = {
    "target": _operator,
    "expr_str": _expression,
    **dict.fromkeys(("in_spec", "out_spec"), _structure),
    **dict.fromkeys(("name", "as_name", "type", "forward_arg_names", "verifiers"), re.compile(_NAME).fullmatch),
    **dict.fromkeys(_PATHS.split(), re.compile(r"[\w./ -]*").fullmatch),
    **dict.fromkeys(("as_string", "as_strings"), lambda _: True),  # an argument, stored as its repr
    **dict.fromkeys(("as_float", "as_floats", "real", "imag"), re.compile(r"-?Infinity|NaN").fullmatch),
    "torch_version": re.compile(r"(?a:[\w.+<=-]*)").fullmatch,
}
"""The check of a string by its key, or the key of its list; other keys may not hold strings."""
