"""The wheel outside the checkout, sparkdl without pyspark, and the extras that make installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from inspect import getsource
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from torch import nn

import sparkdl
from tests.law import CONFINED, room_of

ROOT = Path(__file__).parents[1]
NO_PYSPARK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
WITHOUT_SPARK = sorted(
    name for name, home in sparkdl._HOMES.items() if room_of(home) not in CONFINED["pyspark"].split()
)


def one_step() -> None:
    """Train one step, and print where sparkdl is and how many epochs were trained."""
    training = sparkdl.Training(sparkdl.Objective(nn.Linear(2, 1), nn.MSELoss()), batch_size=4, epochs=1)
    rows = {"x": np.ones((4, 2), np.float32), "y": np.ones((4, 1), np.float32)}
    columns = sparkdl.Columns((sparkdl.InputColumn("x"),), sparkdl.InputColumn("y"))
    (trained,) = sparkdl.InlineCluster().gang(training, rows, columns)
    print(sparkdl.__file__, len(trained.history))


ONE_STEP = f"import numpy as np\nimport sparkdl\nfrom torch import nn\n\n{getsource(one_step)}\none_step()"


def run(*arguments: str | Path, cwd: Path, path: str | Path = "") -> str:
    """The output of this Python, with a folder first on its path."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- the wheel --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools builds in the folder of the sources, and keeps files that are no longer there."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "sparkdl", folder / "source/sparkdl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run("-m", "pip", "wheel", *options, "-w", folder, folder / "source", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_has_every_file_and_pyspark_in_extras_alone(wheel):
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "sparkdl").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        lines = files.read(metadata).decode().splitlines()
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == sources
    assert {Path(name).suffix for name in packed} == {".py", ".pyi", ".html", ".typed"}
    extras = {line.rpartition("extra == ")[2] for line in lines if line.startswith("Requires-Dist: pyspark")}
    assert extras == {'"spark"', '"connect"'}
    assert "License: Apache-2.0" in lines


@pytest.mark.slow
def test_wheel_trains_and_lists_its_commands_outside_the_checkout_without_pyspark(wheel, tmp_path):
    site = wheel.parent / "site"
    run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    *_, last = run("-c", NO_PYSPARK + ONE_STEP, cwd=tmp_path, path=site).splitlines()
    assert last == f"{site / 'sparkdl/__init__.py'} 1"
    assert "etl_train" in run("-m", "sparkdl.cli", "--help", cwd=tmp_path, path=site)


# ---- without pyspark --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_without_pyspark_load_or_explain_how_to_install_it(tmp_path):
    assert {"InlineCluster", "LocalCluster", "Supervisor", "Training", "Objective", "LBFGS"} <= set(WITHOUT_SPARK)
    script = f"""
import sparkdl
from sparkdl.cli.commands import run

for name in {WITHOUT_SPARK}:
    getattr(sparkdl, name)
for name in ("TorchClassifier", "SparkCluster", "Bagging"):
    try:
        getattr(sparkdl, name)
    except ModuleNotFoundError as error:
        assert error.name == "pyspark"
        print(error)
sys.stderr = sys.stdout
print(run("train", []))
"""
    advice = "needs pyspark, which is not installed: pip install 'sparkdl-torch[spark]'."
    names = ("sparkdl.TorchClassifier", "sparkdl.SparkCluster", "sparkdl.Bagging", "error: train")
    printed = run("-c", NO_PYSPARK + script, cwd=tmp_path, path=ROOT)
    assert printed.splitlines() == [*(f"{name} {advice}" for name in names), "2"]


def test_other_missing_module_keeps_its_error(tmp_path):
    script = """
import sparkdl
sys.modules["torch"] = None
try:
    sparkdl.Objective
except ModuleNotFoundError as error:
    print(error.name, "spark" in str(error).lower())
"""
    assert run("-c", "import sys" + script, cwd=tmp_path, path=ROOT) == "torch False\n"


def installs(target: str, venv: Path) -> list[str]:
    """The extras that a target of make would install into a virtual environment."""
    command = ["make", "--dry-run", target, f"VENV={venv}", f"OLDEST={venv}-oldest", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    lines = (line for line in done.stdout.splitlines() if "/pip install" in line)
    return [line.rpartition("--editable ")[2].strip("'") for line in lines]


def test_make_installs_extras_once(tmp_path):
    assert installs("demo", tmp_path) == installs("compat", tmp_path) == [".[spark,examples]"]
    assert installs("test", tmp_path) == [".[spark,examples]", ".[dev]"]
    (tmp_path / ".runtime").touch()
    assert (installs("demo", tmp_path), installs("test", tmp_path)) == ([], [".[dev]"])
    (tmp_path / ".installed").touch()
    assert installs("demo", tmp_path) == installs("test", tmp_path) == []
