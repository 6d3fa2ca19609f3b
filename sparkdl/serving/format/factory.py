"""Import paths of classes and functions in saved values, and the ones that loading imports and calls.

Whoever wrote a saved model chose its names and arguments. So loading follows an allow-list: the Param's classes in
``_CLASSES`` and in the program's own imported modules, functions of ``torch.nn.functional``, and the frozen dataclasses
in ``_DATACLASSES``. An import runs code, so no other module is imported. ``Trust`` adds modules that the user names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch.nn import functional

from sparkdl.errors import InvalidInput
from sparkdl.io.moved_modules import present_name
from sparkdl.serving.format.code import of_program

MODULES = "spark.sparkdl.modules"
"""The setting of a session that names trusted modules, separated by commas."""

# Other metrics read files or load models; other dataclasses of sparkdl open files and connections.
_CLASSES = [
    *("torch.nn.modules", "torch.optim", "torchmetrics.aggregation", "torchmetrics.classification"),
    *("torchmetrics.clustering", "torchmetrics.nominal", "torchmetrics.regression", "torchmetrics.retrieval"),
    *("torchmetrics.segmentation", "torchmetrics.wrappers"),
]
_DATACLASSES = [
    *("sparkdl.data.columns", "sparkdl.ensembles.resampling.subspace", "sparkdl.serving.layer_output"),
    *("sparkdl.ml.tracking.mlflow", "sparkdl.ml.tracking.tensorboard", "sparkdl.rounds.algorithms"),
    *("sparkdl.rounds.local_solvers", "sparkdl.rounds.prox", "sparkdl.training.strategies"),
    *("sparkdl.ml.tuning.number_range", "sparkdl.ml.tuning.successive_halving"),
]


@dataclass(frozen=True)
class Trust:
    """What the user trusts in a saved instance.

    Attributes:
        pickles: whether pickled parts are loaded, and any name is imported.
        modules: modules, with their submodules, whose functions and classes are called with the saved arguments.
    """

    pickles: bool = False
    modules: tuple[str, ...] = ()

    @staticmethod
    def of(trust: bool, modules: Sequence[str]) -> Trust:
        """Check the arguments of ``load``; raises ``InvalidInput`` if ``modules`` are no names of modules."""
        names: Sequence[Any] = modules if isinstance(modules, (list, tuple)) else [None]
        plain = all(isinstance(name, str) and all(map(str.isidentifier, name.split("."))) for name in names)
        if not plain or any(map(_of_python, names)):
            raise InvalidInput(
                f"modules is {modules!r}; expected a list of names of modules, as in ['my_nets'], and none of Python's."
            )
        return Trust(trust, tuple(names))

    def __or__(self, other: Trust) -> Trust:
        return Trust(self.pickles or other.pickles, tuple(dict.fromkeys(self.modules + other.modules)))

    def imported(self, path: str, classes: tuple[type, ...], roots: Sequence[str] = _CLASSES) -> Any:
        """Import ``<module>:<name>``: a function, a frozen dataclass, or a subclass of one of ``classes``.

        ``roots`` are the modules whose subclasses need no trust.

        Raises:
            InvalidInput: the name is not trusted, cannot be imported here, or is something else.
        """
        module, _, name = path.partition(":")
        module = present_name(module)
        shown, known = f"{module}.{name}", [*roots, *_DATACLASSES, functional.__name__]
        if _of_python(module) or ".__" in f".{shown}".removeprefix(".__main__"):
            raise InvalidInput(f"a saved value names {shown}; expected nothing of Python's own modules.")
        if not (module in sys.modules or _within(module, known) or self._trusts(module)):
            raise self._untrusted(shown, module)
        try:
            value = find(module, name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(
                f"a saved value names {shown}, which cannot be imported here: {error}. Put its module, and the modules "
                "that it imports, on the Python path, for example with spark-submit --py-files."
            ) from error
        of_param = isinstance(value, type) and issubclass(value, classes)
        if not (of_param or is_frozen(value) or isinstance(value, FunctionType)):
            raise InvalidInput(
                f"a saved value names {shown}, which is {value!r}; expected a function, a frozen dataclass"
                f"{''.join(f', or a subclass of {base.__name__}' for base in classes)}."
            )
        home = str(value.__module__)
        allowed = of_param and (_within(home, roots) or of_program(value))
        allowed |= is_frozen(value) and _within(home, _DATACLASSES)
        allowed |= home == functional.__name__ and vars(functional).get(name) is value
        if not (allowed or self._trusts(home)):
            raise self._untrusted(shown, home)
        return value

    def _trusts(self, module: str) -> bool:
        return self.pickles or _within(module, self.modules)

    def _untrusted(self, name: str, module: str) -> InvalidInput:
        modules = [*self.modules, module]
        return InvalidInput(
            f"a saved value names {name}, and loading calls nothing of {module} unless you trust it. If you trust it "
            f"with any arguments, add modules={modules}, as in load_predictor(path, modules={modules}), or set the "
            f"session's {MODULES} to {','.join(modules)!r}."
        )


NO_TRUST = Trust()


def path_of(value: Any) -> str:
    """Return ``<module>:<name>`` of a class or function; raises ``ImportError``, or others if it has no name."""
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or find(module, name) is not value:
        raise ImportError(f"{module}.{name} cannot be imported by another program")
    return f"{module}:{name}"


def find(module: str, name: str) -> Any:
    """Import a dotted name of a module, without the names of modules in it, whose attributes may import more."""
    value: Any = importlib.import_module(module)
    for number, part in enumerate(name.split(".")):
        if number and not isinstance(value, type):
            raise AttributeError(f"{value!r} is no class")
        value = getattr(value, part) if number else vars(value).get(part)
    return value


def is_frozen(kind: object) -> bool:
    """Whether it is a frozen dataclass outside the standard library."""
    settings: Any = vars(kind).get("__dataclass_params__") if isinstance(kind, type) else None
    return bool(settings and settings.frozen) and not _of_python(kind.__module__)


def _of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _within(module: str, roots: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{root}.") for root in roots)
