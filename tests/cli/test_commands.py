"""The program ``sparkdl``, the scripts of spark-submit, exit codes, the report and the doctor."""

from __future__ import annotations

import configparser
import inspect
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from pyspark.errors import PySparkValueError

from sparkdl.cli import app, report
from sparkdl.cli.__main__ import main
from sparkdl.cli.commands import COMMANDS, run
from sparkdl.cli.exit_codes import Superseded
from sparkdl.cluster.shutdown import stop_requested
from sparkdl.errors import ErrorContext, InvalidInput, Stopped, WorkerFailed, WorkerLost
from tests.report.made import gang, written
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


def test_configuration_without_metrics_imports_no_torchmetrics():
    script = """
import functools, sys
from sparkdl.cli import app, train
job = functools.wraps(train.train)(lambda **_: print("torchmetrics" in sys.modules))
sys.path.insert(0, "examples")
app.main(job, ["--config", "conf/train/digits.yaml"])
"""
    assert python("-c", script) == (0, "False\n", "")


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


@pytest.mark.slow
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
    assert run("report", [Path("nowhere")]) == 2


# ---- exit codes -------------------------------------------------------------------------------------------------


BROKEN = WorkerFailed("it broke", context=ErrorContext(rank=1), trace="the traceback")


def ending(error):
    def job(*, data: str = ""):
        """Do nothing but end."""
        if error is not None:
            raise error

    return job


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (None, 0, ""),
        (InvalidInput("epochs is 0."), 2, "error: epochs is 0.\n"),
        (Superseded("another run has taken over."), 5, "error: another run has taken over.\n"),
        (BROKEN, 1, "error: it broke [rank 1]\n\nthe traceback\n"),
        (PySparkValueError("no\n\tat org.apache.X(Y.java:1)\nDriver stacktrace:\n"), 1, "error: no\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Stopped("saved at step 3"), 143, "stopped: saved at step 3\n"),
    ],
)
def test_exit_code_and_message(capsys, error, code, printed):
    assert app.main(ending(error), []) == code
    assert capsys.readouterr().err == printed


def test_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        app.main(ending(ZeroDivisionError()), [])


@pytest.mark.parametrize(("error", "code"), [(WorkerLost("killed"), 143), (InvalidInput("epochs is 0."), 2), (None, 0)])
def test_error_after_sigterm_counts_as_the_stop(error, code):
    def job(*, data: str = ""):
        """Get SIGTERM, and end."""
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_requested() == "the driver got SIGTERM"
        ending(error)()

    before = signal.getsignal(signal.SIGTERM)
    assert app.main(job, [], stops=True) == code
    assert stop_requested() is None
    assert signal.getsignal(signal.SIGTERM) is before


# ---- the report -------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    gangs = [gang(), gang(loss=2.0)]
    return [
        written(tmp_path / name, data.events, history=list(data.history), config=data.configuration, report=data.report)
        for name, data in zip(("one", "two"), gangs, strict=True)
    ]


def test_report_of_a_run_is_in_its_directory_or_where_output_says(runs, tmp_path, capsys):
    output = tmp_path / "pages" / "one.html"
    assert report.main([runs[0], "--output", str(output)]) == 0
    assert "<h1>one</h1>" in output.read_text()
    assert not Path(runs[0], "report.html").exists()
    for folder in (runs[0], f"file://{runs[0]}/"):  # the second overwrites
        assert report.main([folder]) == 0
    assert "<h1>one</h1>" in Path(runs[0], "report.html").read_text()
    assert capsys.readouterr().out.startswith(f"wrote {output}\nwrote {runs[0]}/report.html\n")


def test_report_compares_several_runs(runs, tmp_path):
    assert report.main([*runs, "--output", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text()
    assert "<h1>one and two</h1>" in page
    assert "Differences" in page


@pytest.mark.parametrize(
    ("words", "expected", "message"),
    [
        ("{one} {two}", 2, "error: 2 runs are given without an output; expected --output FILE.\n"),
        ("{one} {tmp}/nowhere --output {tmp}/a.html", 2, "error: {tmp}/nowhere holds no run"),
        ("{one} --output {tmp}/file/a.html", 1, "error: "),
        ("", 2, "usage: "),
    ],
)
def test_mistake_in_a_report_has_an_exit_code(runs, tmp_path, capsys, words, expected, message):
    (tmp_path / "file").touch()
    places = {"one": runs[0], "two": runs[1], "tmp": tmp_path}
    try:
        code = report.main(words.format(**places).split())
    except SystemExit as ended:
        code = ended.code
    assert code == expected
    assert message.format(**places) in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


PLAIN = """
import runpy, sys
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
finally:
    assert not {"pyspark", "torch", "jsonargparse"} & set(sys.modules)
"""


def test_script_of_the_report_loads_neither_spark_nor_torch(runs, tmp_path):
    printed = python("-c", PLAIN, ROOT / "jobs/report.py", runs[0], cwd=tmp_path)
    assert printed == (0, f"wrote {runs[0]}/report.html\n", "")


# ---- failures of the doctor on one machine; tests/hosts plants faults on several -------------------------------------


@pytest.mark.slow
def test_failures_end_with_1_and_their_names(job):
    code, printed = job("doctor", "--num_workers", 3, "--min_free_gb", 1e9)
    assert code == 1
    assert printed.endswith("error: 2 of 12 checks are not ok: slots, disk.\n")
    assert "FAIL  slots               3 workers need 3 task slots at a time, but the configuration allows 2" in printed
    assert " GB free: expected at least 1e+09 GB. Free space there" in printed
    assert "gloo summed a tensor over 2 workers" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_workers", "0"], "num_workers is 0; expected a whole number of at least 1, or None."),
        (["--timeout", "0"], "timeout is 0.0; expected a finite number above 0."),
        (["--workers", "2"], "workers"),
    ],
)
def test_mistake_ends_with_2(refused, words, message):
    assert message in refused(*words, job="doctor")


def test_run_dir_that_is_a_file(job, tmp_path):
    (tmp_path / "file").touch()
    code, printed = job("doctor", "--run_dir", tmp_path / "file")
    assert code == 2
    assert "error: the driver cannot write in the run_dir" in printed
