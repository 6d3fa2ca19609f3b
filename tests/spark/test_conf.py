"""The settings in conf/spark: every key is one that Spark knows, and those of a standalone cluster train on one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions import driver_environment

ROOT = Path(__file__).resolve().parents[2]
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
    r"spark\.sparkdl\.network"
)
UNDECLARED = {"spark.local.dir", "spark.master"}  # Spark reads them by name alone


def settings(path):
    """Every setting, commented out or not: (key, value, active)."""
    for line in path.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"(#?)(spark\.\S+)\s+(\S.*)", line)
        assert found or not line.strip() or line.startswith("#"), line
        if found:
            yield found[2], found[3], not found[1]


@each_file
def test_spark_knows_every_key(spark, path):
    java = spark.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for home in HOMES:
        java.java.lang.Class.forName(home, True, loader)
    find = java.org.apache.spark.internal.config.ConfigEntry.findEntry
    keys = {key for key, *_ in settings(path) if not OPEN.fullmatch(key)} - UNDECLARED
    assert {key for key in keys if not find(key)} == set()
    assert find("spark.executor.memori") is None


@each_file
def test_settings_of_gangs(path):
    keys = [key for key, _, in_force in settings(path) if in_force]
    assert len(keys) == len(set(keys))
    found = {key: value for key, value, in_force in settings(path) if in_force}
    named, text = {key for key, *_ in settings(path)}, path.read_text(encoding="utf-8")
    assert "spark.executor.pyspark.memory" not in named
    assert "spark.executor.pyspark.memory" in text  # and why not
    if path.name == "local.conf":
        return
    assert found["spark.dynamicAllocation.enabled"] == "false"
    assert int(found["spark.executor.cores"]) % int(found["spark.task.cpus"]) == 0
    assert {"spark.barrier.sync.timeout", "spark.executor.memory", "spark.task.cpus"} <= set(found)
    assert {"spark.sparkdl.network", "spark.network.crypto.enabled", "spark.archives", "spark.pyspark.python"} <= named
    assert all(word in text for word in ("--py-files", "venv-pack", "allowUnencrypted", "OMP_NUM_THREADS"))


def test_each_kind_of_cluster_has_settings():
    assert [path.name for path in FILES] == ["kubernetes.conf", "local.conf", "standalone.conf", "yarn.conf"]


# ---- a standalone cluster --------------------------------------------------------------------------------------------

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


@pytest.fixture
def environment(tmp_path):
    rest = "-Dspark.master.rest.enabled=false"  # its port is fixed
    given = driver_environment(tmp_path / "local", SPARK_MASTER_OPTS=rest)
    return {name: value for name, value in given.items() if name != "PYTHONPATH"}


@pytest.fixture
def daemon(environment, tmp_path):
    """Starts a daemon of Spark and waits for a line of its log; returns the match."""
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

    def start(name, *arguments, line):
        command = [BIN / "spark-class", f"org.apache.spark.deploy.{name.lower()}.{name}", *ports, *arguments]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stack.callback(end, process)
        log = []
        for each in process.stderr:
            log.append(each)
            if found := re.search(line, each):
                return found
        pytest.fail(f"the {name} ended with {process.wait()}:\n{''.join(log)}")

    with contextlib.ExitStack() as stack:
        yield start


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_standalone_cluster(daemon, environment, tmp_path):
    """sparkdl and the model travel with --py-files; only sizes differ from the file's."""
    master = daemon("Master", line=r"Starting Spark master at (spark://\S+)")[1]
    size = ("--work-dir", tmp_path / "work", "--cores", "2", "--memory", "2g")
    daemon("Worker", *size, master, line="Successfully registered with master")
    subprocess.run([sys.executable, ROOT / "examples/digits_to_parquet.py", tmp_path / "data"], check=True, timeout=60)
    archive = shutil.make_archive(str(tmp_path / "sparkdl"), "zip", ROOT, "sparkdl")
    places = {
        "data.path": tmp_path / "data/train",
        "test.path": tmp_path / "data/test",
        "estimator.runDir": tmp_path / "run",
        "output": tmp_path / "model",
    }
    command = [
        *(BIN / "spark-submit", "--master", master, "--properties-file", "conf/spark/standalone.conf"),
        *(word for key, value in SMALL.items() for word in ("--conf", f"{key}={value}")),
        *("--py-files", f"{archive},examples/digits_net.py", "jobs/train.py", "--config", "conf/train/digits.yaml"),
        *(str(word) for key, value in places.items() for word in (f"--{key}", value)),
    ]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert float(re.search(r"held-out accuracy (\S+)", output)[1]) >= 0.97
    assert len(list((tmp_path / "work").glob("app-*/[01]"))) == 2  # one executor for each core
