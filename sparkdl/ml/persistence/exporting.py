"""Models as torch.export programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.export import Program, examples, export

if TYPE_CHECKING:
    from sparkdl.ml.model import TorchModel


def as_program(model: TorchModel) -> bytes:
    """The model as the archive of a torch.export program.

    Raises:
        InvalidInput: it cannot be exported.
    """
    if isinstance(model._factory, Program) and not model._weights:
        return model._factory.archive
    if model._signature is None:
        raise InvalidInput(
            "the model cannot be exported: the shapes and types of its inputs are not known. Expected a model that "
            "was trained, or TorchModel(signature=...)."
        )
    return export(model.module(), examples(model._signature))
