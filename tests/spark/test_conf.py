"""The settings in conf/spark: every key is one that Spark knows, and those of a standalone cluster train on one."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.sessions import ROOT, driver_environment
from tests.training.test_digits import digits as digits
from tests.training.test_digits import words

FILES = sorted((ROOT / "conf" / "spark").glob("*.conf"))
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)

# Where Spark declares settings; a class that has not been loaded has declared none.
HOMES = [f"org.apache.spark.internal.config.{name}$" for name in ("package", "Network", "Python", "UI", "Worker")]
HOMES += ["org.apache.spark.deploy.k8s.Config$", "org.apache.spark.deploy.yarn.config.package$"]
HOMES += ["org.apache.spark.sql.internal.SQLConf$", "org.apache.spark.sql.internal.StaticSQLConf$"]
# Names that go on as users like, settings of spark-submit alone, and our own.
OPEN = re.compile(
    r"spark\.(executorEnv|yarn\.appMasterEnv)\.\w+|"
    r"spark\.kubernetes\.(driver|executor)\.volumes\.\w+\.spark-local-dir-\d+\.(mount\.path|options\.\w+)|"
    r"spark\.sparkdl\.network|spark\.(worker|executor)\.resource\.gpu\.(amount|discoveryScript)"
)
UNDECLARED = {"spark.local.dir", "spark.master"}  # Spark reads them by name alone


def settings(path):
    """Every setting, commented out or not: (key, value, active)."""
    for line in path.read_text(encoding="utf-8").splitlines():
        result = re.fullmatch(r"(#?)(spark\.\S+)\s+(\S.*)", line)
        assert result or not line.strip() or line.startswith("#"), line
        if result:
            yield result[2], result[3], not result[1]


@pytest.fixture
def find(spark):
    """Finds Spark's declaration of a setting."""
    java = spark.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for home in HOMES:
        java.java.lang.Class.forName(home, True, loader)
    return java.org.apache.spark.internal.config.ConfigEntry.findEntry


@each_file
def test_spark_knows_every_key(find, path):
    keys = {key for key, *_ in settings(path) if not OPEN.fullmatch(key)} - UNDECLARED
    assert {key for key in keys if not find(key)} == set()
    assert find("spark.executor.memori") is None


@each_file
def test_settings_of_gangs(path):
    pairs = [(key, value) for key, value, active in settings(path) if active]
    result, named, text = dict(pairs), {key for key, *_ in settings(path)}, path.read_text(encoding="utf-8")
    assert len(pairs) == len(result)
    assert "spark.executor.pyspark.memory" not in named
    assert "spark.executor.pyspark.memory" in text  # and why not
    if path.name == "local.conf":
        return
    assert result["spark.dynamicAllocation.enabled"] == "false"
    assert int(result["spark.executor.cores"]) % int(result["spark.task.cpus"]) == 0
    assert {"spark.barrier.sync.timeout", "spark.executor.memory", "spark.task.cpus"} <= set(result)
    assert {"spark.sparkdl.network", "spark.network.crypto.enabled", "spark.archives", "spark.pyspark.python"} <= named
    assert all(word in text for word in ("--py-files", "venv-pack", "allowUnencrypted", "OMP_NUM_THREADS"))


@pytest.mark.parametrize(("visible", "addresses"), [(None, ["0", "1", "2"]), ("GPU-7,GPU-5", ["0", "1"])])
def test_script_finds_the_gpus_that_processes_see(tmp_path, visible, addresses):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    printed = subprocess.check_output([ROOT / "conf/spark/find_gpus.sh"], env=environment)
    assert json.loads(printed) == {"name": "gpu", "addresses": addresses}


BIN = Path(sys.executable).parent
SMALL = {
    "spark.executor.cores": 1,
    "spark.cores.max": 2,
    "spark.task.cpus": 1,
    "spark.executor.memory": "1g",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.python.daemon.module": "pyspark.daemon",  # the tests' own is not on the executors' path
}


@contextlib.contextmanager
def daemon(name, *arguments, line, environment):
    """A daemon of Spark during the block, which begins at a line of its log; the match of the line."""
    command = [BIN / "spark-class", f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", "127.0.0.1"]
    command += ["--port", "0", "--webui-port", "0", *arguments]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes, start_new_session=True) as process:
        try:
            yield next(result for text in process.stderr if (result := re.search(line, text)))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_standalone_cluster(digits, tmp_path):
    """sparkdl and the model travel with --py-files; only sizes differ from the file's."""
    rest = "-Dspark.master.rest.enabled=false"  # its port is fixed
    environment = driver_environment(tmp_path / "local", SPARK_MASTER_OPTS=rest)
    del environment["PYTHONPATH"]
    archive = shutil.make_archive(str(tmp_path / "sparkdl"), "zip", ROOT, "sparkdl")
    places = {"data.path": digits / "train", "test.path": digits / "test", "estimator.runDir": tmp_path / "run"}
    with contextlib.ExitStack() as stack:
        start = partial(daemon, environment=environment)
        master = stack.enter_context(start("Master", line=r"Starting Spark master at (spark://\S+)"))[1]
        size = ("--work-dir", tmp_path / "work", "--cores", "2", "--memory", "2g")
        stack.enter_context(start("Worker", *size, master, line="Successfully registered with master"))
        command = [
            *(BIN / "spark-submit", "--master", master, "--properties-file", "conf/spark/standalone.conf"),
            *(word for key, value in SMALL.items() for word in ("--conf", f"{key}={value}")),
            *("--py-files", f"{archive},examples/digits_net.py", "jobs/train.py"),
            *words(config="conf/train/digits.yaml", **places, output=tmp_path / "model"),
            *words(**{"estimator.epochs": 1, "estimator.model.channels": 4}),
        ]
        output = subprocess.check_output(command, cwd=ROOT, env=environment, text=True, timeout=240)
    assert "held-out accuracy " in output
    assert (tmp_path / "model/metadata").exists()
    assert len(list((tmp_path / "work").glob("app-*/[01]"))) == 2  # one executor for each core
