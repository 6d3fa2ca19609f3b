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
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, check=False, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def test_installed_program_lists_the_commands_without_importing_spark(capsys):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, path = setup["options.entry_points"]["console_scripts"].strip().split(" = ")
    assert (name, resolve_name(path)) == ("sparkdl", main)
    script = "import sys, sparkdl.cli.__main__; assert not {'pyspark', 'torch', 'jsonargparse'} & set(sys.modules)"
    assert python("-c", script) == (0, "", "")
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed and command.summary in printed for name, command in COMMANDS.items())
    assert {path.stem for path in (ROOT / "jobs").glob("*.py")} == set(COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["trian"]])
def test_unknown_command_ends_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: sparkdl COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.plain])
def test_summary_and_help_of_a_command(name, capsys):
    assert inspect.getdoc(resolve_name(COMMANDS[name].job)).startswith(f"{COMMANDS[name].summary}\n")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    usage = f"usage: sparkdl {name} [--config FILE] [--key value ...]\n\n{COMMANDS[name].summary}"
    assert " ".join(capsys.readouterr().out.split()).startswith(" ".join(usage.split()))


def test_script_needs_the_package_alone(tmp_path):
    shutil.copy(ROOT / "jobs" / "predict.py", tmp_path)
    code, out, err = python("predict.py", "--help", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: predict.py [--config FILE] [--key value ...]\n\n{COMMANDS['predict'].summary}\n")
    assert all(word in out for word in ("--model", "--label"))


def test_program_ends_with_the_exit_code_of_a_command():
    code, out, err = python("-m", "sparkdl.cli", "report", "nowhere")
    assert (code, out) == (2, "")
    assert err.startswith("error: nowhere holds no run")
