"""Every command of README.md and docs/: run in a folder like a checkout, or checked as far as can be.

make's targets run in continuous integration on their own, and what pip would install is installed here already. What
starts a program is run: Spark's master is replaced by one on this machine (tests/docs/substitutions.py), so that
commands for different clusters are one, which is run once.
"""

from __future__ import annotations

import re
import subprocess
from configparser import ConfigParser

import pytest
from packaging.requirements import Requirement

from tests.docs.commands import BIN, Command, all_commands, call, checkout, commands
from tests.docs.pages import ROOT, Block, in_language
from tests.rounds.data import real
from tests.sessions import driver_environment

COMMANDS = all_commands()
RUN = ("python", "spark-submit")  # programs that are run
CHECKED = {
    "make": "its targets install, and run for minutes; .ci/run runs check and test-all",
    "source": "it takes up the environment that the tests run in",
    "pip": "it would change the environment that the tests run in",
    "export": "it sets a variable for a cluster that is not there",
}


def of(program: str) -> list[Command]:
    found = [command for command in COMMANDS if command.words[0] == program]
    assert found, f"no page has a command of {program}"
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_is_run_or_checked(command):
    assert command.words[0] in {*RUN, *CHECKED}, f"{command}: nobody runs this"


# ---- checked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", of("make"), ids=str)
def test_targets_of_make_are_there(command):
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(command.words) > 1
    assert set(command.words[1:]) <= set(targets)


@pytest.mark.parametrize("command", of("pip"), ids=str)
def test_what_pip_installs_is_this_package_with_extras_that_it_has(command):
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    verb, *wanted = command.words[1:]
    assert verb == "install"
    if wanted[0] == "-c":
        assert (ROOT / wanted[1]).is_file()
        del wanted[:2]
    for requirement in (Requirement(f"checkout{text.removeprefix('.')}") for text in wanted):
        assert requirement.name == "checkout"  # the package is installed from one
        assert requirement.extras <= set(setup["options.extras_require"])


@pytest.mark.parametrize("command", of("export"), ids=str)
def test_variables_are_sparks_own(command):
    assert len(command.words) == 2
    name, _, value = command.words[1].partition("=")
    assert name in {"HADOOP_CONF_DIR", "JAVA_HOME", "SPARK_LOCAL_IP"}
    assert value


@pytest.mark.parametrize("command", of("source"), ids=str)
def test_the_environment_is_the_one_that_make_installs(command):
    assert command.words == ["source", ".venv/bin/activate"]


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """The options that spark-submit says it has."""
    own = driver_environment(tmp_path_factory.mktemp("spark"))
    command = [BIN / "spark-submit", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=own)
    return set(re.findall(r"^\s*(--[a-z-]+)", said.stdout + said.stderr, re.MULTILINE))


@pytest.mark.parametrize("command", of("spark-submit"), ids=str)
def test_options_of_spark_submit_are_known_and_files_are_there(command, options):
    given = iter(command.words[1:])
    values = {}
    for word in given:
        if not word.startswith("--"):
            program = word
            break
        assert word in options, f"{command}: spark-submit has no {word}"
        values[word] = "" if word in ("--verbose", "--supervise") else next(given)
    arguments = list(given)
    assert re.match(r"(yarn|local|spark://|k8s://https://)", values.get("--master", "local"))
    assert values.get("--deploy-mode", "cluster") in ("cluster", "client")
    assert (ROOT / values["--properties-file"]).is_file()
    assert (ROOT / program.replace("local:///opt/", "")).is_file()
    assert all((ROOT / "conf" / name).is_file() for name in re.findall(r"/opt/(train/\S+)", command.text))
    own = [name for name in values.get("--py-files", "").split(",") if name != "net.py"]  # which is the reader's
    assert all((ROOT / name).is_file() for name in own)
    if "--files" in values:  # shipped, and so read by its bare name
        assert arguments[:2] == ["--config", values["--files"]]


@pytest.mark.parametrize("block", in_language("cron"), ids=str)
def test_a_crontab_has_times_and_calls_a_job_with_a_date(block, options):
    (line,) = [line for line in block.code.splitlines() if not line.startswith("#")]
    times, command = line.split(None, 5)[:5], line.split(None, 5)[5]
    assert all(re.fullmatch(r"\*|\d+(,\d+)*", time) for time in times)
    assert "%" not in command.replace(r"\%", "")  # cron takes it for the end of a line
    assert set(re.findall(r"(?<= )--[a-z-]+(?= )", command)) <= options | {"--config", "--date"}
    assert all((ROOT / job).is_file() for job in re.findall(r"jobs/\w+\.py", command))


# ---- run --------------------------------------------------------------------------------------------------------

AS_RUN = list(dict.fromkeys(command.as_run for command in COMMANDS if command.words[0] in RUN))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("docs") / "checkout")


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", AS_RUN)
def test_a_command_runs(text, folder):
    """In the order of the pages: a command may need what one before it has written."""
    for name in set(re.findall(r"\badult\.(?:data|test)\b", text)):
        real(name)
    ended = call(text, folder)
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout


def test_commands_for_several_clusters_are_one_on_this_machine():
    clusters = [command for command in of("spark-submit") if "docs/clusters" in command.block.page]
    assert len(clusters) >= 4
    assert len({command.as_run for command in clusters}) == 1
    assert "--master" not in clusters[0].as_run


# ---- and commands are found as they should be -----------------------------------------------------------------------


def test_lines_are_joined_and_comments_left_out():
    block = Block("page.md", 1, "bash", "make demo   # all of it\n\n# no\nspark-submit \\\n    a.py --x 1\n")
    assert [command.text for command in commands(block)] == ["make demo", "spark-submit a.py --x 1"]


def test_an_option_that_does_not_exist_is_unknown(options):
    assert {"--properties-file", "--master", "--py-files", "--deploy-mode", "--files", "--conf"} <= options
    assert "--property-files" not in options
