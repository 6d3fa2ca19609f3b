"""Executes the notebooks of ``examples/``, and writes them in place with their outputs.

    python -m tests.notebooks.executing [NOTEBOOK ...]        default: all, as `make notebooks` does

A notebook runs in a kernel of this Python, in an empty folder, without the user's kernels or profile. It finds data
sets by SPARKDL_DATA, which names the tests' folder here. Its outputs are
those of Python alone: JVMs and executors write into a log, which a failed cell shows. Progress bars are text, and keep
their last state.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError
from nbformat import NotebookNode

from tests.class_archive import share_classes
from tests.notebooks.driver_jvm import DriverJvm
from tests.rounds.data import data_folder
from tests.sessions import ROOT, driver_environment

EXAMPLES = ROOT / "examples"
LONGEST = 400  # seconds of a cell
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

PROGRESS = re.compile(r"[a-z][a-z ,\d]*: ")
"""The beginning of a progress line on standard error."""
HERE = "localhost"

# Low-level output, that of child processes, stays out of the notebook; and a bar that asks for ipywidgets finds none.
_KERNEL = (
    *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
    "--IPKernelApp.capture_fd_output=False",
    "--IPKernelApp.exec_lines=import sys; sys.modules['ipywidgets'] = None",
)
_LOG_LINES = 30


def notebooks() -> list[Path]:
    return sorted(EXAMPLES.glob("*.ipynb"))


def data_sets(notebook: NotebookNode) -> list[str]:
    """The files of ``SPARKDL_DATA`` that a notebook reads, as ``data / "name"``."""
    return sorted({name for cell in notebook.cells for name in re.findall(r'\bdata / "([^"]+)"', cell.source)})


def executed(path: Path, folder: Path, jvm: DriverJvm | None = None) -> NotebookNode:
    """Run a notebook in an empty folder and return it with tidied outputs; the file stays as it is.

    Without ``jvm``, its Spark driver starts a JVM.
    """
    notebook = nbformat.read(path, as_version=4)
    for name in ("work", "local", "ipython"):
        (folder / name).mkdir()
    manager = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=_kernels(folder), connection_file=str(folder / "connection.json")
    )
    settings = {"timeout": LONGEST, "record_timing": False, "store_widget_state": False, "coalesce_streams": True}
    client = NotebookClient(notebook, km=manager, resources={"metadata": {"path": str(folder / "work")}}, **settings)
    log, known = folder / "log", jvm.environment if jvm else {}
    with log.open("wb") as written:
        try:
            client.execute(env=environment(folder) | known, stdout=written, stderr=written, cleanup_kc=True)
        except (CellControlSignal, DeadKernelError) as error:
            for name in (log, jvm.log) if jvm else (log,):
                tail = name.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
                error.add_note("\n".join([f"{path.name}; the last lines of its processes:", *tail]))
            raise
        finally:
            if jvm:
                jvm.stop_context()
    return tidied(notebook)


def _kernels(folder: Path) -> KernelSpecManager:
    spec = {"argv": _KERNEL, "display_name": "Python 3", "language": "python"}
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return KernelSpecManager(kernel_dirs=[str(place.parent)])


def environment(folder: Path) -> dict[str, str]:
    """The environment of a notebook and its processes, with their files in ``folder``."""
    settings = {
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLCONFIGDIR": str(ROOT / "build" / "matplotlib"),  # its list of fonts takes seconds to make
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "SPARKDL_DATA": str(data_folder().resolve()),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's, of ipywidgets
    }
    whole = driver_environment(folder / "local", **settings)
    return {name: value for name, value in whole.items() if name not in ("COLUMNS", "LINES")}  # of this terminal


def tidied(notebook: NotebookNode) -> NotebookNode:
    """The notebook with the name of this host replaced, and with no more metadata than it needs; in place."""
    notebook.metadata = NotebookNode(METADATA)
    host = re.compile(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w-])")
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = host.sub(HERE, output.text)
            if "data" in output:
                output.metadata = NotebookNode()
                values = {k: host.sub(HERE, v) if isinstance(v, str) else v for k, v in output.data.items()}
                output.data = NotebookNode(values)
    return notebook


def kinds(cell: NotebookNode) -> list[str]:
    """Of which kinds a cell's outputs are, each once: ``progress``, ``text``, ``table``, ``picture`` or ``error``."""
    return sorted({_kind(output) for output in cell.get("outputs", ())})


def _kind(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return "text" if output.name == "stdout" else "progress"
    if output.output_type == "error":
        return "error"
    if "image/png" in output.data:
        return "picture"
    return "table" if "<table" in "".join(output.data.get("text/html", "")) else "text"


def main(arguments: Sequence[str]) -> None:
    share_classes()
    for path in list(map(Path, arguments)) or notebooks():
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(path, Path(folder)), path)
        print(f"{os.path.relpath(path)}: {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
