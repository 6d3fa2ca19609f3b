"""Metadata without a Spark job: pyspark reads it, Spark's own is read, and files that only Spark sees raise."""

import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.param import Params
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLWritable, MLWriter
from pyspark.sql import SparkSession

from sparkdl import Bagging, EnsembleModel, InvalidInput, TorchModel, TorchRegressor
from sparkdl.io.weights import pack
from sparkdl.ml.persistence import metadata_files
from sparkdl.ml.persistence.metadata_files import lines
from sparkdl.ml.persistence.reader_writer import load_saved
from tests.ml import nets


def model():
    return TorchModel(factory=nets.Line, weights=pack(nets.Line()), kind="regressor").setPredictionCol("p")


def stages(last):
    return [VectorAssembler(inputCols=["a"], outputCol="features"), last]


def test_saves_and_loads_start_no_job(spark, tmp_path):
    context, group = spark.sparkContext, "saves and loads"
    context.setJobGroup(group, "")
    try:
        for instance in (model(), EnsembleModel([model(), model()], rule="mean"), Bagging(base=TorchRegressor())):
            path = str(tmp_path / type(instance).__name__)
            instance.save(path)
            instance.write().session(spark).overwrite().option("compression", "none").save(path)
            assert type(instance).load(path).uid == load_saved(path, spark).uid == instance.uid
        assert list(context.statusTracker().getJobIdsForGroup(group)) == []
        spark.range(1).collect()
        assert len(context.statusTracker().getJobIdsForGroup(group)) == 1
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def test_pyspark_reads_metadata_as_its_own(spark, tmp_path):
    instance, path = model(), str(tmp_path / "model")
    instance.save(path)
    DefaultParamsWriter.saveMetadata(instance, f"{path}s", spark)
    ours, pysparks = (DefaultParamsReader.loadMetadata(one, spark) for one in (path, f"{path}s"))
    assert isinstance(ours.pop("timestamp"), int)
    assert ours.pop("sparkdl")["format"] == 5
    del pysparks["timestamp"]
    assert ours == pysparks
    assert DefaultParamsReader.loadParamsInstance(path, spark).uid == instance.uid
    for kind, last in ((Pipeline, TorchRegressor()), (PipelineModel, instance)):
        kind(stages=stages(last)).save(f"{path}{kind.__name__}")
        loaded = kind.load(f"{path}{kind.__name__}")
        assert (loaded.stages if kind is PipelineModel else loaded.getStages())[1].uid == last.uid


@pytest.mark.parametrize("codec", ["none", "gzip", "bzip2", "deflate", "snappy", "lz4"])
def test_metadata_that_spark_wrote_is_read(spark, tmp_path, codec):
    instance, path = model(), tmp_path / "model[1]"
    instance.save(path)
    text = (path / "metadata/part-00000").read_text().strip()
    shutil.rmtree(path / "metadata")
    spark.createDataFrame([(text,)], ["value"]).coalesce(1).write.option("compression", codec).text(f"{path}/metadata")
    assert len([*(path / "metadata").iterdir()]) == 4  # with _SUCCESS and checksums
    assert TorchModel.load(path).uid == load_saved(str(path), spark).uid == instance.uid
    assert [name for name, _ in lines(str(tmp_path), spark)] == ["model[1]/metadata"]


NAMES = {
    **dict.fromkeys(("part-00000", "b", "c.txt", "_a=1", "g=1/part-1"), True),
    **dict.fromkeys((".part-00000.crc", "_SUCCESS", "_committed_12", "_metadata"), False),
}


def test_lines_are_those_that_spark_reads(spark, tmp_path):
    for name in NAMES:
        file = tmp_path / "one/metadata" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(f'{{"name": "{name}"}}\r\n\n{{"name": "{name} \u2028"}}')
    shutil.copytree(tmp_path / "one/metadata", tmp_path / "two/metadata/three/metadata")
    hidden = tmp_path / "three/metadata/_metadata/k=1/part-1"  # which Spark reads if it takes k for a partition
    hidden.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "one/metadata/b", hidden)
    rows = [*lines(str(tmp_path), spark)]
    assert {folder for folder, _ in rows} == {"one/metadata", "two/metadata/three/metadata", "three/metadata"}
    expected = sorted([name for name, visible in NAMES.items() if visible] * 2)
    assert sorted(row["name"].strip(" \u2028") for folder, row in rows if folder == "one/metadata") == expected
    for name, visible in NAMES.items():  # Spark has no common schema for a mix of them
        alone = tmp_path / "alone" / name
        alone.parent.mkdir(parents=True)
        shutil.copy(tmp_path / "one/metadata" / name, alone)
        text = [row.value for row in spark.read.text(str(tmp_path / "alone")).collect()]
        assert [json.loads(line)["name"] for line in filter(None, text)] == [name, f"{name} \u2028"] * visible
        shutil.rmtree(tmp_path / "alone")


# ---- files that only Spark sees --------------------------------------------------------------------------------------


class Elsewhere(Params, MLWritable):
    """A model whose writer leaves at most the folder of its metadata to this process."""

    def write(self):
        writer = MLWriter()
        writer.saveImpl = lambda path: self.leave(Path(path.removeprefix("file:")))
        return writer

    def leave(self, path):
        """Write nothing."""


class OnExecutor(Elsewhere):
    """On a cluster, the driver marks a folder as complete whose file an executor has."""

    def leave(self, path):
        path.joinpath("metadata").mkdir(parents=True)
        path.joinpath("metadata/_SUCCESS").touch()


@pytest.mark.parametrize("part", [Elsewhere, OnExecutor])
@pytest.mark.parametrize(("classic", "writer"), [(True, "an executor"), (False, "the Spark server")])
def test_parts_that_this_process_does_not_see_raise(spark, tmp_path, monkeypatch, part, classic, writer):
    monkeypatch.setattr(metadata_files, "is_remote", lambda: not classic)
    ensemble = EnsembleModel([model(), model()], rule="mean")
    ensemble.models[1] = part()
    message = rf"{writer} wrote \S+/members/00001 to its own files; expected a path .*, such as s3:// or /Volumes"
    with pytest.raises(InvalidInput, match=message):
        ensemble.save(str(tmp_path / "ensemble"))
    assert not [*tmp_path.iterdir()]


def test_pipelines_that_this_process_does_not_see_raise(spark, tmp_path, monkeypatch):
    save, path = Mock(), str(tmp_path / "pipeline")
    monkeypatch.setattr(DefaultParamsWriter, "saveMetadata", save)
    with pytest.raises(InvalidInput, match=rf"an executor wrote \S*{path} to its own files"):
        PipelineModel([model()]).save(path)
    assert save.call_args.args[1] == path
    assert not [*tmp_path.iterdir()]
    model().save(f"{path}/stages/0_mine")  # a path of the user, and no pipeline's


def saved_over_connect(folder):
    """Save and load in a session of Spark Connect, whose server has another current folder."""
    for name in ("server", "client"):
        os.makedirs(f"{folder}/{name}")
    os.chdir(f"{folder}/server")
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    instance, estimator, path = model(), TorchRegressor(model=nets.Line, epochs=3), os.path.join(folder, "shared")
    instance.save(path)
    pipeline = Pipeline(stages=stages(estimator))
    pipeline.save(f"{path}/pipeline")
    fitted = EnsembleModel([PipelineModel(stages(instance))], rule="mean")
    for _ in range(2):
        fitted.write().overwrite().save(f"{path}/ensemble")
    loaded = [
        *(TorchModel.load(path), DefaultParamsReader.loadParamsInstance(path, spark)),
        *(one.getStages()[1] for one in (Pipeline.load(f"{path}/pipeline"), load_saved(f"{path}/pipeline", spark))),
        EnsembleModel.load(f"{path}/ensemble").models[0].stages[1],
    ]
    uids = [one.uid for one in (instance, instance, estimator, estimator, instance)]
    os.chdir(f"{folder}/client")
    errors = []
    for one in (pipeline, fitted):
        with pytest.raises(InvalidInput) as caught:
            one.save("unshared")
        errors.append(str(caught.value))
    instance.save("mine")
    return [[one.uid for one in loaded] == uids, errors, os.listdir()]


@pytest.mark.slow
def test_pipelines_and_models_are_saved_over_connect(driver, tmp_path):
    pytest.importorskip("grpc_status", reason="Spark Connect's packages are not installed")
    equal, errors, left = driver(saved_over_connect, str(tmp_path)).result
    assert equal
    assert left == ["mine"]
    expected = "the Spark server wrote {} to its own files; expected a path that it shares with this process, such as"
    for error, path in zip(errors, ("unshared", r"unshared\.\w+\.tmp/members/00000"), strict=True):
        assert re.match(expected.format(path), error)
