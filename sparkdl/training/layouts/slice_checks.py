"""Checks of layouts whose workers hold slices of one replica, or tables, before the launch and again on the workers."""

from __future__ import annotations

from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.table import check_owners, state_sizes, tables_of
from sparkdl.training.objective.objective import Objective
from sparkdl.training.objective.optimizers import check_elementwise

_REASONS = {
    "precision": "fp16 scales the loss by the gradients of whole models; expected 'bf16'",
    "compile": "the compiler takes whole models alone; expected None",
    "channelsLast": "a slice is contiguous; expected False",
}


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a module normalises by statistics of a batch, or keeps them."""
    kinds = nn.modules.batchnorm._BatchNorm, nn.modules.batchnorm._NormBase
    return isinstance(module, kinds[0]) or (isinstance(module, kinds[1]) and module.track_running_stats)


def check_settings(layout: Layout, objective: Objective) -> None:
    """Raise InvalidInput if the objective has a setting that only whole models take."""
    values = {
        "precision": "fp16" if objective.precision == "fp16" else None,
        "compile": objective.compile,
        "channelsLast": objective.channels_last or None,
    }
    for setting, value in values.items():
        if value is not None:
            problem = f"layout is {type(layout).__name__}, and {setting} is {value!r}"
            raise InvalidInput(f"{problem}: {_REASONS[setting]}, or layout=Replicated().")


def check_slices(layout: Layout, objective: Objective, module: nn.Module) -> None:
    """Raise InvalidInput unless workers can train slices of the module's parameters."""
    check_settings(layout, objective)
    sparse = [
        name
        for name, part in module.named_modules()
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse
    ]
    if sparse:
        raise InvalidInput(
            f"layout is {type(layout).__name__}, whose workers exchange dense gradients, and {', '.join(sparse)} has "
            "sparse gradients; expected sparse=False, or layout=Replicated()."
        )
    check_elementwise(objective.optimizer, [name for name, value in module.named_parameters() if value.requires_grad])


def check_tables(objective: Objective, module: nn.Module) -> None:
    """Raise InvalidInput if a gang cannot train the module's tables."""
    tables = tables_of(module)
    for name, table in tables.items():
        state_sizes(table, name)
    check_owners(module)
    settings = {"precision='fp16'": objective.precision == "fp16", "compile": objective.compile is not None}
    if tables and (refused := [setting for setting, there in settings.items() if there]):
        raise InvalidInput(
            f"the model has a Table, {', '.join(tables)}, and {refused[0]} is set; expected no fp16 and no compile."
        )


def check_no_tables(layout: Layout, module: nn.Module) -> None:
    """Raise InvalidInput if the module has a table, whose rows the layout would not train."""
    if tables := tables_of(module):
        raise InvalidInput(
            f"layout is {type(layout).__name__}, and the model has a Table, {', '.join(tables)}; expected "
            "Replicated() or Sharded(), with which tables lie on all workers."
        )
