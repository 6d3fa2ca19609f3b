"""Registers a published version in MLflow, once, and verifies it before it is published."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cli.pipeline.stage_log import Ledger
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.persistence.registry import Versions
from sparkdl.ml.tracking.pipeline_model import VerifiedColumns, verify
from sparkdl.ml.tracking.registration import Registration

_TAG = "sparkdl.pipeline."  # before the names of the run and of its date


def verify_version(spark: SparkSession, versions: Versions, name: str, rows: str) -> dict[str, Any]:
    """Compare a version's predictions without Spark with Spark's, on validation rows; return its columns as JSON.

    Raises:
        InvalidInput: the validation rows are deleted, or a stage cannot be served without Spark.
        SparkdlError: the predictions differ.
    """
    if not files.exists(rows):
        raise not_verified(name)
    return {"version": name, **verify(versions.model(name), spark.read.parquet(rows)).json()}


def not_verified(name: str) -> InvalidInput:
    """The error of a version whose run had no ``register``."""
    return InvalidInput(
        f"the version {name} cannot be registered: its run had no register, and its validation rows are deleted. "
        "--redo trains it again."
    )


def register_once(
    ledger: Ledger, registration: Registration | None, versions: Versions, result: dict[str, Any]
) -> dict[str, Any] | None:
    """Register a run's version as ``register_version`` does, unless the ledger has it already.

    Returns:
        ``name`` and ``version`` of the registered model; None without ``registration``, or if nothing was registered.
    """
    verified = ledger.result("verify")
    if registration is None or verified is None:
        return None
    registered = ledger.stage(
        "register",
        lambda: register_version(registration, versions, result, verified),
        lambda earlier: not earlier or earlier["name"] == registration.name,
    )
    return registered or None


def register_version(
    registration: Registration, versions: Versions, result: dict[str, Any], verified: dict[str, Any]
) -> dict[str, Any]:
    """Register the version of a run's result; if it is in use, move the alias to it.

    Args:
        registration: the registered model.
        versions: the published versions.
        result: with ``version`` and ``metrics``.
        verified: the result of ``verify_version``.

    Returns:
        ``name`` and ``version`` of the registered model; empty if later runs have deleted the version.
    """
    name = result["version"]
    if not versions.is_complete(name):
        print(f"the version {name} is deleted, and is not registered", flush=True)
        return {}
    about = versions.about(name)
    tags = {f"{_TAG}{key}": str(about[key]) for key in ("run", "date") if about.get(key) is not None}
    metrics = {}
    for metric, values in result["metrics"].items():
        metrics[metric] = values["value"]
        if values["in_use"] is not None:
            metrics[f"{metric}_in_use"] = values["in_use"]
    columns = VerifiedColumns.of(verified)
    registered = registration.log(versions.model(name), columns, version=name, metrics=metrics, tags=tags)
    if versions.current() == name:  # a killed run may resume after a later one has published
        registration.point(registered)
    return dict(registered)
