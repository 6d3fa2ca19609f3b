"""What sparkdl asks of a session of Spark Connect, and of which kind a session is."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.ml.feature import VectorAssembler

from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.session import qualify, session_of, setting, shared
from sparkdl.spark.session.connect import ConnectSession
from sparkdl.spark.slots.capacity import find_slots
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import choose_shards, choose_workers
from tests.connect.fakes import remote
from tests.sessions import conf


def test_servers_before_spark_4_raise() -> None:
    with pytest.raises(ClusterUnavailable, match=r"the server has Spark 3\.5\.1; expected Spark 4\.0 or later"):
        session_of(remote("3.5.1"))
    assert isinstance(session_of(remote()), ConnectSession)


@pytest.mark.parametrize(
    ("settings", "requests", "slots"),
    [
        ({}, (None, None), 8),
        ({"spark__task__cpus": "3"}, (None, None), 2),
        ({"spark__task__cpus": "3"}, (2, None), 4),
        ({"spark__executor__cores": "4"}, (3, None), 2),
        ({"spark__executor__cores": "4", "spark__executor__resource__gpu__amount": "1"}, (1, 1.0), 2),
        ({"spark__executor__cores": "4", "spark__executor__resource__gpu__amount": "1"}, (1, 0.5), 4),
        ({"spark__default__parallelism": "8"}, (None, None), None),
        ({"spark__sql__leafNodeDefaultParallelism": "8"}, (None, None), None),
        ({"spark__dynamicAllocation__enabled": "true"}, (None, None), None),
        ({"spark__dynamicAllocation__enabled": "false"}, (None, None), 8),
        ({"splits": "?"}, (None, None), None),
        ({"splits": "2", "spark__master": "spark://host:7077"}, (None, None), None),  # or none has registered
        ({"splits": "2", "spark__master": "local-cluster[1,1,1024]"}, (None, None), 1),
        (
            {"splits": "2", "spark__master": "yarn", "spark__executor__instances": "1", "spark__executor__cores": "1"},
            (None, None),
            1,
        ),
        ({"splits": "2", "spark__master": "local[2]"}, (None, None), 2),
        ({"splits": "8", "spark__executor__resource__gpu__amount": "2"}, (None, 1.0), None),
    ],
)
def test_slots_are_the_partitions_of_a_range(settings, requests, slots) -> None:
    assert session_of(remote(**settings)).slots(*requests) == (slots, None)


def test_dynamic_allocation_rejects_gangs_and_hides_the_slots_of_rounds() -> None:
    spark = remote(spark__dynamicAllocation__enabled="true")
    with pytest.raises(ClusterUnavailable, match=r"spark\.dynamicAllocation\.enabled is true, .* no barrier stage"):
        SparkCluster(spark, 2).gang(len)
    with pytest.raises(InvalidInput, match=r"since spark\.dynamicAllocation\.enabled is set\. Set numWorkers\."):
        choose_shards(spark, TaskResources(), device="cpu")


def test_settings_that_a_server_hides_are_unset() -> None:
    def get(name: str, default: str | None) -> str:
        raise AnalysisException(f"[{error}] {name}")

    error, session = "CONFIG_NOT_AVAILABLE", SimpleNamespace(conf=SimpleNamespace(get=get))
    assert setting(session, "spark.task.cpus") == ""  # type: ignore[arg-type]
    error = "OTHER"
    with pytest.raises(AnalysisException):
        setting(session, "spark.task.cpus")  # type: ignore[arg-type]


def test_work_that_no_query_carries_raises_before_a_query() -> None:
    work = partial(bytes, bytes(80_000_000))
    with pytest.raises(
        InvalidInput, match=r"work has 80 MB, .* at most 67 MB\. If the model is a module, set a factory"
    ):
        SparkCluster(remote(), 2).gang(work)  # type: ignore[arg-type]


def test_server_has_two_slots(spark: Any) -> None:
    found = find_slots(spark)
    assert (found.now, found.ever) == (2, None)
    assert find_slots(spark, TaskResources(cpus=2)).now == 1
    assert choose_workers(spark.range(60), 30, TaskResources()) == 2
    assert session_of(spark).parallelism() == 2
    assert session_of(spark).master() == "local-cluster[2,1,1024]"
    with (
        conf(spark, "spark.sql.leafNodeDefaultParallelism", "7"),
        pytest.raises(InvalidInput, match=r"since spark\.sql\.leafNodeDefaultParallelism is set\. Set numWorkers\."),
    ):
        choose_workers(spark.range(60), 30, TaskResources())


def test_executors_need_no_packages_of_a_client() -> None:
    code = (
        "import sys, sparkdl.ml.broadcast, sparkdl.spark.barrier; print(*{'grpc', 'google.protobuf'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


@pytest.mark.parametrize(
    ("interval", "idle"),
    [
        ("", 5.0),
        ("2s", 5.0),
        ("2000", 5.0),
        ("500ms", 5.0),
        ("10s", 25.0),
        ("5m", 750.0),
        ("1min", 150.0),
        ("0", None),
        ("-1", None),
        ("soon", None),
    ],
)
def test_gang_waits_if_reports_show_no_task_for_two_and_a_half_intervals(
    interval: str, idle: float | None, monkeypatch: Any
) -> None:
    spark, now = remote(spark__connect__progress__reportInterval=interval), 100.0
    monkeypatch.setattr("sparkdl.spark.session.connect.time", SimpleNamespace(monotonic=lambda: now))
    session, waits = session_of(spark), None if idle is None else "waiting"
    assert session.state("gang") is None
    with session.tagged("gang"):
        now += idle or 1e6
        assert session.state("gang") is None
        now += 0.1
        assert session.state("gang") == waits
        assert session.tasks("gang") is None
        spark.report(2, (3, 5), (0, 2))
        assert session.tasks("gang") == (2, 3, 7)
        now += 1e6
        assert session.state("gang") is None
        spark.report(0, (5, 5), (0, 2))
        now += 2 * (idle or 1e6)
        spark.report(0, (5, 5), (0, 2), done=True)
        assert session.state("gang") == waits
    assert session.state("gang") is session.tasks("gang") is None


def test_reports_of_other_queries_are_no_gang_s() -> None:
    spark = remote("4.0.1")
    session = session_of(spark)
    with session.tagged("gang"):
        spark.removeTag("gang")  # as in the thread of another query
        spark.report(2, (3, 5))
        assert session.tasks("gang") is None
        spark.addTag("gang")


def test_threads_without_a_session_share_a_profile(spark: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: session_of(spark).profile(1, None), range(2))
    assert one is other is not None
    rows = spark.range(2).mapInArrow(lambda batches: batches, "id long", profile=one)
    assert sorted(row.id for row in rows.collect()) == [0, 1]


def test_rows_are_counted_up_to_a_limit(spark: Any) -> None:
    assert [session_of(spark).count_rows(spark.range(50), limit) for limit in (40, 60)] == [40, 50]


def test_tasks_get_a_number_each(spark: Any) -> None:
    def task(numbers: Any) -> Any:
        yield from (number * 10 for number in numbers)

    assert sorted(session_of(spark).run_tasks(task, [3, 5])) == [30, 50]
    assert session_of(spark).run_tasks(task, [7], barrier=True) == [70]


def test_bytes_arrive_in_tasks(spark: Any, monkeypatch: Any) -> None:
    session = session_of(spark)
    packed = session.share(b"some")

    def sizes(numbers: Any) -> Any:
        yield from (len(shared(packed)) for _ in numbers)

    assert session.run_tasks(sizes, [0, 1]) == [4, 4]
    monkeypatch.setattr("sparkdl.spark.session.connect._MOST_BYTES", 3)
    with pytest.raises(InvalidInput, match="a query of Spark Connect carries at most"):
        session.share(b"some")


def test_schemas_come_from_empty_rows_and_paths_stay(spark: Any) -> None:
    frame, stage = spark.range(2).selectExpr("id AS a"), VectorAssembler(inputCols=["a"], outputCol="v")
    assert session_of(spark).transformed_schema(stage, frame) == stage.transform(frame).schema
    assert qualify(spark, "/data/x") == "/data/x"
