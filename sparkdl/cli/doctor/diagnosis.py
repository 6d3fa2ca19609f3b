"""Runs the checks in order, each in a limited time and also after failures of others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from sparkdl.cli.doctor import examination
from sparkdl.cli.doctor.check_result import CheckResult
from sparkdl.cli.doctor.checks import (
    Reports,
    channel_check,
    counted,
    disk_check,
    dynamic_allocation_check,
    encryption_check,
    executors_check,
    gloo_check,
    missing_modules,
    registered,
    run_directory_check,
    slots_check,
    versions_check,
)
from sparkdl.cli.doctor.connections import (
    ConnectionReport,
    ConnectionTask,
    WorkerAddress,
    absent_check,
    connections_check,
    interface_check,
    link_check,
)
from sparkdl.cli.doctor.job import collect_each, deadline
from sparkdl.cli.doctor.probes import ChannelProbe, disks
from sparkdl.cluster.group.rendezvous import has_gloo
from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.io.pickling import ship
from sparkdl.net.addresses import split_host
from sparkdl.net.protocol import Endpoint
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.rendezvous import AddressBook, driver_channel
from sparkdl.spark.session import session_of, setting
from sparkdl.spark.slots.capacity import find_slots

_OF_EXECUTORS = ("versions", "gloo", "disk", "driver")
# Seconds for which tasks keep their slots: some, and as long as the driver needs to start the jobs of the others.
_HOLD, _START = 1.0, 0.02


@dataclass
class Diagnosis:
    """The checks of one session; the other attributes are the arguments of ``sparkdl doctor``.

    Attributes:
        run_directory: a probe of the run directory on an executor, true if it is shared; None without one.
    """

    spark: SparkSession
    num_workers: int | None = None
    allow_unencrypted: bool = False
    min_free_gb: float = 1.0
    timeout: float = 20.0
    resource_timeout: float = 120.0
    run_directory: Callable[[], bool] | None = None
    _failed: set[str] = field(default_factory=set, init=False)
    _blocked: str = field(default="", init=False)  # why no executor can be checked
    _missing: Sequence[str] = field(default=(), init=False)  # modules that some executor lacks

    def checks(self) -> Iterator[CheckResult]:
        """Run all checks, and yield each as soon as it is done."""
        for check in self._all():
            if check.status != "ok":
                self._failed.add(check.name)
            yield check

    def _all(self) -> Iterator[CheckResult]:
        yield dynamic_allocation_check(self.spark)
        yield encryption_check(self.spark, allow_unencrypted=self.allow_unencrypted)
        # Under dynamic allocation Spark starts executors on demand.
        yield slots_check(self.spark, self.num_workers, 0.0 if self._dynamic else self.resource_timeout)
        yield from self._executors()
        yield from self._connections()
        yield self._all_reduce()

    @property
    def _dynamic(self) -> bool:
        return "dynamic allocation" in self._failed

    @property
    def _now(self) -> int:
        return find_slots(self.spark).now or 0

    # ---- executors ---------------------------------------------------------------------------------------------------

    def _executors(self) -> Iterator[CheckResult]:
        names = [*_OF_EXECUTORS, *(["run directory"] if self.run_directory else [])]
        known, endpoint, listen_error = registered(self.spark), None, ""
        with ExitStack() as stack:
            try:
                endpoint = stack.enter_context(driver_channel(self.spark, lambda event: None)).endpoint
            except InvalidInput as error:
                listen_error = error.message
            reports, errors = self._examined(endpoint) if self._now or self._dynamic else ([], ["no executor is there"])
        yield executors_check(reports, errors, 1 if self._dynamic else known)
        if not reports:
            self._blocked = "no task could examine the executors"
            yield from (CheckResult(name, "skip", self._blocked) for name in names)
            return
        self._missing = missing_modules(reports)
        yield versions_check(reports, next(examination.examine({}, 0.0, ()))["versions"])
        reports = [report for report in reports if report["versions"]["sparkdl"][0] is not None]
        if not reports:
            yield from (CheckResult(name, "skip", "no executor can import sparkdl") for name in names[1:])
            return
        yield gloo_check(reports)
        yield disk_check(reports, self.min_free_gb)
        yield channel_check(reports, endpoint, listen_error)
        if self.run_directory:
            yield run_directory_check(reports)

    def _examined(self, endpoint: Endpoint | None) -> tuple[Reports, Sequence[str]]:
        calls: dict[str, object] = {"gloo": has_gloo, "disk": disks, "run directory": self.run_directory}
        calls["channel"] = None if endpoint is None else ChannelProbe(endpoint)
        probes = {name: ship(call) for name, call in calls.items() if call is not None}
        session_of(self.spark).share_workers()
        tasks = max(self._now, 1)
        task = partial(examination.examine, probes, _HOLD + _START * tasks)
        cloudpickle.register_pickle_by_value(examination)  # type: ignore[no-untyped-call]
        try:
            jobs = [partial(session_of(self.spark).run_tasks, task, [index]) for index in range(tasks)]
            return collect_each(self.spark, jobs, self.resource_timeout, "the examination of an executor")
        finally:
            cloudpickle.unregister_pickle_by_value(examination)  # type: ignore[no-untyped-call]

    # ---- gangs -------------------------------------------------------------------------------------------------------

    def _connections(self) -> Iterator[CheckResult]:
        names = ("interface", "connections", "link")
        if reason := self._obstacle(["dynamic allocation", "driver"], ["sparkdl"]):
            yield from (CheckResult(name, "skip", reason) for name in names)
            return
        size = max(1, self._now)
        book = AddressBook(size, self.timeout)
        reports, errors = self._connected(size, book)
        if errors:
            yield absent_check([WorkerAddress(**json.loads(line)) for line in book.lines], size, errors)
            yield from (CheckResult(name, "skip", "some workers reported no address") for name in names[1:])
            return
        in_order = [report for _, report in sorted(reports)]
        yield interface_check([report.worker for report in in_order])
        yield connections_check(in_order)
        yield link_check(in_order)

    def _connected(self, size: int, book: AddressBook) -> tuple[list[tuple[int, ConnectionReport]], Sequence[str]]:
        network = setting(self.spark, "spark.sparkdl.network") or None
        peers = tuple(map(split_host, session_of(self.spark).executors()))
        with ExitStack() as stack:
            begin, end = (self._endpoint(one, stack) for one in (book, AddressBook(size, self.timeout)))
            tasks = [ConnectionTask(rank, size, peers, network, begin, end, self.timeout) for rank in range(size)]
            jobs = [partial(session_of(self.spark).run_tasks, task.run, [task.rank], barrier=True) for task in tasks]
            return collect_each(self.spark, jobs, self.timeout, "the rendezvous of the workers")

    def _endpoint(self, book: AddressBook, stack: ExitStack) -> Endpoint:
        channel = stack.enter_context(driver_channel(self.spark, lambda event: None, book.answer))
        stack.callback(book.close)
        return channel.endpoint

    def _all_reduce(self) -> CheckResult:
        name = "all-reduce"
        needed = ("dynamic allocation", "encryption", "gloo", "interface", "connections")
        if reason := self._obstacle(needed, examination.MODULES):
            return CheckResult(name, "skip", reason)
        size = max(1, min(self.num_workers or self._now, self._now))
        cluster = SparkCluster(
            self.spark,
            size,
            timeout=self.timeout,
            resource_timeout=self.timeout,
            allow_unencrypted=self.allow_unencrypted,
            title="sparkdl doctor",
        )
        begin = time.monotonic()
        try:
            with deadline(self.spark, 3 * self.timeout, "an all-reduce"):
                sums = cluster.gang(all_reduce)
        except SparkdlError as error:
            where = f" [{error.context}]" if str(error.context) else ""
            return CheckResult(name, "FAIL", f"{error.message}{where}")
        seconds, expected = time.monotonic() - begin, size * (size + 1) / 2
        if sums != [expected] * size:
            text = f"gloo returned the sums {sums}; expected {expected:g} on each of {size} workers"
            return CheckResult(name, "FAIL", text)
        text = f"gloo summed a tensor over {counted(size, 'worker')}; the gang took {seconds:.1f} s"
        return CheckResult(name, "ok", text)

    def _obstacle(self, checks: Sequence[str], modules: Sequence[str]) -> str:
        if self._blocked:
            return self._blocked
        if lacking := [name for name in modules if name in self._missing]:
            return f"not possible while executors cannot import {', '.join(lacking)}"
        failed = [name for name in checks if name in self._failed]
        return f"not possible while these fail: {', '.join(failed)}" if failed else ""


def all_reduce(world: World, shard: Shard | None) -> float:
    """Sum the workers' ranks, counted from 1."""
    tensor = torch.full((1,), world.rank + 1.0)
    world.group().sum_(tensor)
    return float(tensor)
