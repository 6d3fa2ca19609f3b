"""Accessors, constructors, docstrings and stubs follow from declarations of Params."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from pyspark.ml.param import Param
from torch import nn

import sparkdl
from docs.param_stubs import stub_of, with_tables
from sparkdl.ensembles import declarations
from sparkdl.io.fields import Natural
from sparkdl.ml import params
from sparkdl.ml.param_declaration import ConstructedParams, Scope, param, with_default
from sparkdl.ml.param_types import number, to_list, to_string
from sparkdl.ml.params import TrainingParams

ENSEMBLES = (sparkdl.Bagging, sparkdl.Boosting, sparkdl.Stacking, sparkdl.BestOf)
ESTIMATORS = (sparkdl.TorchEstimator, sparkdl.TorchClassifier, sparkdl.TorchRegressor, sparkdl.TorchTuner, *ENSEMBLES)


class Sized(ConstructedParams):
    """Has a size.

    Raises:
        InvalidInput: the size is negative.
    """

    size: Param[int] = param("rows", number(Natural), 3, scope=Scope.GANG)
    name: Param[str | None] = param("its name", to_string, "it")
    parts: Param[list[int]] = param("some of it", to_list, [])
    source: Param[str] = param("its origin", to_string)


class Larger(Sized):
    """Has a larger size."""

    size = with_default(Sized.size, 30)

    def getName(self) -> str:  # noqa: N802 - an accessor of a Param
        return f"large {self.getOrDefault(self.name)}"


class Own(Larger):
    def __init__(self, letters):
        super().__init__(name=letters)


def test_accessors():
    assert Larger().getName() == "large it"
    assert get_type_hints(Sized.getSize) == {"return": int}
    assert Sized.setName.__doc__ == "Set ``name``: its name."
    assert Sized.getName.__qualname__ == "Sized.getName"


def test_signature_shows_defaults_and_types():
    for method in (Sized, Sized().setParams):
        arguments = inspect.signature(method).parameters
        defaults = {"size": 3, "name": "it", "parts": [], "source": None}
        assert {name: argument.default for name, argument in arguments.items()} == defaults
        assert {argument.kind for argument in arguments.values()} == {inspect.Parameter.KEYWORD_ONLY}
        assert (arguments["size"].annotation, arguments["source"].annotation) == (int, str | None)
    assert inspect.signature(Larger).parameters["size"].default == 30
    assert list(inspect.signature(Own).parameters) == ["letters"]


def test_constructor_and_set_params():
    sized = Sized(size=3, name=None, parts=None)
    assert (sized.isSet("size"), sized.isSet("parts"), sized.getOrDefault("name")) == (True, False, None)
    assert sized._input_kwargs == {"size": 3, "name": None, "parts": None}
    assert Own("abc").getName() == "large abc"
    for call, name in ((Sized, r"Sized\(\)"), (sized.setParams, r"Sized.setParams\(\)")):
        for given, meant in (("weight", ""), ("par_ts", "; did you mean 'parts'?"), ("siez", "; did you mean 'size'?")):
            with pytest.raises(TypeError, match=rf"^{name} got an unexpected .* {given!r}{re.escape(meant)}$"):
                call(**{given: 1})
    with pytest.raises(TypeError):
        Sized(3)


def test_docstring_lists_the_params_before_the_errors():
    assert Sized.__doc__ == (
        "Has a size.\n\nArgs:\n    size: rows. Default: 3.\n    name: its name. Default: 'it'.\n"
        "    parts: some of it. Default: [].\n    source: its origin.\n\n"
        "Raises:\n    InvalidInput: the size is negative."
    )
    assert "size: rows. Default: 30." in Larger.__doc__
    assert Own.__doc__ is None


def test_all_public_estimators_are_here():
    public = {getattr(sparkdl, name) for name in sparkdl.__all__}
    assert {*ESTIMATORS} == {kind for kind in public if isinstance(kind, type) and hasattr(kind, "fit")}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_param_is_declared_and_a_documented_argument(kind):
    names, documented = {param.name for param in kind().params}, inspect.getdoc(kind)
    assert names == {*kind.declared()}
    arguments = inspect.signature(kind).parameters.keys()
    assert arguments == names
    assert [name for name in arguments if documented.count(f"\n    {name}: ") != 1] == []


def test_default_losses():
    losses = [inspect.signature(kind).parameters["loss"].default for kind in ESTIMATORS[:3]]
    assert [type(loss) for loss in losses] == [type(None), nn.CrossEntropyLoss, nn.MSELoss]
    sparkdl.TorchClassifier().getLoss().reduction = "sum"
    assert sparkdl.TorchClassifier().getLoss().reduction == "mean"


def test_scalars_and_arrays_of_numpy_become_plain_values():
    values = {
        "batchSize": (np.int32(64), 64),
        "epochs": (torch.tensor(3), 3),
        "learningRate": (np.float32(0.5), 0.5),
        "dropLast": (np.bool_(True), True),
        "checkpointInterval": (np.int16(7), 7),
        "thresholds": (np.array([0.25, 0.5], np.float32), [0.25, 0.5]),
        "classWeights": ([np.float32(0.5), np.int8(2)], [0.5, 2.0]),
    }
    given = {name: value for name, (value, _) in values.items()}
    for estimator in (sparkdl.TorchClassifier(**given), sparkdl.TorchClassifier().setParams(**given)):
        assert [repr(estimator.getOrDefault(name)) for name in values] == [repr(plain) for _, plain in values.values()]


@pytest.mark.parametrize("kind", [sparkdl.TorchEstimator, sparkdl.TorchRegressor])
@pytest.mark.parametrize(("name", "value"), [("numClasses", 3), ("thresholds", [0.5, 0.5]), ("probabilityCol", "p")])
def test_params_of_a_classifier_warn_on_others(kind, name, value):
    for changed in (kind(**{name: value}), (plain := kind()).copy({plain.getParam(name): value})):
        with pytest.warns(UserWarning, match=f"{name}=.* is ignored without a TorchClassifier"):
            changed.warn_of_ignored()


OF_GANGS = "layout backend resourceTimeout collectiveTimeout maxRestarts minWorkers elasticTimeout replicaCheckInterval"
HOW = f"{OF_GANGS} taskCpus taskGpus"
NOT_IN_ROUNDS = f"compile cacheOnDevice syncBatchNorm batchSize dropLast schedulerInterval epochs callbacks {OF_GANGS}"
OF_STEPS = "optimizer learningRate optimizerArgs scheduler maxGradNorm augment channelsLast tf32 microBatches"
SAME_RESULT = f"{HOW} checkpointInterval callbacks trackers allowUnencrypted telemetry logLevel"


@pytest.mark.parametrize(
    ("kind", "scope", "names"),
    [
        (TrainingParams, Scope.GANG, "maxRounds maxSeconds"),
        (TrainingParams, Scope.ROUNDS | Scope.STEPS, NOT_IN_ROUNDS),
        (TrainingParams, Scope.ROUNDS, f"{NOT_IN_ROUNDS} {OF_STEPS}"),
        (TrainingParams, Scope.TASK, f"{OF_GANGS} trackers checkpointInterval runDir maxRounds maxSeconds"),
        (TrainingParams, Scope.RUN, f"{SAME_RESULT} cacheOnDevice epochs numWorkers runDir maxSeconds maxRounds"),
        (TrainingParams, Scope.BASE, f"{SAME_RESULT} runDir"),
        (TrainingParams, Scope.PIPELINE, f"{SAME_RESULT} numWorkers"),
        (sparkdl.Bagging, Scope.MEMBERS, "runDir parallelism disagreementCol numModels voting oobScore"),
        (sparkdl.Boosting, Scope.MEMBERS, "runDir parallelism disagreementCol numModels patience tol"),
        (sparkdl.Stacking, Scope.MEMBERS, "runDir parallelism disagreementCol"),
        (sparkdl.BestOf, Scope.MEMBERS, "runDir parallelism disagreementCol"),
        *((kind, Scope.BASE, "runDir parallelism") for kind in ENSEMBLES[1:]),
        (sparkdl.Bagging, Scope.BASE, "runDir parallelism oobScore"),
        (sparkdl.Bagging, Scope.PARTITIONED, "numModels subsamplingRate bootstrap"),
        *((kind, Scope.PARTITIONED, "") for kind in ENSEMBLES[1:]),
    ],
)
def test_params_outside_a_scope(kind, scope, names):
    assert {*kind.names_outside(scope)} == {*names.split()}


def parsed(text):
    """The imports of a stub in any order, and its other statements."""
    body = [ast.unparse(statement) for statement in ast.parse(text).body]
    imports = {line for line in body if line.startswith(("from ", "import "))}
    return imports, [line for line in body if line not in imports]


@pytest.mark.parametrize("module", [params, declarations], ids=lambda module: module.__name__)
def test_stubs_are_up_to_date(module):
    written = Path(module.__file__).with_suffix(".pyi").read_text()
    assert parsed(written) == parsed(stub_of(module)), "run make stubs"


@pytest.mark.parametrize(("page", "kinds"), [("params", ESTIMATORS[:3]), ("ensembles", ENSEMBLES)])
def test_tables_of_pages_are_up_to_date(page, kinds):
    text = Path(__file__).parents[2].joinpath(f"docs/{page}.md").read_text()
    assert text == with_tables(text), "run make stubs"
    assert all(f"\n| `{name}` | " in text for kind in kinds for name in kind.declared())


def test_table_has_default_use_and_doc():
    text = f"# Page\n\n<!-- params: {__name__}.Sized {__name__}.Larger -->\n\n| old |\n\nMore.\n"
    rows = with_tables(text).splitlines()
    assert rows[:4] == ["# Page", "", f"<!-- params: {__name__}.Sized {__name__}.Larger -->", ""]
    assert rows[4:7] == [
        "| Param | default | used by | meaning |",
        "|---|---|---|---|",
        "| `size` | Sized: `3`; Larger: `30` | gangs | rows |",
    ]
    assert "| `source` | required | all | its origin |" in rows
    assert rows[-2:] == ["", "More."]
