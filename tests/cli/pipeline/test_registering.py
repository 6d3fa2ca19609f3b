"""Published versions in MLflow, without Spark."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from sparkdl.cli.pipeline.job import publish
from sparkdl.cli.pipeline.registering import register_version, verify_version
from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.registry import Versions
from sparkdl.ml.tracking.registration import Registration

VERIFIED = {"inputs": [["a", "double", 0]], "outputs": [["prediction", "double", 0]], "rows": 1}
METRICS = {"areaUnderROC": {"value": 0.75, "in_use": 0.5}, "areaUnderPR": {"value": 0.25, "in_use": None}}


@pytest.fixture
def versions(tmp_path) -> Versions:
    """Two published versions, of which the later one is in use."""
    versions = Versions(str(tmp_path / "root"))
    for name in ("first", "second"):
        folder = tmp_path / f"root/versions/{name}/model/metadata"
        folder.mkdir(parents=True)
        (folder / "part-00000").write_text("{}")
        versions.complete(name, {"run": f"run of {name}", "date": None})
        versions.publish(name)
    return versions


def test_alias_moves_only_to_the_version_in_use(versions, store):
    registration, mlflow = Registration("week", store), MlflowClient(store)
    for name, number in (("second", "1"), ("first", "2"), ("second", "1")):  # the first one resumes late
        result = {"version": name, "metrics": METRICS}
        assert register_version(registration, versions, result, VERIFIED) == {"name": "week", "version": number}
        assert int(mlflow.get_model_version_by_alias("week", "champion").version) == 1
    version = mlflow.get_model_version("week", "2")
    tags = {"sparkdl.pipeline.run": "run of first", "sparkdl.pipeline.version": "first"}
    assert tags.items() <= version.tags.items()
    assert "sparkdl.pipeline.date" not in version.tags
    figures = {"areaUnderROC": 0.75, "areaUnderROC_in_use": 0.5, "areaUnderPR": 0.25}
    assert mlflow.get_run(version.run_id).data.metrics == figures


def test_deleted_version_is_not_registered(versions, store, capsys):
    result = {"version": "gone", "metrics": {}}
    assert register_version(Registration("week", store), versions, result, VERIFIED) == {}
    assert "the version gone is deleted, and is not registered" in capsys.readouterr().out


def test_version_that_nothing_has_verified_is_not_published(versions, store, tmp_path):
    done = {"version": "first", "metrics": METRICS, "configuration": "c", "published": False, "passed": True}
    message = "the version first cannot be registered: its run had no register"
    with pytest.raises(InvalidInput, match=message):
        publish(done, versions, str(tmp_path / "runs"), Registration("week", store))
    assert versions.current() == "second"
    with pytest.raises(InvalidInput, match=message):
        verify_version(None, versions, "first", str(tmp_path / "nowhere"))
