"""A trained module, and the facts and Params that scoring needs; without pyspark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from sparkdl.data.batch import DTYPES
from sparkdl.data.columns import Columns, InputColumn, check_one_length, described, listed
from sparkdl.data.transforms import AssembledInputs
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.io.weights_file import Weights, WeightsFile
from sparkdl.serving.format.architecture import load_architecture
from sparkdl.serving.format.export import Program, Signature, examples, export
from sparkdl.serving.format.saved_folder import SavedFolder
from sparkdl.serving.layer_output import LayerModule, LayerOutput
from sparkdl.serving.outputs import Outputs
from sparkdl.serving.scorer import Scorer, restored
from sparkdl.training.layouts.table import tables_of, without_rows
from sparkdl.training.objective.labels import IGNORED
from sparkdl.training.objective.module_factory import ModelFactory, new_module
from sparkdl.training.objective.objective import OutputKind
from sparkdl.training.objective.probe import check_output

_EXPORTED = 2 << 30  # bytes of an export
_FIELDS = ("kind", "precision", "output", "probabilities")


@dataclass(frozen=True)
class TrainedModule:
    """A trained module. ``TorchModel`` describes the attributes; ``weights`` are safetensors bytes, or a file."""

    factory: ModelFactory | nn.Module
    weights: Weights = field(repr=False)
    kind: OutputKind = "estimator"
    precision: str = "fp32"
    output: list[int] | None = None
    probabilities: bool = False
    signature: Signature | None = None
    ignored: int | None = IGNORED

    @classmethod
    def load(cls, saved: SavedFolder) -> TrainedModule:
        """Load the files and fields of a saved ``TorchModel``; raises as ``load_architecture`` does."""
        factory, weights = load_architecture(saved)
        saved_signature = saved.fields["signature"]
        signature = saved_signature and [(list(shape), str(dtype)) for shape, dtype in saved_signature]
        values = {name: saved.fields[name] for name in _FIELDS}
        # Models of earlier versions lack the field.
        return cls(factory, weights, signature=signature, ignored=saved.fields.get("ignored", IGNORED), **values)

    def fields(self) -> dict[str, Any]:
        """The JSON values that ``load`` reads."""
        return {name: getattr(self, name) for name in (*_FIELDS, "signature", "ignored")}

    @property
    def scalar(self) -> bool:
        """Whether the output of a row is one number."""
        return self.output in ([], [1])

    @property
    def dims(self) -> int:
        """The dimensions of a row's tokens or pixels, for each of which a classifier predicts a class; else 0."""
        return max(len(self.output or ()) - 1, 0) if self.kind == "classifier" else 0

    @property
    def num_outputs(self) -> int | None:
        """The number of a classifier's classes, or of its labels; None if the output's shape is unknown."""
        if self.output is None:
            return None
        return 2 if self.kind == "classifier" and self.scalar else self.output[0]

    @property
    def floating(self) -> str:
        """The dtype's name of floating-point inputs."""
        return "float64" if self.precision == "fp64" else "float32"

    def module(self, tables: str = "whole") -> nn.Module:
        """A new module with the trained weights, on the CPU, in evaluation mode; ``TorchModel.module`` says more."""
        if tables not in ("whole", "mapped"):
            raise InvalidInput(f"tables is {tables!r}; expected 'whole' or 'mapped'.")
        return restored(self.factory, self.weights, self.precision, mapped=tables == "mapped")

    @property
    def parameters(self) -> int:
        """The number of parameters; rows of large tables count, and their files are not read."""
        if not (isinstance(self.weights, WeightsFile) and self.weights.tables):
            return sum(parameter.numel() for parameter in self.module().parameters())
        with without_rows():
            module = new_module(self.factory, parameters=False)
        rows = sum(table.num_embeddings * table.embedding_dim for table in tables_of(module).values())
        return rows + sum(parameter.numel() for parameter in module.parameters())

    def program(self, columns: Sequence[InputColumn] = ()) -> bytes:
        """The archive of a torch.export program; raises ``InvalidInput`` if the module cannot be exported."""
        if isinstance(self.weights, WeightsFile) and self.weights.tables and self.weights.total > _EXPORTED:
            raise InvalidInput(
                f"the model cannot be exported: its tables and weights have {self.weights.total / 1e9:.3g} GB, and an "
                "export has at most 2 GB. Export the layers behind the tables, and look vectors up by model.table()."
            )
        if isinstance(self.factory, Program) and not self.weights:
            return self.factory.archive
        if self.signature is None:
            if ragged := [column.name for column in columns if column.ragged]:
                raise InvalidInput(
                    f"the model cannot be exported: the rows of {listed(ragged)} have several lengths, and an export "
                    "takes one shape. Train it on rows of one length, padded in the DataFrame or by collate."
                )
            raise InvalidInput(
                "the model cannot be exported: the shapes and types of its inputs are not known. Expected a model that "
                "was trained, or TorchModel(signature=...)."
            )
        return export(self.module(), examples(self.signature))

    def layer(self, name: str) -> TrainedModule:
        """The same weights with the output of one layer; the names of the weights get a prefix.

        Raises:
            InvalidInput: there is no such layer, or its output is no tensor ``[B, ...]``.
        """
        module, output = LayerModule(self.module(), name).eval(), None
        if self.signature is not None:
            example = examples(self.signature)
            with torch.inference_mode():
                result = module(*example)
            check_output(result, len(example[0]), "estimator")
            output = list(result.shape[1:])
        factory = LayerOutput(self.factory, name)
        return TrainedModule(factory, pack(module), "estimator", self.precision, output, signature=self.signature)

    def scorer(self, params: Mapping[str, Any]) -> Scorer:
        """The scorer of a model with these ``params``, the values of ``OutputParams`` by name."""
        # A description of a label is for training only.
        specs = [column for column in params["columnSpecs"] if column.name in params["inputCols"]]
        inputs = described(params["inputCols"], specs)
        if self.dims:
            check_one_length(inputs)
        assembled = bool(params["assembleInputs"])
        collate = AssembledInputs.around(params["collate"], assembled=assembled, floating=self.floating)
        free = not collate and not any(column.ragged or column.decode for column in inputs)
        dtypes = [dtype if dtype in DTYPES else None for _, dtype in self.signature or []]
        if free and len(dtypes) == len(inputs):  # columns of other types are converted
            pairs = zip(inputs, dtypes, strict=True)
            inputs = tuple(replace(column, dtype=column.dtype or dtype) for column, dtype in pairs)
        columns = Columns(inputs, floating=self.floating)
        thresholds = params["thresholds"]
        outputs = Outputs(
            self.kind,
            None if thresholds is None else tuple(thresholds),
            scalar=self.scalar,
            vectors=bool(params["rawPredictionCol"] or params["probabilityCol"]),
            probabilities=self.probabilities,
            dims=self.dims,
        )
        device = params.get("device", "cpu")
        factory, weights, precision = self.factory, self.weights, self.precision
        return Scorer(factory, weights, outputs, precision, columns, collate, device, self.signature)


def output_names(params: Mapping[str, Any]) -> dict[str, str]:
    """The names of the output columns by those of ``Scorer``, the prediction first; "" omits a column."""
    names = {"prediction": "predictionCol", "probability": "probabilityCol", "raw": "rawPredictionCol"}
    return {name: params[param] for name, param in names.items()}
