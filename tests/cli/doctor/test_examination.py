"""The examination of a process, and its judgement, which names hosts."""

import socket
import sys
from functools import partial
from unittest.mock import Mock

import pytest

from sparkdl.cli.doctor import checks, examination
from sparkdl.cli.doctor.check_result import CheckResult, check_result, listed
from sparkdl.cli.doctor.examination import examine, probe_result, version_of
from sparkdl.cli.doctor.job import cause, collect_each
from sparkdl.cli.doctor.probes import ChannelProbe, disks
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.spark.session import session_of
from sparkdl.telemetry.channel import Channel
from tests.cli.doctor.test_connections import says

VERSIONS = {"Python": ("3.11", ""), "torch": ("2.13.0+cpu", ""), "numpy": ("2.3.0", "")}


def report(host="one", *, executor="", versions=(), **probes):
    return {"host": host, "executor": executor, "versions": VERSIONS | dict(versions), "probes": probes}


def refuse():
    raise InvalidInput("no")


def test_examination_of_this_process():
    rows = iter(range(3))
    (found,) = examine({"sum": ship(partial(sum, [1, 2])), "refused": ship(refuse)}, 0.0, rows)
    assert [*rows] == []
    assert found["host"] == socket.gethostname()
    assert found["versions"]["Python"] == (f"{sys.version_info.major}.{sys.version_info.minor}", "")
    assert set(found["versions"]) == {"Python", "sparkdl", "torch", "pyspark", "pyarrow", "numpy"}
    assert found["probes"] == {"sum": (3, ""), "refused": (None, "no")}
    assert checks.versions_check([found], found["versions"]).status == "ok"


def test_broken_module_is_a_result(monkeypatch, tmp_path):
    (tmp_path / "broken_module.py").write_text("raise OSError('libtorch.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    assert version_of("broken_module") == (None, "OSError: libtorch.so: cannot open shared object file")
    assert version_of("absent_module") == (None, "ModuleNotFoundError: No module named 'absent_module'")
    packed = b"cabsent_module\ncall\n."  # a pickle of a function in it
    assert probe_result(packed) == (None, "ModuleNotFoundError: No module named 'absent_module'")


def test_examination_needs_only_python():
    known = {name.partition(".")[0] for name in sys.stdlib_module_names} | {"sparkdl"}
    modules = [value for value in vars(examination).values() if isinstance(value, type(sys))]
    assert {module.__name__ for module in modules} <= known


# ---- judgement --------------------------------------------------------------------------------------------------


def test_tasks_ran_on_all_executors():
    reports = [report(executor="a"), report(executor="a"), report("two", executor="a")]
    says(checks.executors_check(reports, [], 2), "ok Python tasks ran on 2 executors: one, two")
    check = checks.executors_check(reports, [], 3)
    assert "on 2 executors: one, two, but 3 are registered. Read the logs" in check.text
    errors = ["10.0.0.3: Python 3.10, on the driver 3.11."] * 2
    says(checks.executors_check(reports, errors, 2), "FAIL 10.0.0.3: Python 3.10, on the driver 3.11. Read the logs...")


def test_versions_differ_by_release_and_not_by_build():
    check = checks.versions_check([report(versions={"torch": ("2.13.0+cu130", "")})], VERSIONS)
    says(check, "ok Python 3.11, torch 2.13.0+cpu, numpy 2.3.0 on driver and executors")
    absent = {"torch": (None, "ImportError: libtorch"), "numpy": ("1.26.0", "")}
    check = checks.versions_check([report(), report("two", versions=absent), report("two", versions=absent)], VERSIONS)
    says(check, "FAIL two has no torch (ImportError: libtorch), numpy 1.26.0, on the driver 2.3.0. Install...")
    assert checks.missing_modules([report(), report("two", versions=absent)]) == ["torch"]


def test_gloo():
    assert checks.gloo_check([report(gloo=(True, ""))]).status == "ok"
    check = checks.gloo_check([report(gloo=(False, "")), report("two", gloo=(None, "ImportError: torch"))])
    says(check, "FAIL one: torch 2.13.0+cpu has no gloo; two: ImportError: torch. Install a torch build...")


def test_disk():
    reports = [report(disk=([("/a", 5_000_000_000, "")], "")), report("two", disk=([("/b", 2_000_000_000, "")], ""))]
    least = "the least free space is 2.0 GB in two:/b"
    says(checks.disk_check(reports, 1.0), f"ok 2 executors can write local files; {least}")
    says(checks.disk_check(reports, 3.0), "FAIL two:/b has 2.0 GB free: expected at least 3 GB. Free space...")
    unwritable = checks.disk_check([report(disk=([("/a", 5_000_000_000, "Read-only file system")], ""))], 1.0)
    says(unwritable, "FAIL one:/a has 5.0 GB free: Read-only file system. Free space...")
    says(checks.disk_check([report(disk=(None, "ImportError: sparkdl"))], 1.0), "FAIL one: ImportError: sparkdl....")


def test_run_directory():
    seen = {"run directory": (True, "")}
    assert checks.run_directory_check([report(**seen)]).status == "ok"
    check = checks.run_directory_check([report(**seen), report("two", **{"run directory": (False, "")})])
    says(check, "FAIL two does not see what the driver wrote there. Set runDir to a directory that all...")


# ---- probes -----------------------------------------------------------------------------------------------------


def test_disks_of_executor(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    ((folder, free, error),) = disks()
    assert (folder, error) == (str(tmp_path), "")
    assert free > 0
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=OSError(28, "No space left")))
    assert disks()[0][2] == "No space left"


def test_channel_of_driver():
    with Channel(lambda event: None) as channel:
        probe, port = ChannelProbe(channel.endpoint), channel.endpoint.port
        check = checks.channel_check([report(channel=(probe(), ""))], channel.endpoint, "")
    says(check, f"ok 1 executor can connect to the driver at 127.0.0.1 port {port}")
    check = checks.channel_check([report(channel=(probe(), ""))], channel.endpoint, "")
    says(check, f"FAIL one cannot connect to the driver, 127.0.0.1 port {port}: [Errno...")
    assert checks.channel_check([], None, "no such address.").status == "FAIL"


def test_line_has_status_name_and_text():
    assert CheckResult("disk", "ok", "2 GB\n free").line == "ok    disk                2 GB free"
    assert CheckResult("dynamic allocation", "FAIL", "on").line == "FAIL  dynamic allocation  on"


def test_check_fails_with_findings_and_remedy():
    assert check_result("disk", [], "Free space.", otherwise="2 GB free") == CheckResult("disk", "ok", "2 GB free")
    failed = check_result("disk", ["a", "b"], "Free space.", otherwise="")
    assert failed == CheckResult("disk", "FAIL", "a; b. Free space.")


def test_long_list_of_findings_is_counted():
    assert listed("abcd") == "a; b; c; d"
    assert listed("abcdef") == "a; b; c; d; 2 more"


LOST = "Job aborted due to stage failure: Lost task 0.1 in stage 0.0 (TID 3) (10.77.0.3 executor 1): "
STACK = "\n\tat org.apache.spark.api.python.PythonRunner.compute(PythonRunner.scala:1)\n"
LACKING = "No module named 'sparkdl'"
MISMATCH = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            MISMATCH,
            "Python 3.10, on the driver 3.11. Set spark.pyspark.python to a Python 3.11 with sparkdl on every host.",
        ),
        (LACKING, "the executors' Python has no module sparkdl. Install sparkdl in their Python env"),
        (LACKING, "or submit without spark.python.daemon.module=sparkdl.spark.python_daemon."),
        ("Traceback (most recent call last):\n  File x\n    y()\nOSError: no disk\n", "10.77.0.3: OSError: no disk"),
        ("java.io.IOException: Cannot run program", "10.77.0.3: IOException: Cannot run program"),
    ],
)
def test_cause_of_a_failed_job(message, expected):
    text = cause(RuntimeError(LOST + message + STACK), "sparkdl.spark.python_daemon")
    assert text.startswith("10.77.0.3: ")
    assert expected in text
    assert "PythonRunner" not in text


def test_job_that_hangs_is_cancelled(spark):
    def hang(rows):
        import time

        time.sleep(1000)
        return rows

    run_tasks = session_of(spark).run_tasks
    nap, quick = partial(run_tasks, hang, [1]), partial(run_tasks, iter, [1])
    for limit in (0.5, 0.0):  # a limit of 0 s expires before the job begins
        assert collect_each(spark, [nap] * 2, limit, "a nap") == ([], [f"a nap did not end within {limit:g} s"] * 2)
    assert collect_each(spark, [quick, quick], 60, "a job") == ([1, 1], [])
