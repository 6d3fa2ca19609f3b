"""What a cluster can supply is asked beforehand; what it has to be waited for is said, and not waited for for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from pyspark.sql import functions as F

from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import ClusterUnavailable, InvalidInput, Stopped
from sparkdl.spark import cluster as spark_cluster
from sparkdl.spark import resources
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.resources import find_slots, wait_for_slots
from sparkdl.telemetry.event import Event
from tests.contracts import work
from tests.spark import drivers
from tests.spark.work import Held, Slow, interface

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def configured(monkeypatch):
    """Makes sparkdl see other settings than the session has, for one test."""

    def configure(**settings: str) -> None:
        given = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
        original = resources.setting

        def setting(spark, name):
            return given[name] if name in given else original(spark, name)

        monkeypatch.setattr(resources, "setting", setting)
        monkeypatch.setattr(spark_cluster, "setting", setting)

    return configure


@contextmanager
def held(spark, path, size: int) -> Iterator[tuple[Future[Any], Any]]:
    """Another job of ``size`` members that holds its slots until the block ends, or the function given is called."""
    for rank in range(size):
        os.mkfifo(f"{path}.{rank}")
    pipes: list[int] = []

    def release() -> None:
        while pipes:
            os.close(pipes.pop())

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(SparkCluster(spark, size).gang, Held(str(path)))
        try:
            # Opening a pipe for writing waits for its reader: the members are there when it returns.
            pipes.extend(os.open(f"{path}.{rank}", os.O_WRONLY) for rank in range(size))
            yield job, release
        finally:
            release()
            assert job.result(120) == list(range(size))


# ---- what can never be ---------------------------------------------------------------------------------------------


def never(*_: object, **__: object) -> None:
    raise AssertionError("nothing is waited for that can never be")


def test_too_few_slots_fail_at_once_with_the_numbers(spark, monkeypatch):
    monkeypatch.setattr(spark_cluster, "wait_for_slots", never)
    monkeypatch.setattr(spark_cluster, "JobWatch", never)
    events: list[Event] = []
    with pytest.raises(ClusterUnavailable) as caught:
        SparkCluster(spark, 3).gang(work.who, listener=events.append)
    assert "3 members need 3 task slots" in str(caught.value)
    assert "allows for 2" in str(caught.value)
    assert "local-cluster[2,1,1024]" in str(caught.value)
    assert "numWorkers" in str(caught.value)
    assert events == []


def test_tasks_of_several_cores_are_fewer(spark, configured):
    configured(task__cpus="2")
    with pytest.raises(ClusterUnavailable, match=r"allows for 0: .*spark\.task\.cpus = 2"):
        SparkCluster(spark, 1).gang(work.who)


def test_slots(spark):
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
def test_slots_that_a_configuration_allows_for(spark, configured, monkeypatch, master, settings, ever):
    configured(**settings)
    monkeypatch.setattr(spark.sparkContext, "master", master)
    assert find_slots(spark).ever == ever


def test_dynamic_allocation_is_refused(spark, configured):
    configured(dynamicAllocation__enabled="true")
    for ask in (partial(SparkCluster(spark, 1).gang, work.who), SparkCluster(spark, 1).capacity):
        with pytest.raises(ClusterUnavailable, match=r"spark\.dynamicAllocation\.enabled=false"):
            ask()


@pytest.mark.parametrize("name", ["network__crypto__enabled", "ssl__enabled", "io__encryption__enabled"])
def test_plain_text_beside_encryption_has_to_be_allowed(spark, configured, name):
    configured(**{name: "true"})
    with pytest.raises(InvalidInput, match="allowUnencrypted=True") as caught:
        SparkCluster(spark, 1).gang(work.who)
    assert str(caught.value).startswith(f"spark.{name.replace('__', '.')} is on")
    with pytest.raises(InvalidInput, match="allowUnencrypted=True"):
        SparkCluster(spark, 1).capacity()
    with pytest.raises(InvalidInput, match="allowUnencrypted=True"):  # the rows lie on executors' disks as well
        SparkCluster(spark, 1).map_reduce(spark.range(2), ["id"])
    resources.check(spark, 1, allow_unencrypted=True)


@pytest.mark.slow
def test_on_a_cluster_that_really_encrypts(driver, tmp_path):
    found = driver(drivers.encrypted, tmp_path, timeout=230).result
    assert found["refused"] == "InvalidInput"
    assert found["allowed"] == [[3.0, 3.0]] * 2


# ---- what has to be waited for -------------------------------------------------------------------------------------


def waiting(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.rank, event.payload["what"]) for event in events if event.kind == "waiting"]


@pytest.mark.slow
def test_slots_that_stay_taken_are_not_waited_for_for_ever(spark, tmp_path):
    events: list[Event] = []
    with held(spark, tmp_path / "pipe", 1) as (job, _):
        with pytest.raises(ClusterUnavailable, match="other jobs held the task slots for"):
            SparkCluster(spark, 2, resource_timeout=3.0).gang(work.total, listener=events.append)
        assert not job.done()
        assert len(list(spark.sparkContext.statusTracker().getActiveJobsIds())) == 1
    assert set(waiting(events)) == {(-1, "2 free task slots")}
    seconds = [event.payload["seconds"] for event in events]
    assert seconds == sorted(seconds)
    assert [event for event in events if event.kind == "started"] == []
    assert SparkCluster(spark, 2).gang(work.total) == [(3.0, 3.0)] * 2


@pytest.mark.slow
def test_slots_that_become_free_are_taken(spark, tmp_path):
    events: list[Event] = []
    with held(spark, tmp_path / "pipe", 1) as (_, release):

        def listener(event: Event) -> None:
            events.append(event)
            release()

        assert SparkCluster(spark, 2).gang(work.total, listener=listener) == [(3.0, 3.0)] * 2
    assert events[0].kind == "waiting"
    assert "started" in [event.kind for event in events]


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "one job"])
def test_to_compute_the_data_is_not_to_wait_for_slots(spark, tmp_path, adaptive):
    # Once it was, without adaptive execution: there the stage that waits for the data is part of the job from the
    # start and has no running task either, so that every gang whose data took longer than resource_timeout was
    # cancelled.
    os.mkfifo(tmp_path / "pipe")
    data = spark.range(0, 8, 1, 2).select(F.udf(Slow(str(tmp_path / "pipe")), "long")("id").alias("x"))
    events: list[Event] = []
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        with ThreadPoolExecutor(1) as pool:
            gang = SparkCluster(spark, 2, resource_timeout=1.5).gang
            job = pool.submit(gang, work.rows, data, ["x"], listener=events.append)
            pipe = os.open(tmp_path / "pipe", os.O_WRONLY)  # returns when the data is being computed
            try:
                with pytest.raises(TimeoutError):
                    job.result(4)
                assert waiting(events) == []
            finally:
                os.close(pipe)
            job.exception(60)  # for what comes then a second and a half may be too little on a busy machine
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


def test_executors_that_never_come(spark, monkeypatch):
    monkeypatch.setattr(resources, "find_slots", lambda spark: Capacity(now=1, ever=None))
    reports: list[tuple[str, float]] = []
    with pytest.raises(ClusterUnavailable, match=r"the executors offer 1\. Start more executors"):
        wait_for_slots(spark, 2, timeout=0.6, report=lambda what, seconds: reports.append((what, seconds)))
    assert {what for what, _ in reports} == {"1 of 2 task slots"}


def test_executors_that_come_late(spark, monkeypatch):
    offers = iter([Capacity(0, None), Capacity(1, None), Capacity(2, None)])
    monkeypatch.setattr(resources, "find_slots", lambda spark: next(offers))
    reports: list[str] = []
    wait_for_slots(spark, 2, timeout=60, report=lambda what, seconds: reports.append(what))
    assert reports == ["0 of 2 task slots", "1 of 2 task slots"]


# ---- the network ---------------------------------------------------------------------------------------------------


def test_the_network_is_that_of_the_executors_address(spark):
    assert SparkCluster(spark, 2).gang(interface) == [{"interface": "lo", "total": 2.0}] * 2


def others() -> list[str]:
    from sparkdl.cluster.group.network import _owned

    return [name for name, addresses in _owned().items() if name != "lo" and addresses]


@pytest.mark.skipif(not others(), reason="there is no other interface than lo")
def test_another_network_can_be_asked_for(spark, configured):
    name = others()[0]
    configured(sparkdl__network=name)
    assert SparkCluster(spark, 2).gang(interface) == [{"interface": name, "total": 2.0}] * 2


def test_a_network_that_is_not_there_is_invalid_input(spark, configured):
    configured(sparkdl__network="nowhere7")
    with pytest.raises(InvalidInput, match="'nowhere7' is neither an interface nor an address of this host"):
        SparkCluster(spark, 2).gang(work.total)


def test_a_request_to_stop_ends_the_wait_for_executors(spark, monkeypatch):
    def none_yet(spark: Any) -> Capacity:
        request_stop("maintenance")
        return Capacity(0, None)

    monkeypatch.setattr(resources, "find_slots", none_yet)
    try:
        with pytest.raises(Stopped, match=r"asked to stop \(maintenance\)"):
            Supervisor(SparkCluster(spark, 2, resource_timeout=200)).gang(work.who)
    finally:
        forget_stop()
