"""docs/pipeline.md: a published model."""

from __future__ import annotations

from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.functions import array_to_vector

from sparkdl.ml.persistence.registry import Versions
from tests.docs.digits import frames


def page(execute, folder, spark):
    versions = Versions(f"{folder}/models/adult")
    train = frames(spark)["train"]
    train = train.withColumn("features", array_to_vector(train["features"].cast("array<double>")))
    Pipeline(stages=[LogisticRegression(maxIter=2)]).fit(train).save(versions.model("2026-11-22"))
    versions.complete("2026-11-22", {"date": "2026-11-22"})
    versions.publish("2026-11-22")
    found = execute({"spark": spark})
    assert found["name"] == "2026-11-22"
    assert found["model"].transform(train).where("prediction = label").count() > 0
