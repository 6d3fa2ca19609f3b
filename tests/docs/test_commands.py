"""Every command of README.md and docs/: run in a folder like a checkout, or checked as far as possible; settings.

Programs run on this machine (tests/docs/substitutions.py), so commands for different clusters become one, run once.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

import sparkdl
from tests.docs import substitutions
from tests.docs.pages import ROOT, Block, in_language
from tests.rounds.data import data_folder, real
from tests.sessions import driver_environment
from tests.spark.test_conf import OPEN, UNDECLARED
from tests.spark.test_conf import find as find

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Command:
    """A command of a page: its lines joined, without comments."""

    block: Block
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    def __str__(self) -> str:
        return f"{self.block}: {self.text}"


def commands(block: Block) -> Iterator[Command]:
    for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
        text = re.sub(r"(^|\s+)#.*", "", line).strip()
        if text:
            yield Command(block, text)


def printed_by_make(target: str) -> str:
    """The recipe of a target as shell commands, each on one line."""
    command = ["make", "--no-print-directory", "--dry-run", "--old-file=.venv/.runtime", target]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return re.sub(r"\\\n\s*", "", printed)


COMMANDS = [command for block in in_language("bash") for command in commands(block)]
SUBMITTED = [command for command in COMMANDS if command.words[0] == "spark-submit"]
PROGRAMS = [command.text for command in COMMANDS if command.words[0] in ("python", "spark-submit")]
DEMO = re.findall(r"(?:python|spark-submit) .*", printed_by_make("demo"))
"""The commands of ``make demo``; the pages have some of them."""
RUN = list(dict.fromkeys(map(substitutions.shell, [*DEMO, *PROGRAMS])))


# ---- checked ----------------------------------------------------------------------------------------------------


def make(*targets: str) -> None:
    """.ci/run runs check and test-all; all targets install, and run for minutes."""
    assert targets
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(targets) <= set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def pip(verb: str, *requirements: str) -> None:
    """It would change the environment of the tests."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wheel = f"dist/sparkdl_torch-{sparkdl.__version__}-py3-none-any.whl"
    if verb == "wheel":  # tests/test_wheel.py builds it
        assert requirements == ("--no-deps", "--wheel-dir", "dist", ".")
        return
    assert verb == "install"
    if requirements[0] == "-c":
        assert (ROOT / requirements[1]).is_file()
        requirements = requirements[2:]
    for requirement in (Requirement(f"checkout{text.removeprefix(wheel).removeprefix('.')}") for text in requirements):
        assert requirement.name == "checkout"
        assert requirement.extras <= set(setup["options.extras_require"])


def export(variable: str) -> None:
    name, _, value = variable.partition("=")
    assert name in {"HADOOP_CONF_DIR", "JAVA_HOME", "SPARK_LOCAL_IP"}
    assert value


def source(file: str) -> None:
    assert file == ".venv/bin/activate"


CHECKS = {"make": make, "pip": pip, "export": export, "source": source}


def test_all_programs_have_commands():
    assert {command.words[0] for command in COMMANDS} == {*CHECKS, "python", "spark-submit"}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.words[0] in CHECKS], ids=str)
def test_command_fits_the_repository(command):
    program, *words = command.words
    CHECKS[program](*words)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """All options of spark-submit."""
    environment = driver_environment(tmp_path_factory.mktemp("spark"))
    command = [BIN / "spark-submit", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    known = set(re.findall(r"^\s*(--[a-z-]+)", ended.stdout + ended.stderr, re.MULTILINE))
    assert {"--properties-file", "--master", "--py-files", "--deploy-mode", "--files", "--conf"} <= known
    return known


@pytest.mark.parametrize("command", SUBMITTED, ids=str)
def test_options_of_spark_submit_and_files_exist(command, options):
    words, values = iter(command.words[1:]), {}
    while (word := next(words)).startswith("--"):
        assert word in options, f"{command}: spark-submit has no {word}"
        values[word] = "" if word in ("--verbose", "--supervise") else next(words)
    arguments = list(words)
    assert re.match(r"(yarn|local|spark://|k8s://https://)", values.get("--master", "local"))
    assert values.get("--deploy-mode", "cluster") in ("cluster", "client")
    modules = [name for name in values.get("--py-files", "").split(",") if name not in ("", "net.py")]  # the reader's
    shipped = [f"conf/{name}" for name in re.findall(r"/opt/(train/\S+)", command.text)]
    paths = [values["--properties-file"], word.replace("local:///opt/", ""), *modules, *shipped]
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    if "--files" in values:  # a job reads shipped files by their bare names
        assert arguments[:2] == ["--config", values["--files"]]


@pytest.mark.parametrize("block", in_language("cron"), ids=str)
def test_crontab_has_times_and_calls_a_job_with_a_date(block, options):
    (line,) = [line for line in block.code.splitlines() if not line.startswith("#")]
    *times, command = line.split(None, 5)
    assert all(re.fullmatch(r"\*|\d+(,\d+)*", time) for time in times)
    assert "%" not in command.replace(r"\%", "")  # for cron, it ends the line
    assert set(re.findall(r"(?<= )--[a-z-]+(?= )", command)) <= options | {"--config", "--date"}
    assert all((ROOT / job).is_file() for job in re.findall(r"jobs/\w+\.py", command))


# ---- settings ------------------------------------------------------------------------------------------------------

PROPERTIES = in_language("properties")
LINE = re.compile(r"(spark\.\S+)\s+(\S.*)")


def test_spark_knows_every_key(find):
    for block in PROPERTIES:
        for line in block.code.splitlines():
            key = LINE.fullmatch(line)[1]
            assert OPEN.fullmatch(key) or key in UNDECLARED or find(key), f"{block}: Spark does not know {key}"


@pytest.mark.parametrize("block", PROPERTIES, ids=str)
def test_settings_are_unique_keys_with_values(block):
    lines = block.code.splitlines()
    settings = dict(LINE.fullmatch(line).groups() for line in lines)
    assert len(settings) == len(lines)
    if {"spark.executor.cores", "spark.task.cpus"} <= set(settings):
        assert int(settings["spark.executor.cores"]) % int(settings["spark.task.cpus"]) == 0


@pytest.mark.parametrize("block", in_language("dockerfile"), ids=str)
def test_image_copies_existing_files(block):
    lines = [line.split() for line in block.code.splitlines()]
    assert {words[0] for words in lines} <= {"FROM", "USER", "COPY", "RUN", "ENV", "WORKDIR"}
    pinned = (ROOT / "conf/constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^pyspark==(.+)$", pinned, re.MULTILINE)
    assert lines[0] == ["FROM", f"apache/spark:{version}-python3"]
    for words in lines:
        if words[0] == "COPY":
            assert all((ROOT / source).exists() for source in words[1:-1]), words


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder like a checkout, in which commands may write."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("conf", "examples", "jobs"):
        (folder / name).symlink_to(ROOT / name)
    for name, rows in {"adult.data": 10_500, "adult.test": 2000}.items():
        if (data_folder() / name).is_file():
            with (data_folder() / name).open(encoding="utf-8") as file:
                (folder / name).write_text("".join(itertools.islice(file, 1 + rows)), encoding="utf-8")
    script = [sys.executable, "examples/digits_to_parquet.py", "build/demo/data"]
    subprocess.run(script, cwd=folder, check=True, timeout=240)
    return folder


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", RUN)
def test_command_runs(text, checkout):
    """Commands run in the order of the pages: one may need the files of an earlier one."""
    searched = ["adult.data", "adult.test"] if "tune/adult" in text else []
    for name in {*re.findall(r"\badult\.(?:data|test)\b", text), *searched}:
        real(name)
    command = ["bash", "-euo", "pipefail", "-c", f"exec 2>&1; {text}"]
    environment = driver_environment(checkout / "local", PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    ended = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=580, check=False
    )
    assert ended.returncode == 0, ended.stdout
    for job, check in RESULTS.items():
        if job in text:
            check(checkout / "build/demo", ended.stdout)


def data_is_written(demo: Path, printed: str) -> None:
    train, test = pq.read_table(demo / "data/train"), pq.read_table(demo / "data/test")
    assert (train.num_rows, test.num_rows) == (1437, 360)
    assert [str(field.type) for field in train.schema] == ["list<element: float>", "int64"]
    assert np.bincount(test["label"]).min() >= 34  # each class in proportion


def model_is_trained(demo: Path, printed: str) -> None:
    assert "fit: epoch" in printed
    assert float(re.search(r"held-out accuracy (\S+)", printed)[1]) >= 0.97
    assert len(json.loads((demo / "run/history.json").read_text())) == 16


def rows_are_scored(demo: Path, printed: str) -> None:
    predictions = pq.read_table(demo / "predictions").to_pandas()
    right = int((predictions["label"] == predictions["prediction"]).sum())
    assert len(predictions) == 360
    assert f"accuracy {right / 360:.4f} ({right} of 360 rows)" in printed
    assert "confusion" in printed


def model_is_searched(demo: Path, printed: str) -> None:
    assert re.search(r"^trials +9$", printed, re.MULTILINE)
    assert float(re.search(r"held-out accuracy (\S+)", printed)[1]) >= 0.8
    assert len([*(demo.parent / "tune/adult/trials").glob("*.json")]) == 9


def machine_is_healthy(demo: Path, printed: str) -> None:
    lines = re.findall(r"^(ok|FAIL|skip) +(\S.{17}) *(.*)$", printed, re.MULTILINE)
    checks = {name.strip(): (status, text) for status, name, text in lines}
    assert {status for status, _ in checks.values()} == {"ok"}, printed
    assert checks["connections"][1] == "all workers are on one host"
    assert checks["all-reduce"][1].startswith("gloo summed a tensor over 2 workers")
    table = (ROOT / "docs/doctor.md").read_text(encoding="utf-8").partition("## Checks and remedies")[2]
    rows = re.findall(r"^\| ([a-z -]+) \|", table, re.MULTILINE)
    assert [name for name in rows if name not in ("check", "run directory")] == [*checks]


def plan_is_printed(demo: Path, printed: str) -> None:
    page = (ROOT / "docs/communication.md").read_text(encoding="utf-8")
    first, header, *rows = re.search(r"```text\n(.*?)\n```", page, re.DOTALL)[1].splitlines()
    assert first in printed
    assert header.split() == ["strategy", "MB", "a", "step", "messages", "s", "a", "step", "efficiency"]
    for row in rows:
        assert re.search(" +".join(map(re.escape, row.split())), printed)


RESULTS = {
    "digits_to_parquet.py": data_is_written,
    "jobs/train.py": model_is_trained,
    "jobs/predict.py": rows_are_scored,
    "jobs/tune.py": model_is_searched,
    "jobs/doctor.py": machine_is_healthy,
    "jobs/plan.py": plan_is_printed,
}
