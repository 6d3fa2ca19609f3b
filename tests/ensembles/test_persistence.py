"""Ensembles on disk: a model with its members, an estimator with its bases, whole or not at all."""

from __future__ import annotations

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark.ml import Estimator, Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.util import MLReadable, MLWritable

from sparkdl import TorchClassifier
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.base_learner import leaf
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from sparkdl.ml.param_declaration import param
from sparkdl.ml.param_types import to_int
from sparkdl.ml.persistence import reader_writer
from tests.ml import nets
from tests.sessions import frame

pytestmark = pytest.mark.slow

X = np.random.default_rng(0).normal(size=(30, 3))
HISTORY = [{"member": 0, "loss": 0.5}, {"member": 1, "loss": 0.25}]


def rows():
    label = (X.sum(1) > 0).astype(np.float64)
    return frame({"row": np.arange(30), "x": X, "label": label}).withColumn("features", array_to_vector("x"))


def member(factory=nets.scores, kind="classifier"):
    module = factory if isinstance(factory, nets.nn.Module) else factory()
    return TorchModel(factory=factory, weights=pack(module), kind=kind).setInputCols(["x"])


def made(**others):
    given = {"rule": "soft", "weights": [0.1, 0.7], "history": HISTORY, "report": {"seconds": 1.5}} | others
    return EnsembleModel([member(), member()], **given).setDisagreementCol("apart").setThresholds([0.1, 0.2, 0.3])


def predictions(model):
    return [tuple(row) for row in model.transform(rows()).orderBy("row").select("prediction").collect()]


def test_what_was_saved_is_loaded(spark, tmp_path):
    model, path = made(numClasses=3), tmp_path / "model"
    model.save(str(path))
    assert {entry.name for entry in path.iterdir()} == {"metadata", "members"}
    assert sorted(entry.name for entry in (path / "members").iterdir()) == ["00000", "00001"]
    loaded = EnsembleModel.load(str(path))
    for name in ("uid", "rule", "weights", "intercept", "numClasses", "history", "report"):
        assert getattr(loaded, name) == getattr(model, name)
    assert (loaded.getDisagreementCol(), loaded.getThresholds()) == ("apart", [0.1, 0.2, 0.3])
    assert [one.uid for one in loaded.models] == [one.uid for one in model.models]
    assert predictions(loaded) == predictions(model)
    (part,) = path.glob("metadata/part-*")
    assert json.loads(part.read_text())["class"] == "sparkdl.ensembles.model.EnsembleModel"


def test_members_of_any_kind_are_saved_and_the_pipeline_around_them(spark, tmp_path):
    fitted = LogisticRegression(maxIter=2).fit(rows())
    inner = EnsembleModel([member(nets.column)], rule="soft")
    model = PipelineModel([EnsembleModel([fitted, PipelineModel([fitted]), inner, member(nets.column)], rule="hard")])
    model.save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    kinds = [type(one).__name__ for one in loaded.stages[0].models]
    assert kinds == ["LogisticRegressionModel", "PipelineModel", "EnsembleModel", "TorchModel"]
    assert predictions(loaded) == predictions(model)


def test_pickled_members_need_trust(spark, tmp_path):
    model, path = EnsembleModel([member(nets.Line(), "regressor")], rule="mean"), str(tmp_path / "model")
    with pytest.warns(UserWarning, match="saved as a pickle"):
        model.save(path)
    with pytest.raises(InvalidInput, match=r"members/00000 has pickled parts, .*trust=True.*spark.sparkdl.trust"):
        EnsembleModel.load(path)
    assert predictions(EnsembleModel.load(path, trust=True)) == predictions(model)
    outer = str(tmp_path / "outer")
    with pytest.warns(UserWarning, match="saved as a pickle"):
        EnsembleModel([model], rule="sum").save(outer)
    assert predictions(EnsembleModel.load(outer, trust=True)) == predictions(model)


def in_pipeline(last, kind=PipelineModel):
    """A stage of this library behind one of pyspark.ml, and a pipeline within the pipeline."""
    assembler = VectorAssembler(inputCols=["label"], outputCol="assembled")
    return kind(stages=[kind(stages=[assembler]), kind(stages=[assembler.copy({assembler.outputCol: "again"}), last])])


def test_trust_is_handed_on_to_stages_of_pipelines(spark, tmp_path):
    model, path = EnsembleModel([in_pipeline(member(nets.Line(), "regressor"))], rule="mean"), str(tmp_path / "model")
    with pytest.warns(UserWarning, match="saved as a pickle"):
        model.save(path)
    with pytest.raises(InvalidInput, match=r"stages/1_\w+ has pickled parts, .*trust=True"):
        EnsembleModel.load(path)
    loaded = EnsembleModel.load(path, trust=True)
    assert predictions(loaded) == predictions(model)
    assert [loaded.models[0].uid, loaded.models[0].stages[1].uid] == [
        model.models[0].uid,
        model.models[0].stages[1].uid,
    ]
    base, path = in_pipeline(TorchClassifier(model=lambda: nets.mlp(3, outputs=3)), Pipeline), str(tmp_path / "base")
    Bagging(base=base).save(path)
    with pytest.raises(InvalidInput, match=r"has pickled parts, .*\['model'\]"):
        Bagging.load(path)
    again = Bagging.read().trust().load(path).getBase()
    assert (type(again), again.uid) == (Pipeline, base.uid)
    assert isinstance(leaf(again).getModel()(), nets.nn.Module)


def test_members_that_were_saved_as_programs_give_the_same(spark, tmp_path):
    module = nets.scores()
    models = [
        TorchModel(factory=factory, weights=pack(module), kind="classifier", signature=[([3], "float32")])
        for factory in (lambda: nets.mlp(3, outputs=3), module)
    ]
    for model in models:
        model.setInputCols(["x"])
    made = EnsembleModel(models, rule="soft").setDisagreementCol("apart")
    made.save(str(tmp_path / "model"))
    assert len(list(tmp_path.glob("model/members/*/program.pt2"))) == 2
    loaded = EnsembleModel.load(str(tmp_path / "model"))
    assert not loaded._scorer(loaded.models, (1.0, 1.0)).module().stacked
    chances = []
    for model in (made, loaded):
        chosen = model.transform(rows()).orderBy("row").select(vector_to_array("probability"), "prediction", "apart")
        chances.append(np.array([[*chance, *others] for chance, *others in chosen.collect()]))
    np.testing.assert_allclose(chances[1], chances[0], rtol=1e-5)


def test_a_save_that_fails_replaces_nothing(spark, tmp_path, monkeypatch):
    path = tmp_path / "model"
    made().save(str(path))
    with pytest.raises(InvalidInput, match="exists; use"):
        made(rule="hard").save(str(path))
    whole = reader_writer.DefaultParamsWriter.saveMetadata
    for failing in (1, 3):  # at the first member, and when both have been written
        monkeypatch.setattr(
            reader_writer.DefaultParamsWriter,
            "saveMetadata",
            Mock(side_effect=[*[None] * (failing - 1), OSError("disk full")]),
        )
        with pytest.raises(OSError, match="disk full"):
            made(rule="hard").write().overwrite().save(str(path))
    monkeypatch.setattr(reader_writer.DefaultParamsWriter, "saveMetadata", whole)
    assert EnsembleModel.load(str(path)).rule == "soft"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    made(rule="hard", weights=[2.0, 1.0]).write().overwrite().save(str(path))
    assert EnsembleModel.load(str(path)).rule == "hard"


def test_a_member_that_cannot_be_saved_is_named(spark, tmp_path):
    class Own(reader_writer.Params):
        """It has no writer."""

    model = made()
    model.models[1] = Own()
    with pytest.raises(InvalidInput, match="members/00001 is a Own, which cannot be saved"):
        model.save(str(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []


def changed(path, change):
    """Other metadata in the place of what was saved."""
    (part,) = path.glob("metadata/part-*")
    found = json.loads(part.read_text())
    change(found["sparkdl"])
    part.with_name(f".{part.name}.crc").unlink(missing_ok=True)
    part.write_text(json.dumps(found))


def test_a_damaged_one_is_refused(spark, tmp_path):
    made().save(str(tmp_path / "whole"))

    def copied(name):
        return shutil.copytree(tmp_path / "whole", tmp_path / name)

    shutil.rmtree(copied("lost") / "members/00001")
    with pytest.raises(InvalidInput, match="lost is damaged: members/00001 cannot be loaded"):
        EnsembleModel.load(str(tmp_path / "lost"))
    weights = copied("broken") / "members/00000/weights.safetensors"
    weights.with_name(f".{weights.name}.crc").unlink(missing_ok=True)
    weights.write_bytes(b"broken")
    with pytest.raises(InvalidInput, match="members/00000 is damaged"):
        EnsembleModel.load(str(tmp_path / "broken"))
    changed(copied("newer"), lambda found: found.update(format=99))
    with pytest.raises(InvalidInput, match=r"newer was written by a newer sparkdl \(format 99\)"):
        EnsembleModel.load(str(tmp_path / "newer"))
    changed(copied("without"), lambda found: found.pop("rule"))
    with pytest.raises(InvalidInput, match="without is damaged: KeyError: 'rule'"):
        EnsembleModel.load(str(tmp_path / "without"))
    with pytest.raises(InvalidInput, match=r"holds a sparkdl.ml.model.TorchModel; expected a sparkdl EnsembleModel"):
        EnsembleModel.load(str(tmp_path / "whole/members/00000"))
    with pytest.raises(InvalidInput, match="cannot be loaded as a EnsembleModel"):
        EnsembleModel.load(str(tmp_path / "nowhere"))


def test_a_part_of_another_class_is_refused(spark, tmp_path):
    path = tmp_path / "model"
    made().save(str(path))
    (part,) = path.glob("members/00001/metadata/part-*")
    found = json.loads(part.read_text()) | {"class": "shutil.rmtree"}
    part.with_name(f".{part.name}.crc").unlink(missing_ok=True)
    part.write_text(json.dumps(found))
    with pytest.raises(InvalidInput, match=r"members/00001 cannot be loaded: TypeError: shutil.rmtree is <function"):
        EnsembleModel.load(str(path))


class Committee(EnsembleParams, Estimator, MLReadable, MLWritable):
    """An ensemble of two bases and an evaluator, as far as Params go."""

    experts = param("estimators that are trained", default=[])
    rounds = param("how many", to_int, 1)
    evaluator = param("judges")

    def bases(self):
        return list(self.getOrDefault(self.experts))

    def with_bases(self, bases):
        return self._set(experts=bases)

    def _fit(self, dataset):
        raise NotImplementedError


def test_an_estimator_is_saved_with_its_bases(spark, tmp_path):
    bases = [
        TorchClassifier(model=nets.scores, epochs=3),
        LogisticRegression(regParam=0.25),
        Pipeline(stages=[TorchClassifier(model=nets.digits)]),
    ]
    committee = Committee().with_bases(bases).setSeed(7).setRunDir("here")._set(rounds=5)
    committee._set(evaluator=MulticlassClassificationEvaluator(metricName="accuracy"))
    path = tmp_path / "committee"
    committee.save(str(path))
    assert sorted(entry.name for entry in (path / "bases").iterdir()) == ["00000", "00001", "00002"]
    assert {entry.name for entry in path.iterdir()} == {"metadata", "bases", "params"}
    loaded = Committee.load(str(path))
    assert (loaded.uid, loaded.getSeed(), loaded.getRunDir()) == (committee.uid, 7, "here")
    assert loaded.getOrDefault(loaded.rounds) == 5
    assert loaded.getOrDefault(loaded.evaluator).getMetricName() == "accuracy"
    torch_base, other, pipeline = loaded.bases()
    assert (torch_base.uid, torch_base.getModel(), torch_base.getEpochs()) == (bases[0].uid, nets.scores, 3)
    assert other.getRegParam() == 0.25
    assert pipeline.getStages()[0].getModel() is nets.digits


def test_trust_is_handed_on_to_bases(spark, tmp_path):
    path = str(tmp_path / "committee")
    Committee().with_bases([TorchClassifier(model=lambda: nets.mlp(3, outputs=3))]).save(path)
    with pytest.raises(InvalidInput, match=r"bases/00000 has pickled parts, .*\['model'\]"):
        Committee.load(path)
    (base,) = Committee.read().trust().load(path).bases()
    assert isinstance(base.getModel()(), nets.nn.Module)
