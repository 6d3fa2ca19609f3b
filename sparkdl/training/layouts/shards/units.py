"""Units of a sharded model: the modules whose parameters the workers gather together.

A worker gathers one unit for its forward pass and again for its backward pass, so that besides its slices it holds the
largest unit, not the model. Parameters in no unit form the root unit, which stays gathered during the whole pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput

LARGE = 1_000_000
"""A module with more parameters is a unit, also outside of ``nn.ModuleList`` and ``nn.Sequential``."""


def units_of(module: nn.Module, units: Sequence[str | type[nn.Module]] | None) -> list[list[nn.Module]]:
    """The units of a model, inner ones first, each a list of modules.

    Args:
        module: the model; its parameters may be on the device ``meta``.
        units: classes, or names of modules, in which ``*`` is any text without a dot. By default, the children of each
            ``nn.ModuleList`` and ``nn.Sequential`` are units, and other modules with more than a million parameters.
            A child with more than half of the model's parameters is divided further, if possible.

    Returns:
        Each unit has one module, or several that share parameters.

    Raises:
        InvalidInput: one of ``units`` is no module of the model, or one with no parameters.
    """
    chosen = _default(module, _size(module) // 2) if units is None else _chosen(module, units)
    groups = [[part] for part in {id(part): part for part in chosen}.values()]
    while sharing := _sharing(module, groups):
        groups = _merged(groups, sharing)
    return _inner_first(groups)


def _inner_first(groups: list[list[nn.Module]]) -> list[list[nn.Module]]:
    inside = [{*part.modules()} for group in groups for part in group]
    counts = {id(part): sum(part in modules for modules in inside) for group in groups for part in group}
    # A module within another unit's module is in more of them.
    return sorted(groups, key=lambda group: -max(counts[id(part)] for part in group))


def _sharing(module: nn.Module, groups: Sequence[list[nn.Module]]) -> set[int]:
    """The numbers of groups that share a parameter, -1 for the root; empty if no parameter is in several groups."""
    numbers = {id(part): number for number, group in enumerate(groups) for part in group}
    holders: dict[int, set[int]] = {}

    def visit(part: nn.Module, number: int) -> None:
        number = numbers.get(id(part), number)
        for parameter in part.parameters(recurse=False):
            holders.setdefault(id(parameter), set()).add(number)
        for child in part.children():
            visit(child, number)

    visit(module, -1)
    return next((sharing for sharing in holders.values() if len(sharing) > 1), set())


def _merged(groups: list[list[nn.Module]], sharing: set[int]) -> list[list[nn.Module]]:
    """The groups after those of ``sharing`` became one, or the inner ones a part of the outer one, or of the root."""
    others = [group for number, group in enumerate(groups) if number not in sharing]
    shared = [part for number in sorted(sharing - {-1}) for part in groups[number]]
    outer = [part for part in shared if not any(part in {*one.modules()} for one in shared if one is not part)]
    return others if -1 in sharing else [*others, outer]


def _default(module: nn.Module, half: int) -> Iterator[nn.Module]:
    if isinstance(module, nn.MultiheadAttention):  # it reads its projection's weights, and never calls it
        return
    in_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    for child in module.children():
        divided, size = [*_default(child, half)], _size(child) * _is_called(child)
        if size and (in_list or size > LARGE) and not (divided and size > half):
            yield child
        else:
            yield from divided


def _chosen(module: nn.Module, units: Sequence[str | type[nn.Module]]) -> Iterator[nn.Module]:
    inner = {child for part in module.modules() if isinstance(part, nn.MultiheadAttention) for child in part.children()}
    parts = [(name, part) for name, part in module.named_modules() if name and _size(part) and _is_called(part)]
    parts = [(name, part) for name, part in parts if part not in inner]
    for unit in units:
        if isinstance(unit, str):
            matches = [part for name, part in parts if has_name(name, unit)]
        else:
            matches = [part for _, part in parts if isinstance(part, unit)]
        if not matches:
            kinds = {type(part).__name__ for _, part in parts}
            raise InvalidInput(
                f"units has {unit if isinstance(unit, str) else unit.__name__}, and the model has no such module with "
                f"parameters; it has {listed([name for name, _ in parts])}, of the classes {listed(sorted(kinds))}."
            )
        yield from matches


def has_name(name: str, pattern: str) -> bool:
    """Whether the name of a module, such as ``"layers.0.linear1"``, has a pattern, such as ``"layers.*.linear*"``."""
    levels, patterns = name.split("."), pattern.split(".")
    return len(levels) == len(patterns) and all(map(fnmatchcase, levels, patterns))


def _is_called(module: nn.Module) -> bool:
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
