"""Plans of tensor parallelism: which layers of a model are cut over partners, and how.

A plan maps names of modules, in which ``*`` is any text without a dot, to one of

* ``"columns"``: each partner has some of the outputs of an ``nn.Linear``, or of the numbers of an ``nn.Embedding``;
* ``"rows"``: each partner has some of the inputs of an ``nn.Linear``, or of the entries of an ``nn.Embedding``;
* ``"batch"``: each partner runs any module, with all its weights, on some of the rows, as for the convolutions of A.
  Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014.

A pair, ``"columns"`` and later ``"rows"`` among the children of one module, exchanges one sum forward and one backward.
The outputs of ``"columns"`` without a pair are gathered, and the inputs of ``"rows"`` without a pair are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.shards.units import has_name
from sparkdl.training.layouts.slice_checks import keeps_statistics

Plan = Mapping[str, str] | Callable[[nn.Module], Mapping[str, str]]
"""Names to kinds, or a function of the model that returns such a mapping."""

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh),
    *(nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Identity),
    *(nn.Dropout, nn.AlphaDropout),
)
"""Modules that treat each number alone, and have no weights."""

KINDS = ("columns", "rows", "batch")


@dataclass(frozen=True)
class PlannedLayer:
    """A layer of a plan.

    Attributes:
        name: the module's name.
        kind: one of ``KINDS``.
        paired: whether a layer of ``"columns"`` is followed by a layer of ``"rows"``.
    """

    name: str
    kind: str
    paired: bool = False


def mlp_plan() -> Plan:
    """Consecutive pairs of linear layers in each ``nn.Sequential``."""
    return _pairs_in_sequences


def transformer_plan() -> Plan:
    """The feed-forward part of each ``nn.TransformerEncoderLayer``; its packed attention cannot be cut."""
    return _feed_forward


def attention_plan(query: str = "q", key: str = "k", value: str = "v", output: str = "o") -> Plan:
    """Modules with separate linear layers of these names for query, key, value and output.

    The module's ``forward()`` must count heads by a view with ``-1``, since each partner has some of the heads.
    """
    return _Attention((query, key, value), output)


def planned_layers(module: nn.Module, plan: Plan, size: int) -> list[PlannedLayer]:
    """The layers of a plan, in the order of ``module.named_modules()``.

    Raises:
        InvalidInput: an entry names nothing, has another kind, or a module of another class; a layer is within another
            one; or ``size`` does not divide the numbers of a layer.
    """
    entries = plan(module) if callable(plan) else plan
    parts = {name: part for name, part in module.named_modules() if name}
    kinds: dict[str, str] = {}
    for pattern, kind in entries.items():
        names = [name for name in parts if has_name(name, pattern)]
        if kind not in KINDS or not names:
            raise InvalidInput(
                f"plan has {pattern!r}: {kind!r}; expected the name of a module, and one of {', '.join(KINDS)}. The "
                f"model has the modules {listed([*parts])}."
            )
        kinds |= dict.fromkeys(names, kind)
    if not kinds:
        raise InvalidInput("plan names no layer of the model; expected at least one, or layout=Replicated().")
    for name, kind in kinds.items():
        _check_layer(name, parts[name], kind, size)
        if inner := [one for one in kinds if one.startswith(f"{name}.")]:
            raise InvalidInput(f"plan has {name} and {inner[0]}, which is within it; expected one of them.")
    for name, part in module.named_modules():
        if isinstance(part, nn.Sequential):
            _check_between(part, f"{name}." if name else "", kinds)
    rows = [name for name in parts if kinds.get(name) == "rows"]
    order = {name: number for number, name in enumerate(parts)}
    return [
        PlannedLayer(name, kinds[name], any(_parent(name) == _parent(one) and order[name] < order[one] for one in rows))
        for name in parts
        if name in kinds
    ]


def _check_layer(name: str, part: nn.Module, kind: str, size: int) -> None:
    if kind == "batch":
        if any(keeps_statistics(one) for one in part.modules()):
            raise InvalidInput(
                f"plan has {name}: 'batch', with batch normalisation, which needs all rows; leave it out."
            )
        return
    plain = [one for one in (nn.Linear, nn.Embedding) if isinstance(part, one) and type(part).forward is one.forward]
    if not plain:
        raise InvalidInput(
            f"plan has {name}: {kind!r}, which is a {type(part).__name__}; expected an nn.Linear or nn.Embedding, or "
            "'batch'."
        )
    numbers = part.get_parameter("weight").shape[(kind == "rows") != (plain[0] is nn.Embedding)]
    if isinstance(part, nn.Embedding) and (part.max_norm is not None or part.scale_grad_by_freq):
        raise InvalidInput(f"plan has {name}, an nn.Embedding with max_norm or scale_grad_by_freq; leave it out.")
    if numbers % size:
        raise InvalidInput(f"plan has {name}: {kind!r}, with {numbers} of them; expected a multiple of size={size}.")


def _check_between(sequence: nn.Sequential, prefix: str, kinds: Mapping[str, str]) -> None:
    """Raise InvalidInput if a module between "columns" and "rows" needs all numbers, or has weights for each."""
    first, between = "", list[str]()
    for key, child in sequence._modules.items():
        kind = kinds.get(f"{prefix}{key}")
        if kind == "rows" and first and between:
            raise InvalidInput(
                f"plan has {first}: 'columns' and {prefix}{key}: 'rows', and between them {', '.join(between)}, which "
                "does not treat each number alone; expected activations and dropout."
            )
        if kind in ("columns", "rows"):
            first, between = f"{prefix}{key}" if kind == "columns" else "", []
        elif not isinstance(child, ELEMENTWISE):
            between.append(f"{prefix}{key}")


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _pairs_in_sequences(module: nn.Module) -> dict[str, str]:
    plan: dict[str, str] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.Sequential):
            prefix = f"{name}." if name else ""
            first = None  # a linear layer, and after it modules of single numbers alone
            for key, child in part._modules.items():
                if isinstance(child, nn.Linear):
                    plan |= {first: "columns", f"{prefix}{key}": "rows"} if first else {}
                    first = None if first else f"{prefix}{key}"
                elif not isinstance(child, ELEMENTWISE):
                    first = None
    return plan


def _feed_forward(module: nn.Module) -> dict[str, str]:
    plan: dict[str, str] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            prefix = f"{name}." if name else ""
            plan |= {f"{prefix}linear1": "columns", f"{prefix}linear2": "rows"}
    return plan


@dataclass(frozen=True)
class _Attention:
    inputs: tuple[str, ...]
    output: str

    def __call__(self, module: nn.Module) -> dict[str, str]:
        plan: dict[str, str] = {}
        for name, part in module.named_modules():
            children, prefix = dict(part.named_children()), f"{name}." if name else ""
            if all(isinstance(children.get(key), nn.Linear) for key in (*self.inputs, self.output)):
                plan |= {f"{prefix}{key}": "columns" for key in self.inputs} | {f"{prefix}{self.output}": "rows"}
        return plan
