"""docs/trackers.md: rows, a model, and a store of MLflow in a folder."""

from __future__ import annotations

import mlflow
import pandas
import pytest

from tests.docs.digits import Net, frames


def page(execute, folder, spark):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
            patch.setenv(name, "true")
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri((folder / "store").as_uri())
        try:
            execute({"Net": Net, "mlflow": mlflow, "pandas": pandas, **frames(spark)})
        finally:
            mlflow.set_tracking_uri(before)
    assert list((folder / "runs/digits/tb").glob("**/events.out.*"))
