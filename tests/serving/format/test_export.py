"""Programs compute the same for any batch; a forged archive runs nothing when it is loaded."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.serving.format.export import Program, examples, export, load
from sparkdl.serving.format.export_check import Archive, _expression, _odd_strings, _operator


class Mixed(nn.Module):
    """Two inputs, batch statistics, a buffer that is not saved, a constant, a block without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.table = nn.Linear(3, 4), nn.Embedding(5, 4)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout()
        self.register_buffer("steps", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = x.mean() + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return self.dropout(self.norm(self.numbers(x))) + self.table(kind) * self.steps + shift


class Layers(nn.Module):
    """Convolution, recurrence and attention; the batch is reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = nn.Conv2d(1, 2, 3), nn.LSTM(8, 4, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.conv(x.reshape(-1, 1, 8, 8)).flatten(1).sum(1, keepdim=True)
        return image + self.attention(self.lstm(x.reshape(x.shape[0], 8, 8))[0]).mean((1, 2)).unsqueeze(1)


class Choosy(nn.Linear):
    """Branches on numbers in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


class Exporting(nn.Linear):
    """Returns another dtype to the exporter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).double() if torch.compiler.is_exporting() else super().forward(x)


class Sized(nn.Linear):
    """Treats batches of some sizes in another way; torch traces with more than one row."""

    def __init__(self, rule: Callable[[int], bool], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(3, 1)
        self.rule, self.change = rule, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(super().forward(x)) if self.rule(x.shape[0]) else super().forward(x)


MIXED = [([3], "float32"), ([], "int64")]
X = examples([([3], "float32")])


@pytest.fixture(scope="module")
def archive() -> bytes:
    torch.manual_seed(1)
    return export(Mixed(), examples(MIXED))


@pytest.mark.parametrize(
    ("net", "signature", "dtype"), [(Mixed, MIXED, "float32"), (Layers, [([64], "float64")], "float64")]
)
def test_program_computes_the_same_for_any_batch(net: Any, signature: Any, dtype: str) -> None:
    module = net().to(getattr(torch, dtype))
    packed = export(module, examples(signature))
    assert module.training
    assert Archive.read(packed).unsafe_entries() == []
    loaded = load(packed)
    assert len(loaded(*examples(signature, 0))) == 0
    for rows in (1, 2, 7):
        inputs = examples(signature, rows)
        torch.testing.assert_close(loaded(*inputs), module.eval()(*inputs))
        assert loaded(*inputs).dtype == getattr(torch, dtype)
    torch.testing.assert_close(torch.export.load(io.BytesIO(packed)).module()(*inputs), loaded(*inputs))


def test_program_trains_copies_pickles_and_exports_as_a_module(archive: bytes) -> None:
    loaded, inputs = load(archive), examples(MIXED, 5)
    before = loaded(*inputs).detach()
    assert not loaded.training
    torch.testing.assert_close(loaded.train()(*inputs), before)  # still in evaluation mode
    assert loaded.training
    assert not loaded.eval().training
    with torch.inference_mode():
        torch.testing.assert_close(loaded(*inputs), before)
    loaded(*inputs).sum().backward()
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.sub_(0.1 * parameter.grad)
    after = loaded(*inputs)
    assert not torch.allclose(after, before)
    for again in (copy.deepcopy(loaded), cloudpickle.loads(pickle.dumps(loaded)), load(export(loaded, inputs))):
        torch.testing.assert_close(again(*inputs), after)
    torch.testing.assert_close(load(archive)(*inputs), before)


def test_program_is_a_factory_whose_repr_identifies_it(archive: bytes) -> None:
    other = export(Mixed(), examples(MIXED))
    assert repr(Program(archive)) == repr(cloudpickle.loads(pickle.dumps(Program(archive))))
    assert repr(Program(archive)) != repr(Program(other))
    assert len(repr(Program(archive))) < 100
    torch.testing.assert_close(Program(archive)()(*examples(MIXED)), load(archive)(*examples(MIXED)))


@pytest.mark.parametrize(
    ("module", "inputs", "why"),
    [
        (Choosy(3, 1), X, "Choosy cannot be exported: "),
        (Exporting(3, 1), X, "Exporting cannot be exported: .*torch.float64 != torch.float32"),
        (Sized(lambda rows: rows == 1, lambda y: y * 7), X, "Sized cannot be exported: on 1 rows its outputs differ"),
        (Sized(lambda rows: rows < 2, lambda y: y + 0.01), X, "on 1 rows its outputs differ"),
        (Sized(lambda rows: not 1 // rows, lambda y: y * 2), X, "Sized cannot be exported: "),
        (Sized(lambda rows: rows == 33, lambda y: -y), X, "Sized cannot be exported: "),
        (nn.Linear(4, 1), X, "Linear cannot be exported: "),
        (nn.Linear(3, 1), (X[0][:1],), "at least 2 rows"),
        (nn.Linear(3, 1), (), "at least 2 rows"),
    ],
)
def test_failed_export_raises_with_its_reason(module: nn.Module, inputs: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        export(module, inputs)
    assert module.training


# ---- forged archives -------------------------------------------------------------------------------------------------

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Marks:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def rewritten(archive: bytes, changes: dict[str, Any]) -> bytes:
    """The archive with changed files: bytes, None to delete a file, or a function that changes its JSON."""
    with zipfile.ZipFile(io.BytesIO(archive)) as stored:
        files = {name.partition("/")[2]: stored.read(name) for name in stored.namelist()}
    for name, change in changes.items():
        if callable(change):
            content = json.loads(files[name])
            change(content)
            files[name] = json.dumps(content).encode()
        else:
            files[name] = change
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as written:
        for name, data in files.items():
            if data is not None:
                written.writestr(f"archive/{name}", data)
    return packed.getvalue()


def graph(program: Any) -> Any:
    return program["graph_module"]["graph"]


def payload(**changes: Any) -> Callable[[Any], None]:
    """Change the first entry of a configuration to a pickle."""
    return lambda config: next(iter(config["config"].values())).update(use_pickle=True, **changes)


def forgeries(marker: Path) -> dict[str, dict[str, Any]]:
    """By name the changes to an archive that would create ``marker`` when torch loads it."""
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"

    def size(program: Any) -> Any:
        graph(program)["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}

    stream = io.BytesIO()
    torch.save({"numbers.weight": Marks(marker)}, stream)
    evil = stream.getvalue()
    custom, opaque = (payload(path_name=f"{kind}_obj_0", tensor_meta=None) for kind in ("custom", "opaque"))
    return {
        "expression": {MODEL: size},
        "weight": {WEIGHTS: payload(), "data/weights/weight_0": evil},
        "constant": {CONSTANTS: payload(), "data/constants/tensor_0": evil},
        "custom object": {CONSTANTS: custom, "data/constants/custom_obj_0": evil},
        "opaque object": {CONSTANTS: opaque, "data/constants/opaque_obj_0": pickle.dumps(Marks(marker))},
        "old weights": {"data/weights/model.pt": evil},
        "examples": {"data/sample_inputs/model.pt": evil},
        "compiled": {"data/aotinductor/model/model.so": b"ELF"},
        "second model": {"models/other.json": b"{}"},
    }


@pytest.mark.parametrize("name", forgeries(Path("marker")))
def test_forged_archive_raises_and_runs_nothing(archive: bytes, name: str, tmp_path: Path) -> None:
    forged = rewritten(archive, forgeries(tmp_path / "marker")[name])
    with pytest.raises(InvalidInput, match=r"can run code .*trust=True if you know who made it"):
        load(forged)
    assert not (tmp_path / "marker").exists()
    if name in ("weight", "examples", "expression"):
        with contextlib.suppress(InvalidInput):  # they are no program once their code has run
            load(forged, trust=True)
        assert (tmp_path / "marker").exists()


ENUM = json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "exit()"}])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(("target", "torch.os.system"), ("as_operator", "torch.os.system"), ("expr_str", "exit()")),
        *(("name", "x = exit() #"), ("forward_arg_names", "x=exit()"), ("parameter_name", 'x", exit(), "')),
        ("out_spec", json.dumps([1, {"type": "builtins.dict", "context": ENUM, "children_spec": []}])),
    ],
)
def test_strings_that_torch_would_run_are_found_anywhere(key: str, text: str) -> None:
    inner = {"as_graph": {"graph": {"nodes": [{"inputs": [{key: [text]}]}]}}}
    assert [odd.split()[0] for odd in _odd_strings({"graph_module": [{key: text}, inner]})] == [key, key]


def test_guards_and_metadata_are_ignored(archive: bytes, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        program["guards_code"] = [f"__import__('pathlib').Path({str(tmp_path / 'marker')!r}).touch() or True"]
        graph(program)["nodes"][-1]["metadata"]["from_node"] = "[1"

    forged = rewritten(archive, {MODEL: change, "extra/notes": b"none"})
    assert Archive.read(forged).unsafe_entries() == []
    load(forged)(*examples(MIXED))
    assert not (tmp_path / "marker").exists()


def test_repeated_file_raises(archive: bytes) -> None:
    packed = io.BytesIO(archive)
    with zipfile.ZipFile(packed, "a") as written, pytest.warns(UserWarning, match="Duplicate name"):
        written.writestr(f"archive/{MODEL}", zipfile.ZipFile(packed).read(f"archive/{MODEL}"))
    with pytest.raises(InvalidInput, match=f"{MODEL} .*more than once"):
        load(packed.getvalue())


def test_damaged_archive_raises(archive: bytes) -> None:
    damaged = [rewritten(archive, {MODEL: data}) for data in (None, b"{", b"[]", b"{}")]
    damaged += [rewritten(archive, {WEIGHTS: data}) for data in (b"[]", b'{"config": {"x": 1}}')]
    damaged += [rewritten(archive, {"data/weights/weight_0": data}) for data in (None, b"1234")]
    damaged += [b"", b"no zip", archive[:-100], archive[: len(archive) // 2], archive.replace(b"graph", b"grasp", 1)]
    for data in damaged:
        with pytest.raises(InvalidInput, match="the program"):
            load(data)


OPERATORS = [
    *("torch.ops.aten.add.Tensor", "torch.ops.aten.gelu.default", "torch.ops.aten.sym_size.int", "_operator.mul"),
    *("torch.ops.aten.__and__.Tensor", "torch.sym_max", "math.trunc"),
]
NO_OPERATORS = [
    *("torch.os.system", "torch.load", "torch.hub.load", "_operator.methodcaller", "_operator.attrgetter"),
    *("torch.ops.load_library", "torch.ops.aten.from_file.default", "torch.ops.aten.save.default"),
    *("torch.ops.aten.__init__.__globals__", "torch.ops.aten.add", "torch.ops.aten.gone.default", "#x:y", ""),
    *("torch.ops.higher_order.cond", "builtins.eval", "torch.ops.aten.add.Tensor\n"),
]
EXPRESSIONS = [
    *("s0", "2*s0 + 1", "s0//2", "-s0", "s0 < 5", "Eq(s0, 1)", "Integer(3)", "Float('1.5', precision=53)"),
    *("Symbol('s77', positive=True, integer=True)", "Min(Integer(4), Mul(Integer(4), Symbol('u0')))"),
]
NO_EXPRESSIONS = [
    *("__import__('os')", "s0.__class__", "(lambda: 1)()", "[1]", "s0 if s1 else s2", "exec('1')", "s0\n+1", ""),
    *("Symbol('a b')", "Symbol('s0', **x)", "f(s0)", "S('x')", "sympify('1')", "'%s' % s0 .x", "9**9**9", "x; y"),
    *("Symbol(*s0)", "().__class__", "s0 and s1", "Mul(s0)(1)", "1j", "s0 @ s1", "Symbol('é')"),
]


def test_operators_and_expressions() -> None:
    assert list(filter(_operator, OPERATORS + NO_OPERATORS)) == OPERATORS
    assert list(filter(_expression, EXPRESSIONS + NO_EXPRESSIONS)) == EXPRESSIONS
