"""Impossible capacity and settings raise at once; waits for slots are reported and have a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import functions as F

from benchmarks.hosts import until
from sparkdl.cli.doctor.checks import dynamic_allocation_check, encryption_check
from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import ClusterUnavailable, InvalidInput, Stopped
from sparkdl.net.addresses import list_interfaces
from sparkdl.spark import cluster as spark_cluster
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.session import classic_slots
from sparkdl.spark.slots import capacity as resources
from sparkdl.spark.slots.capacity import find_slots, wait_for_slots
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.telemetry.event import Event
from tests.contracts import work
from tests.sessions import session

OTHERS = [name for name, addresses in list_interfaces().items() if name != "lo" and addresses]


@pytest.fixture
def configured(monkeypatch):
    """Makes sparkdl see other settings than the session has."""

    def configure(**settings: str) -> None:
        changes = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
        original = resources.setting
        for module in (resources, spark_cluster, classic_slots):
            monkeypatch.setattr(
                module, "setting", lambda spark, name: changes[name] if name in changes else original(spark, name)
            )

    return configure


def read(pipe: str) -> str:
    """Wait until a pipe is opened for writing and closed."""
    with open(pipe) as file:
        return file.read()


@contextmanager
def held(spark, path) -> Iterator[tuple[Future[Any], Any]]:
    """Another job that holds one slot until the block ends, or the yielded function is called."""
    pipe = str(path)
    os.mkfifo(pipe)
    pipes: list[int] = []

    def release() -> None:
        while pipes:
            os.close(pipes.pop())

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(SparkCluster(spark, 1).gang, lambda world, shard: read(pipe))
        try:
            pipes.append(os.open(pipe, os.O_WRONLY))  # returns once its worker reads
            yield job, release
        finally:
            release()
            assert job.result(120) == [""]


# ---- impossible ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        (3, {}, ClusterUnavailable, ["3 workers need 3 task slots", "allows 2", "local-cluster[2,1,", "numWorkers"]),
        (1, {"task__cpus": "2"}, ClusterUnavailable, ["allows 0: ", "spark.task.cpus = 2"]),
        (1, {"dynamicAllocation__enabled": "true"}, ClusterUnavailable, ["spark.dynamicAllocation.enabled=false"]),
        (1, {"network__crypto__enabled": "true"}, InvalidInput, ["spark.network.crypto.enabled is true", "allowUnenc"]),
        (1, {"ssl__enabled": "true"}, InvalidInput, ["spark.ssl.enabled is true", "allowUnencrypted=True"]),
        (1, {"io__encryption__enabled": "true"}, InvalidInput, ["spark.io.encryption.enabled is", "allowUnencrypted"]),
    ],
)
def test_impossible_gang_raises_at_once(spark, configured, monkeypatch, case):
    size, settings, error, words = case
    configured(**settings)
    for name in ("wait_for_slots", "JobWatch"):
        monkeypatch.setattr(spark_cluster, name, lambda *_, **__: pytest.fail("waited in vain"))
    events: list[Event] = []
    with pytest.raises(error) as caught:
        SparkCluster(spark, size).gang(work.who, listener=events.append)
    assert all(word in str(caught.value) for word in words)
    assert events == []
    if size == 1 and "task__cpus" not in settings:
        with pytest.raises(error):
            SparkCluster(spark, 1).capacity()
        doctor = dynamic_allocation_check(spark), encryption_check(spark, allow_unencrypted=False)
        assert [check.status for check in doctor] == (["FAIL", "ok"] if error is ClusterUnavailable else ["ok", "FAIL"])
    if error is InvalidInput:
        runner = SparkCluster(spark, 1).map_reduce(spark.range(2), ["id"])
        with pytest.raises(InvalidInput, match="allowUnencrypted=True"), runner:  # rows lie on executors' disks
            pass
        resources.check(spark, 1, allow_unencrypted=True)


def test_limited_address_space_warns_before_the_launch(spark, configured):
    configured(executor__pyspark__memory="2g")
    with pytest.warns(UserWarning, match="spark.executor.pyspark.memory is 2g: it limits the address space"):
        SparkCluster(spark, 1)


def test_capacity(spark):
    wait_for_slots(spark, 2, timeout=200, report=lambda what, seconds: None)
    assert find_slots(spark) == SparkCluster(spark, 1).capacity() == Capacity(now=2, ever=2)


@pytest.mark.parametrize(
    ("master", "settings", "ever"),
    [
        ("spark://host:7077", {"cores__max": "9", "task__cpus": "2"}, 4),
        ("yarn", {"executor__instances": "3", "executor__cores": "5", "task__cpus": "2"}, 6),
        ("yarn", {"executor__instances": "3"}, None),
        ("k8s://host", {}, None),
        ("local-cluster[3, 4, 1024]", {"task__cpus": "3"}, 3),
    ],
)
def test_slots_of_configuration(spark, configured, monkeypatch, master, settings, ever):
    configured(**settings)
    monkeypatch.setattr(spark.sparkContext, "master", master)
    assert find_slots(spark).ever == ever


def encrypted(folder: str) -> list[Any]:
    """A driver whose session encrypts its traffic, without and with the permission to run."""
    secret = {"authenticate": "true", "authenticate__secret": "of these tests"}
    with session(folder, **secret, network__crypto__enabled="true", io__encryption__enabled="true") as spark:
        with pytest.raises(InvalidInput, match="allowUnencrypted=True"):
            SparkCluster(spark, 2).gang(work.total)
        return SparkCluster(spark, 2, allow_unencrypted=True).gang(work.total)


@pytest.mark.slow
def test_cluster_that_encrypts(driver, tmp_path):
    assert driver(encrypted, tmp_path, timeout=580).result == [[3.0, 3.0]] * 2


# ---- waits -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wait_for_occupied_slots_times_out_or_ends_with_their_release(spark, tmp_path):
    events: list[Event] = []

    def listener(event: Event) -> None:
        events.append(event)
        release()

    with held(spark, tmp_path / "pipe") as (job, release):
        with pytest.raises(ClusterUnavailable, match="other jobs held the task slots for"):
            SparkCluster(spark, 2, resource_timeout=3.0).gang(work.total, listener=events.append)
        assert not job.done()
        active = spark.sparkContext.statusTracker().getActiveJobsIds
        until(lambda: len([*active()]) == 1, "the end of the cancelled job")  # Spark's status lags behind
        waits = {(event.kind, event.rank, event.payload["what"]) for event in events}
        assert waits == {("waiting", -1, "2 free task slots")}
        seconds = [event.payload["seconds"] for event in events]
        assert seconds == sorted(seconds)
        events.clear()
        assert SparkCluster(spark, 2).gang(work.total, listener=listener) == [(3.0, 3.0)] * 2
    assert events[0].kind == "waiting"
    assert "started" in [event.kind for event in events]


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "one job"])
def test_computing_data_is_no_wait_for_slots(spark, tmp_path, adaptive):
    # Without adaptive execution the stage that waits for the data has no running task either: once every gang whose
    # data took longer than resource_timeout was cancelled.
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def slow(value: int) -> int:
        if value == 0:
            read(pipe)
        return value

    data = spark.range(0, 8, 1, 2).select(F.udf(slow, "long")("id").alias("x"))
    events: list[Event] = []
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        with ThreadPoolExecutor(1) as pool:
            gang = SparkCluster(spark, 2, resource_timeout=1.5).gang
            job = pool.submit(gang, work.rows, data, ["x"], listener=events.append)
            writer = os.open(pipe, os.O_WRONLY)  # returns once the data is being computed
            try:
                with pytest.raises(TimeoutError):
                    job.result(4)
                assert [event for event in events if event.kind == "waiting"] == []
            finally:
                os.close(writer)
            job.exception(60)  # on a busy machine the gang may exceed its 1.5 s afterwards
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


def test_wait_for_executors(spark, monkeypatch):
    reports: list[str] = []
    offers = iter([Capacity(0, None), Capacity(1, None), Capacity(2, None)])
    monkeypatch.setattr(resources, "find_slots", lambda spark, requests: next(offers))
    wait_for_slots(spark, 2, timeout=60, report=lambda what, seconds: reports.append(what))
    assert reports == ["0 of 2 task slots", "1 of 2 task slots"]
    monkeypatch.setattr(resources, "find_slots", lambda spark, requests: Capacity(now=1, ever=None))
    with pytest.raises(ClusterUnavailable, match=r"the executors offer 1\. Add executors"):
        wait_for_slots(spark, 2, timeout=0.6, report=lambda what, seconds: None)


def test_stop_request_ends_wait_for_executors(spark, monkeypatch):
    monkeypatch.setattr(
        resources, "find_slots", lambda spark, requests: request_stop("maintenance") or Capacity(0, None)
    )
    try:
        with pytest.raises(Stopped, match=r"asked to stop \(maintenance\)"):
            Supervisor(SparkCluster(spark, 2, resource_timeout=200)).gang(work.who)
    finally:
        forget_stop()


# ---- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *OTHERS[:1]])
def test_network_of_executors_or_of_the_setting(spark, configured, name):
    if name:
        configured(sparkdl__network=name)
    values = SparkCluster(spark, 2).gang(lambda *place: (os.environ["GLOO_SOCKET_IFNAME"], work.total(*place)))
    assert values == [(name or "lo", (3.0, 3.0))] * 2


def test_unknown_network_raises(spark, configured):
    configured(sparkdl__network="nowhere7")
    with pytest.raises(InvalidInput, match="'nowhere7' is neither an interface nor an address of this host"):
        SparkCluster(spark, 2).gang(work.total)


def test_requests_without_effect_make_no_profile(spark):
    assert TaskResources.of_training(spark, "cuda", cpus=1, gpus=None).profile(spark) is None
    assert find_slots(spark, TaskResources(cpus=1)) == find_slots(spark)
    with pytest.raises(InvalidInput, match=r"taskGpus is 1.5; expected a whole number, or a fraction below 1"):
        TaskResources(gpus=1.5)
    with pytest.raises(ClusterUnavailable, match=r"the configuration allows 0: .*taskCpus = 2"):
        SparkCluster(spark, 1, task_cpus=2).gang(work.who)
    assert SparkCluster(spark, 1, task_cpus=2).capacity() == Capacity(0, 0)


def test_local_mode_has_no_profiles(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "master", "local[4]")
    with pytest.raises(InvalidInput, match=r"the master is 'local\[4\]', which has no resource profiles"):
        TaskResources.of_training(spark, "cpu", cpus=2, gpus=None)
