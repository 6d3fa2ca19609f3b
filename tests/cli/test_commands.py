"""The program ``sparkdl``, and the scripts of spark-submit, without Spark."""

from __future__ import annotations

import configparser
import inspect
import os
import shutil
import subprocess
import sys
from pkgutil import resolve_name

import pytest

from sparkdl.cli.__main__ import main
from sparkdl.cli.commands import COMMANDS
from tests.sessions import ROOT


def python(*words, cwd=ROOT):
    """The exit code, standard output and standard error of a Python that has the package."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    shown = subprocess.run(
        [sys.executable, *map(str, words)],
        check=False,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return shown.returncode, shown.stdout, shown.stderr


def test_help_lists_the_commands():
    code, out, err = python("-m", "sparkdl.cli", "--help")
    assert (code, err) == (0, "")
    for name, command in COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary in out


def test_the_installed_program_is_the_same():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, path = setup["options.entry_points"]["console_scripts"].strip().split(" = ")
    assert (name, resolve_name(path)) == ("sparkdl", main)


def test_commands_do_not_import_spark_before_they_run():
    script = "import sys, sparkdl.cli.__main__; assert not {'pyspark', 'torch', 'jsonargparse'} & set(sys.modules)"
    assert python("-c", script) == (0, "", "")


@pytest.mark.parametrize("arguments", [[], ["trian"]])
def test_unknown_command_is_refused(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: sparkdl COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.plain])
def test_summary_of_a_command_is_its_own(name):
    assert inspect.getdoc(resolve_name(COMMANDS[name].job)).startswith(f"{COMMANDS[name].summary}\n")


def test_every_command_is_a_script():
    assert {path.stem for path in (ROOT / "jobs").iterdir() if path.suffix == ".py"} == set(COMMANDS)


@pytest.mark.parametrize(
    ("name", "words"),
    [("train", ["--estimator", "--output"]), ("predict", ["--model", "--label"]), ("admm", ["--algorithm.rho"])],
)
def test_a_script_needs_the_package_alone(tmp_path, name, words):
    shutil.copy(ROOT / "jobs" / f"{name}.py", tmp_path)
    code, out, err = python(f"{name}.py", "--help", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {name}.py [--config FILE] [--key value ...]\n\n{COMMANDS[name].summary}\n")
    assert all(word in out for word in words)


def test_the_program_runs_a_command():
    code, out, err = python("-m", "sparkdl.cli", "evaluate", "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: sparkdl evaluate [--config FILE] [--key value ...]")
    code, out, err = python("-m", "sparkdl.cli", "predict", "--model", "model", "--data.path", "data")
    assert (code, out) == (2, "")
    assert "error: there is nothing to do: give output, label or both." in err
    code, out, err = python("-m", "sparkdl.cli", "report", "nowhere")
    assert (code, out) == (2, "")
    assert err.startswith("error: nowhere holds no run")
