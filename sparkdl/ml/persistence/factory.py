"""Import paths of model factories, and of other classes and functions in saved values."""

from __future__ import annotations

import importlib
import sys
from types import FunctionType
from typing import Any

from sparkdl.errors import InvalidInput

_FOREIGN = sys.stdlib_module_names | {
    *("sparkdl", "_yaml", "cloudpickle", "fsspec", "functorch", "jsonargparse", "numpy", "pandas", "pip", "psutil"),
    *("py4j", "pyarrow", "pyspark", "safetensors", "setuptools", "sympy", "torch", "torchgen", "torchmetrics", "tqdm"),
    *("yaml", "_plotly_utils", "_pytest", "coverage", "docutils", "furo", "IPython", "ipykernel", "jinja2", "joblib"),
    *("jupyter_client", "lightning_fabric", "lightning_utilities", "localbucket", "markdown_it", "matplotlib"),
    *("mlflow", "mpl_toolkits", "mypy", "mypyc", "myst_parser", "nbclient", "nbformat", "onnx", "onnx_ir"),
    *("onnxruntime", "onnxscript", "plotly", "py", "pylab", "pytest", "pytest_timeout", "requests", "ruff"),
    *("scipy", "sklearn", "sphinx", "tensorboard"),
}
"""sparkdl and packages of its setup.cfg, some of whose functions run code or unpickle their arguments."""


def path_of(value: Any) -> str:
    """Return ``<module>:<name>`` of a class or function.

    Raises:
        ImportError: another program cannot import it by this name. Other errors if it has no name.
    """
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or find(module, name) is not value:
        raise ImportError(f"{module}.{name} cannot be imported by another program")
    return f"{module}:{name}"


def imported(path: str) -> Any:
    """Import ``<module>:<name>``.

    Raises:
        InvalidInput: it cannot be imported here, or its module is Python's own.
    """
    module, _, name = path.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names or ".__" in f".{name}":
        raise InvalidInput(f"a saved value names {module}.{name}; expected nothing of Python's own modules.")
    try:
        return find(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"a saved value names {module}.{name}, which cannot be imported here: {error}. Put its module, and the "
            "modules that it imports, on the Python path, for example with spark-submit --py-files."
        ) from error


def find(module: str, name: str) -> Any:
    """Import a dotted name of a module."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def callable_by_name(value: object, classes: tuple[type, ...]) -> bool:
    """Whether a saved name may refer to a value: loading calls it, so a forged name must not reach ``os.system``.

    Allowed are subclasses of ``classes``, and functions of modules that are not installed with sparkdl.
    """
    if isinstance(value, type):
        return issubclass(value, classes)
    module = (value.__module__ if isinstance(value, FunctionType) else None) or "builtins"
    return module == "torch.nn.functional" or module.partition(".")[0] not in _FOREIGN
